"""kvcodec encode"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.output import number, print_json, print_line, print_table, ratio, size
from kvcodec.cli.progress import progress_bar

if TYPE_CHECKING:
    from kvcodec.bulk.encode import EncodeReport

EXAMPLE = "Example: kvcodec encode dump.safetensors cache.kvlog --k int4/channel/g32 --residual 64"


def command(
    dump: Annotated[Path, typer.Argument(metavar="DUMP", help="A safetensors file with K and V of every layer.")],
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The log to make.")],
    k: Annotated[str | None, typer.Option(help="Codec of K. [default: int4/channel/g64]", show_default=False)] = None,
    v: Annotated[str | None, typer.Option(help="Codec of V. [default: int4/token/g64]", show_default=False)] = None,
    residual: Annotated[
        int | None, typer.Option(min=0, help="Newest tokens kept raw. [default: 128]", show_default=False)
    ] = None,
    sinks: Annotated[
        int | None, typer.Option(min=0, help="First tokens kept raw. [default: 4]", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="tlc, slc, or page=...,unit=...,block=...,cycles=...")] = "tlc",
    sequence: Annotated[str | None, typer.Option(help="Name of the sequence. [default: the dump's stem]")] = None,
    mapping: options.Map = None,
    heads: options.Heads = None,
    head_dim: options.HeadDim = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16 or float16, of a float32 dump.")] = None,
    append: Annotated[bool, typer.Option("--append", help="Add a sequence to an existing log.")] = False,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Encode a dump as a sequence of a log. The log is new, or with --append an existing one."""
    with reported(dump=dump, log=log), progress_bar("encode", wanted=not (json or quiet)) as progress:
        from kvcodec.bulk.encode import encode_dump

        report = encode_dump(
            dump, log, k=k, v=v, residual=residual, sinks=sinks, device=device, sequence=sequence,
            mapping=mapping or (), kv_heads=heads, head_dim=head_dim, dtype=dtype, overwrite=force, append=append,
            progress=progress,
        )  # fmt: skip
    if json:
        print_json(report.as_dict())
    elif not quiet:
        _print_report(report)


def _print_report(report: EncodeReport) -> None:
    own, stats = report.own, report.stats
    print_line(f"{report.log}: sequence {report.sequence}, {report.tokens} tokens, {report.layers} layers")
    print_line(f"coded as {' '.join(own.codecs)}: {number(stats.bytes_per_number, '.4f')} bytes a number")
    if len(stats.sequences) > 1:
        print_line(f"the whole log, {len(stats.sequences)} sequences:")
    sizes = (
        ("16-bit rows", stats.raw16_bytes, 1.0),
        ("codes + metadata of coded groups", stats.coded_bytes, stats.coded_ratio),
        ("programmed, raw rows and all", stats.programmed_bytes, stats.ratio(stats.programmed_bytes)),
        ("file", stats.file_bytes, stats.ratio(stats.file_bytes)),
    )
    print_table(("", "size", "ratio"), [(name, size(count), ratio(times)) for name, count, times in sizes])
