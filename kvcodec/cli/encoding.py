"""What `kvcodec encode` does and prints. Does not import typer: a good part of the command's time would be its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcodec.cli.output import number, print_json, print_line, ratio, size
from kvcodec.cli.progress import progress_bar
from kvcodec.cli.tables import print_table
from kvcodec.errors import SpecError

if TYPE_CHECKING:
    from kvcodec.bulk.encode_report import EncodeReport

Reports = tuple["EncodeReport", ...]


def encode_files(
    dumps: Sequence[Path], log: Path, *, shown: bool, sequence: str | None = None, **settings: Any
) -> Reports:
    """kvcodec.encode of one dump, or of several, with a progress bar if it may be shown. Raises as that does."""
    with progress_bar("encode", wanted=shown) as progress:
        from kvcodec.bulk.encode import encode_dump, encode_dumps

        if len(dumps) == 1:
            return (encode_dump(dumps[0], log, sequence=sequence, progress=progress, **settings),)
        if sequence is None:
            return encode_dumps(dumps, log, progress=progress, **settings)
        raise SpecError("--sequence names one dump's sequence, and there are several dumps")


def print_encoded(reports: Reports, log: Path, *, json: bool, quiet: bool) -> None:
    """One JSON object, or lines and a table, or nothing."""
    if json and len(reports) == 1:
        print_json(reports[0].as_dict())
    elif json:
        sequences = [report.own_dict() for report in reports]
        print_json({"log": str(log), "sequences": sequences, "stats": reports[0].stats.as_dict()})
    elif not quiet:
        _print_reports(reports)


def _print_reports(reports: Sequence[EncodeReport]) -> None:
    for report in reports:
        print_line(f"{report.log}: sequence {report.sequence}, {report.tokens} tokens, {report.layers} layers")
        if report.resumed:
            print_line(f"{report.resumed} of the tokens were there already")
    stats = reports[0].stats
    for codecs in dict.fromkeys(report.own.codecs for report in reports):
        print_line(f"coded as {' '.join(codecs)}: {number(stats.bytes_per_number, '.4f')} bytes a number")
    if stats.growths:
        print_line(f"dictionaries grew {stats.growths} times: {size(stats.grown_bytes)} of new atoms")
    if len(stats.sequences) > 1:
        print_line(f"the whole log, {len(stats.sequences)} sequences:")
    sizes = (
        ("16-bit rows", stats.raw16_bytes, 1.0),
        ("codes + metadata of coded groups", stats.coded_bytes, stats.coded_ratio),
        ("programmed, raw rows and all", stats.programmed_bytes, stats.ratio(stats.programmed_bytes)),
        ("file", stats.file_bytes, stats.ratio(stats.file_bytes)),
    )
    print_table(("", "size", "ratio"), [(name, size(count), ratio(times)) for name, count, times in sizes])
