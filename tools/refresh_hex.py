"""Rewrite the worked hex examples of formats/*.md from the golden files, offsets and notes kept.

    python -m tools.refresh_hex

For a change of the format that moves no field: what the bytes mean is still checked by tests/test_formats.py.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```hex (\S+) file=(\S+) at=(\d+) size=(\d+)\n(.*?)\n```", re.S)
LINE = re.compile(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+)( *)(.*)$")


def refresh(text: str) -> str:
    """The document with the bytes of the files as they are now."""

    def block(match: re.Match[str]) -> str:
        raw = (ROOT / "tests" / "golden" / match[2]).read_bytes()[int(match[3]) :]

        def line(one: str) -> str:
            parts = LINE.match(one)
            if parts is None:
                return one
            offset, count = int(parts[1], 16), len(parts[2].split())
            column = len(parts[2]) + len(parts[3])
            return f"{parts[1]}  {raw[offset : offset + count].hex(' ').ljust(column)}{parts[4]}".rstrip()

        return match[0].replace(match[5], "\n".join(line(one) for one in match[5].splitlines()))

    return BLOCK.sub(block, text)


def main() -> None:
    """Rewrite what changed."""
    for path in sorted((ROOT / "formats").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if (new := refresh(text)) != text:
            path.write_text(new, encoding="utf-8")
            print(path.name)


if __name__ == "__main__":
    main()
