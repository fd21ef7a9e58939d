"""The hex examples of formats/*.md, which show bytes of golden logs."""

from __future__ import annotations

import re
from pathlib import Path

_EXAMPLE = re.compile(r"(```hex \S+ file=(\S+) at=(\d+) size=\d+\n)(.*?)(\n```)", re.S)
_LINE = re.compile(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?=  |$)")


def write_examples(documents: Path, golden: Path) -> None:
    """Have each line of each example show what the golden log holds at its place."""
    for path in sorted(documents.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        path.write_text(_EXAMPLE.sub(lambda example: _shown(example, golden), text), encoding="utf-8")


def _shown(example: re.Match[str], golden: Path) -> str:
    head, file, at, dump, end = example.groups()
    data = (golden / file).read_bytes()[int(at) :]

    def line(found: re.Match[str]) -> str:
        first = int(found[1], 16)
        return f"{found[1]}  {data[first : first + len(bytes.fromhex(found[2]))].hex(' ')}"

    return head + "\n".join(_LINE.sub(line, own) for own in dump.split("\n")) + end
