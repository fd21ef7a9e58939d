"""kvcodec info"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.output import number, print_json, print_line, print_table, ratio, size
from kvcodec.cli.progress import progress_bar

if TYPE_CHECKING:
    from kvcodec.store.stats import SequenceStats, Stats

EXAMPLE = "Example: kvcodec info cache.kvlog"


def command(log: Annotated[Path, typer.Argument(metavar="LOG", help="The log.")], json: options.Json = False) -> None:
    """Show what a log holds and what it takes. Sizes, ratios to 16-bit rows, write amplification, wear."""
    with reported(log=log), progress_bar("info", wanted=not json):
        from kvcodec.store.opening import open_store

        with open_store(log) as store:
            model, stats = store.model.describe(), store.stats()
    if json:
        print_json({"log": str(log), "model": model} | stats.as_dict())
        return
    print_line(f"{log}: {model}")
    _print_sequences(stats.sequences)
    _print_sizes(stats)
    _print_device(stats)


def _print_sequences(sequences: tuple[SequenceStats, ...]) -> None:
    rows = [
        (s.name, " ".join(s.codecs), str(s.tokens), str(s.layers), size(s.payload_bytes))
        for s in sequences
    ]  # fmt: skip
    print_table(("sequence", "codecs", "tokens", "layers", "payload"), rows, left=2, title="Sequences")


def _print_sizes(stats: Stats) -> None:
    rows = (
        ("16-bit rows", stats.raw16_bytes, 1.0),
        ("codes + metadata of coded groups", stats.coded_bytes, stats.coded_ratio),
        ("payload: those and raw rows", stats.payload_bytes, stats.ratio(stats.payload_bytes)),
        ("programmed", stats.programmed_bytes, stats.ratio(stats.programmed_bytes)),
        ("file", stats.file_bytes, stats.ratio(stats.file_bytes)),
    )
    title = f"Sizes ({number(stats.bytes_per_number, '.4f')} bytes a coded number)"
    print_table(("", "size", "ratio"), [(name, size(n), ratio(times)) for name, n, times in rows], title=title)


def _print_device(stats: Stats) -> None:
    figures = stats.as_dict()
    waf, by_format, by_padding = (
        number(float("nan") if (x := figures[f"write_amplification{part}"]) is None else x, ".3f")
        for part in ("", "_format", "_padding")
    )
    rows = (
        ("write amplification", f"{waf} = format {by_format} x padding {by_padding}"),
        ("programmed", f"{size(stats.programmed_bytes)} for {size(stats.host_bytes)} of payload ever written"),
        ("spare bytes, apart", size(stats.spare_bytes)),
        ("erase blocks in use", str(stats.blocks_used)),
        ("erases", f"{stats.erases}, at most {stats.largest_erase_count} of {stats.rated_cycles} cycles of a block"),
        ("frames, records", f"{stats.frames}, {stats.records}"),
    )
    print_table(("", ""), rows, left=2, title=f"Device ({stats.device})")
