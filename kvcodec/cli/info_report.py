"""What `kvcodec info` prints. Imports neither typer nor rich: most of the command's time would be theirs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kvcodec.cli.output import number, print_json, print_line, ratio, size
from kvcodec.cli.tables import print_table

if TYPE_CHECKING:
    from kvcodec.store.stats import SequenceStats, Stats


class InfoReport(NamedTuple):
    """What a log holds: its model in words, and its figures."""

    log: Path
    model: str
    stats: Stats


def gather_info(log: Path) -> InfoReport:
    """Read a log's headers. Raises KvcodecError, OSError."""
    from kvcodec.store.opening import open_store

    with open_store(log) as store:
        return InfoReport(log, store.model.describe(), store.stats())


def print_info(report: InfoReport, *, json: bool) -> None:
    """Tables, or one JSON object."""
    stats = report.stats
    if json:
        print_json({"log": str(report.log), "model": report.model} | stats.as_dict())
        return
    print_line(f"{report.log}: {report.model}")
    _print_sequences(stats.sequences)
    _print_summaries(stats.sequences)
    _print_vectors(stats.sequences)
    _print_sizes(stats)
    _print_device(stats)


def _print_sequences(sequences: tuple[SequenceStats, ...]) -> None:
    rows = [
        (s.name, " ".join(s.codecs), str(s.tokens), str(s.layers), size(s.payload_bytes))
        for s in sequences
    ]  # fmt: skip
    print_table(("sequence", "codecs", "tokens", "layers", "payload"), rows, left=2, title="Sequences")


def _print_summaries(sequences: tuple[SequenceStats, ...]) -> None:
    """What rows that were given stand for."""
    rows = [(s.name, str(s.summaries), str(s.summarized_tokens)) for s in sequences if s.summaries]
    if rows:
        print_table(("sequence", "summaries", "tokens"), rows, title="Summaries")


def _print_vectors(sequences: tuple[SequenceStats, ...]) -> None:
    """What vectors over dictionaries are kept as."""
    counted = [(s.name, s.vectors) for s in sequences if s.vectors is not None]
    rows = [
        (name, str(v.codes), "-" if v.mean_room is None else number(v.mean_room, ".2f"), str(v.int4), str(v.raw))
        for name, v in counted
    ]
    if rows:
        print_table(("sequence", "codes", "room", "INT4", "raw"), rows, title="Vectors over dictionaries")


def _print_sizes(stats: Stats) -> None:
    rows = (
        ("16-bit rows", stats.raw16_bytes, 1.0),
        ("codes + metadata of coded groups", stats.coded_bytes, stats.coded_ratio),
        ("payload: those and raw rows", stats.payload_bytes, stats.ratio(stats.payload_bytes)),
        ("programmed", stats.programmed_bytes, stats.ratio(stats.programmed_bytes)),
        *_without_dictionaries(stats),
        ("file", stats.file_bytes, stats.ratio(stats.file_bytes)),
    )
    title = f"Sizes ({number(stats.bytes_per_number, '.4f')} bytes a coded number)"
    print_table(("", "size", "ratio"), [(name, size(n), ratio(times)) for name, n, times in rows], title=title)


def _without_dictionaries(stats: Stats) -> list[tuple[str, int, float]]:
    """Written once for all sequences, so told apart."""
    if not stats.dictionary_bytes:
        return []
    rest = stats.programmed_bytes - stats.dictionary_bytes
    grown = (f"of those, grown in {stats.growths} steps", stats.grown_bytes, stats.ratio(stats.grown_bytes))
    return [
        ("of that, dictionary sets", stats.dictionary_bytes, stats.ratio(stats.dictionary_bytes)),
        *([grown] if stats.growths else []),
        ("programmed without them", rest, stats.ratio(rest)),
    ]


def _print_device(stats: Stats) -> None:
    from kvcodec.store.stats import AMPLIFICATIONS

    figures = stats.as_dict()
    waf, *factors = (
        number(float("nan") if (x := figures[f"write_amplification{part}"]) is None else x, ".3f")
        for part in ("", *(f"_{name}" for name in AMPLIFICATIONS))
    )
    shown = (True, True, stats.copied_bytes > 0, stats.compacted_bytes > 0)
    product = " x ".join(
        f"{name} {factor}" for name, factor, there in zip(AMPLIFICATIONS, factors, shown, strict=True) if there
    )
    rows = (
        ("write amplification", f"{waf} = {product}"),
        ("programmed", f"{size(stats.programmed_bytes)} for {size(stats.host_bytes)} of payload ever written"),
        ("spare bytes, apart", size(stats.spare_bytes)),
        ("erase blocks in use", str(stats.blocks_used)),
        ("erases", f"{stats.erases}, at most {stats.largest_erase_count} of {stats.rated_cycles} cycles of a block"),
        *stats.failures.lines(),
        ("frames, records", f"{stats.frames}, {stats.records}"),
        *(("dictionary set", basis) for basis in stats.dictionaries),
    )
    print_table(("", ""), rows, left=2, title=f"Device ({stats.device})")
