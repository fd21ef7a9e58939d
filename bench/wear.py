"""What a cache does to Flash, raw and coded, side by side: bytes programmed a day, and years of life.

    python bench/wear.py [--capacity 1e12] [--tokens-per-second 50] [--check | --print]

The cache of a model of 32 layers with 8 KV heads of 128 channels on `tlc`, by simulation without payload:
sequences of 4096 tokens that are synced at their ends, or each token durable by itself. Then cleaning: sequences that
come and go on a small device that is kept 90 % full, dropped oldest first or at random. Writes its tables into
bench/RESULTS.md, or with --check fails if a figure misses its bound.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import kvcodec as kv
from kvcodec.bulk.course import Course
from kvcodec.bulk.simulate import run_workload
from kvcodec.bulk.wear import Cache, Use, cache_wear
from kvcodec.flash.geometry import Geometry
from kvcodec.measure.workload import Workload, amplification_of
from kvcodec.spec import CodecSpec
from kvcodec.store.policy import StreamPolicy

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "RESULTS.md"
BEGIN, END = "<!-- wear: written by bench/wear.py -->", "<!-- /wear -->"
MODEL = kv.Model.uniform(32, 8, 128)
MOST_OF_A_SYNC = 1.05
INT4, DICT, RAW = ("int4/channel/g64", "int4/token/g64"), ("dict/s8", "dict/s8"), ("raw", "raw")


class Codes(NamedTuple):
    """Specs of K and V, and the residual window that they have. bound: whether a sync's amplification has one."""

    name: str
    specs: tuple[str, str]
    residual: int
    bound: bool = True


ALL = (
    Codes("raw 16-bit", RAW, 0, bound=False),
    Codes("INT4", INT4, 128),
    Codes("dictionary, `dict/s8`", DICT, 0),
)


class Drops(NamedTuple):
    """How sequences go, and what cleaning and the spread of erases may come to."""

    drop: str
    cleaning: float
    spread: float


DROPS = Drops("oldest", 1.3, 0.1), Drops("random", 2.5, 0.1)
SMALL = Geometry.parse("page=2048,unit=512,block=65536")
BLOCKS, CYCLES, TOKENS = 128, 50, 512


def measure_lives(use: Use) -> Iterator[tuple[list[str], bool]]:
    """Rows of the table of lives, and whether each keeps to its bound."""
    for codes in ALL:
        for durability in ("sync", "step"):
            cache = Cache(MODEL, *codes.specs, residual=codes.residual, durability=durability)
            report = cache_wear(cache, use)
            own, life = report.amplification, report.life
            cells = [
                codes.name, durability, f"{own.format:.3f}", f"{own.padding:.3f}", f"{own.total:.3f}",
                f"{life.programmed_a_day / 1e9:.1f}", f"{life.years_of_life:.1f}", f"{life.tokens:.3g}",
                f"{report.token.seconds * 1e3:.2f}",
            ]  # fmt: skip
            yield cells, own.total <= MOST_OF_A_SYNC or durability == "step" or not codes.bound


def measure_cleaning() -> Iterator[tuple[list[str], bool]]:
    """Rows of the table of cleaning, and whether each keeps to its bounds."""
    model = kv.Model.uniform(2, 2, 64)
    course = Course(model, tuple(StreamPolicy(CodecSpec.parse(spec), 0, 0) for spec in INT4), SMALL, None)
    size = course.final_bytes(TOKENS) / SMALL.block_bytes
    for own in DROPS:
        workload = Workload((TOKENS,), 0.9, own.drop)
        found = run_workload(course, BLOCKS, workload, 10**7, at_once=64, least_cycles=CYCLES)
        cleaning = amplification_of(found.simulated).cleaning
        cells = [
            own.drop, f"{size:.1f}", f"{cleaning:.3f}", f"{found.mean_erases:.1f}", f"{found.least:.2f}",
            f"{found.most:.2f}",
        ]  # fmt: skip
        yield cells, cleaning <= own.cleaning and max(found.most - 1, 1 - found.least) <= own.spread


def make_tables(use: Use) -> tuple[str, bool]:
    """Markdown, and whether all figures keep to their bounds."""
    lives, cleaning = list(measure_lives(use)), list(measure_cleaning())
    about = (
        f"32 layers, 8 KV heads, 128 channels on `tlc`, {use.tokens_per_second:g} tokens/s, {use.capacity:.3g} bytes, "
        "nothing cleaned; the ms of a token are estimated, of one die."
    )
    first = ["codes", "durable by", "format", "padding", "WAF", "programmed a day, GB", "years of life",
             "tokens until death", "ms a token"]  # fmt: skip
    second = ["dropped", "blocks of a sequence", "cleaning", "erases a block", "least over mean", "most over mean"]
    small = f"{BLOCKS} blocks of {SMALL.block_bytes >> 10} KiB, {SMALL.unit_bytes} B units, 90 % full, INT4:"
    parts = [about, _table(first, lives), small, _table(second, cleaning)]
    return "\n\n".join(parts), all(fine for _, fine in lives + cleaning)


def _table(head: list[str], rows: list[tuple[list[str], bool]]) -> str:
    return "\n".join(
        "| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *(cells for cells, _ in rows)]
    )


def main() -> None:
    """Write or check the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=float, default=1e12, help="bytes of the device (1e12)")
    parser.add_argument("--tokens-per-second", type=float, default=50, help="rate of all sequences (50)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a bound is missed")
    parser.add_argument("--print", action="store_true", help="print the tables instead of writing them")
    options = parser.parse_args()
    tables, fine = make_tables(Use("tlc", options.capacity, options.tokens_per_second))
    if options.check or options.print:
        print(tables)
    else:
        before, rest = RESULTS.read_text().split(BEGIN)
        RESULTS.write_text(f"{before}{BEGIN}\n{tables}\n{END}{rest.split(END)[1]}")
    sys.exit(not fine and "a figure misses its bound")


if __name__ == "__main__":
    main()
