"""kvcodec wear"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.output import number, print_json, print_line, print_table, size
from kvcodec.cli.progress import progress_bar
from kvcodec.errors import SpecError

if TYPE_CHECKING:
    from kvcodec.bulk.wear import WearReport

EXAMPLE = "Example: kvcodec wear --model 32x8x128 --k int4/channel/g64 --v int4/token/g64 --capacity 1TB"
_UNITS = {"": 1, "B": 1} | {
    f"{letter}{end}": base**n for n, letter in enumerate("KMGTP", 1) for end, base in (("B", 1000), ("iB", 1024))
}


def command(
    log: Annotated[Path | None, typer.Argument(metavar="[LOG]", help="The log whose counts are told.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Without a log: layers x KV heads x channels, such as 32x8x128.")
    ] = None,
    k: Annotated[str, typer.Option(help="Codec of K.")] = "int4/channel/g64",
    v: Annotated[str, typer.Option(help="Codec of V.")] = "int4/token/g64",
    residual: Annotated[int, typer.Option(min=0, help="Newest tokens kept raw.")] = 128,
    sinks: Annotated[int, typer.Option(min=0, help="First tokens kept raw for good.")] = 4,
    durability: Annotated[str, typer.Option(help="sync, or step: each token is durable.")] = "sync",
    journal: Annotated[str, typer.Option(help="Codec of rows that step makes durable.")] = "raw",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a sequence.")] = 4096,
    sync_every: Annotated[int, typer.Option(min=0, help="Tokens between two syncs. [default: one at the end]")] = 0,
    drop: Annotated[
        str | None, typer.Option(help="Simulate a full device: oldest or random, which sequences go.")
    ] = None,
    fill: Annotated[float, typer.Option(help="How full that device is.")] = 0.9,
    blocks: Annotated[int, typer.Option(min=8, help="Erase blocks of the simulated device.")] = 128,
    device: Annotated[
        str | None, typer.Option(help="Preset or geometry; of a log, whose rated cycles count. [default: tlc, its own]")
    ] = None,
    capacity: Annotated[str, typer.Option(help="Of the device, such as 1TB or 512GiB.")] = "1TB",
    tokens_per_second: Annotated[float, typer.Option(help="The rate that life is told at.")] = 50.0,
    years: Annotated[float, typer.Option(help="The time that drive writes a day are told for.")] = 5.0,
    json: options.Json = False,
) -> None:
    """Tell write amplification, bytes and tokens until death, years of life: of a log, or before there is one.

    Without a log, records, frames, blocks and cleaning are simulated without payload. Times and energy are estimates.
    """
    with reported(log=log), progress_bar("wear", wanted=not json) as progress:
        from kvcodec.bulk.wear import Cache, Use, cache_wear, log_wear, parse_model

        if (log is None) == (model is None):
            raise SpecError("wear is told of a log or of a --model: want one of the two")
        use = Use(device or "tlc", parse_size(capacity), tokens_per_second, years)
        if log is not None:
            report = log_wear(log, use, own_device=device is None)
        else:
            assert model is not None
            cache = Cache(
                parse_model(model), k, v, residual, sinks, durability, journal, tokens, sync_every, fill, drop, blocks
            )
            report = cache_wear(cache, use, progress)
    if json:
        print_json(report.as_dict())
    else:
        print_report(report)


def parse_size(text: str) -> float:
    """Bytes of 512GiB, 1TB, 1.5e12. Raises SpecError."""
    digits = text.rstrip("BiKMGTP")
    try:
        found = float(digits) * float(_UNITS[text[len(digits) :].strip()])
    except (ValueError, KeyError):
        found = 0.0
    if not 0 < found < 1e24:
        raise SpecError(f"capacity {text!r}, want bytes such as 1TB or 512GiB")
    return found


def print_report(report: WearReport) -> None:
    """Tables."""
    own, life = report.amplification, report.life
    print_line(report.source)
    factors = (
        ("format: headers of frames and records", own.format),
        ("padding: whole units, block headers", own.padding),
        ("cleaning: copies out of erased blocks", own.cleaning),
        *([("compaction", own.compaction)] if own.compacted else []),
        ("all of them (WAF)", own.total),
    )
    print_table(("", "times"), [(name, number(x, ".3f")) for name, x in factors], title="Write amplification")
    print_line(f"{size(own.programmed)} programmed for {size(own.host)} of rows; spare bytes, apart: {size(own.spare)}")
    rows = (
        ("programmed for a token", size(life.token_bytes)),
        (f"programmed a day, {life.tokens_a_second:g} tokens/s", size(life.programmed_a_day)),
        ("rows until death (TBW)", size(life.host_bytes)),
        (f"drive writes a day for {life.years:g} years (DWPD)", number(life.writes_a_day, ".2f")),
        ("tokens until death", number(life.tokens, ".3g")),
        ("years of life", number(life.years_of_life, ".1f")),
    )
    title = f"Life ({report.device.name}, {life.capacity:.4g} B, {life.cycles:g} cycles, even wear)"
    print_table(("", ""), rows, title=title)
    print_line(
        f"estimated, on one die: {report.token.seconds * 1e3:.3g} ms and {report.token.joules * 1e3:.3g} mJ a token"
    )
    for name, text in report.failures.lines():
        print_line(f"{name}: {text}")
    if (found := report.outcome) is not None:
        print_line(
            f"simulated: {found.simulated.appends} of {found.total.appends} appends, "
            f"{'steady since' if found.steady else 'not steady'}; {found.mean_erases:.1f} erases a block, "
            f"{found.least:.2f} to {found.most:.2f} of that"
        )
