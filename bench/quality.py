"""What the integer codecs cost on the real dump: ratio, relative error, logit and attention-output error.

    python bench/quality.py [DUMP] [--check]

Writes its table into bench/RESULTS.md; with --check it only says whether the table there is what comes out now.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

import kvcodec as kv
from kvcodec.bulk.compare import compare

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "RESULTS.md"
DUMP = ROOT / "tests" / "data" / "gemma3_270m_512_3layers.safetensors"
WIDTHS = ("int8", "int4", "int2")
GROUPS = (32, 64, 128)
MARK = "<!-- {}: written by bench/quality.py -->"


def measure(dump: Path, k: str, v: str, residual: int, sinks: int) -> list[str]:
    """One row of the table: a real encode, and what decoding it gives."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "a.kvlog"
        report = kv.encode(dump, log, k=k, v=v, residual=residual, sinks=sinks)
        found = compare(dump, log)
    attention = found.attention
    return [
        f"{k} · {v}",
        f"{report.stats.coded_ratio:.2f}",
        f"{found.k.relative:.4f}",
        f"{found.v.relative:.4f}",
        f"{attention.logit_rms:.3f}",
        f"{attention.k_only:.4f}",
        f"{attention.v_only:.4f}",
        f"{attention.both:.4f}",
    ]


def table(dump: Path, residual: int, sinks: int) -> str:
    """The table for one residual window, in Markdown."""
    head = ["K · V", "ratio", "K error", "V error", "logit rms", "output, K only", "V only", "both"]
    rows = [head, ["---"] * len(head)]
    for width, sym, g in itertools.product(WIDTHS, ("", "/sym"), GROUPS):
        k, v = f"{width}/channel/g{g}{sym}", f"{width}/token/g{g}{sym}"
        rows += [measure(dump, k, v, residual, sinks)]
    rows.append(measure(dump, "int4/token/g64", "int4/token/g64", residual, sinks))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    """Write or check the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", nargs="?", type=Path, default=DUMP)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = RESULTS.read_text()
    new = text
    for name, residual, sinks in (("quality-0", 0, 0), ("quality-128", 128, 4)):
        begin, end = MARK.format(name), f"<!-- /{name} -->"
        before, rest = new.split(begin)
        new = f"{before}{begin}\n{table(options.dump, residual, sinks)}\n{end}{rest.split(end)[1]}"
    if options.check:
        sys.exit(new != text and "bench/RESULTS.md is not what comes out now")
    RESULTS.write_text(new)


if __name__ == "__main__":
    main()
