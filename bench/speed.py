"""How fast it is here, beside this machine's bandwidth and beside other libraries: `kvcodec bench` for the record.

    python bench/speed.py [--only PATTERN] [--scratch DIR] [--plot FILE]

Writes machine, peers and table into bench/RESULTS.md; with --only, which leaves rows out, it prints them instead.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kvcodec.bench.plot import plot_ratios
from kvcodec.bench.run import run_bench
from kvcodec.bench.table import format_markdown
from kvcodec.measure.chart import check_chart

RESULTS = Path(__file__).parent / "RESULTS.md"
BEGIN, END = "<!-- speed: written by bench/speed.py -->", "<!-- /speed -->"


def replace_section(text: str, lines: list[str]) -> str:
    """The document with `lines` between its marks."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{rest.split(END)[1]}"


def show_progress(done: int, total: int) -> None:
    """Rows done, on stderr."""
    print(f"\r{done} of {total} rows", end="" if done < total else "\n", file=sys.stderr)


def main() -> None:
    """Measure, and write or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only")
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.plot:
        check_chart(options.plot, overwrite=True)
    report = run_bench(only=options.only, scratch=options.scratch, progress=show_progress)
    lines = format_markdown(report)
    if options.only is None:
        RESULTS.write_text(replace_section(RESULTS.read_text(), lines))
    else:
        print("\n".join(lines))
    if options.plot:
        plot_ratios(report, options.plot)
    sys.exit(report.bad and "a result was wrong: see the table")


if __name__ == "__main__":
    main()
