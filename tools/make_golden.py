"""Write tests/golden: logs that are whole, logs that a reader must reject, and index.json that says what to expect.

    python -m tools.make_golden [directory]

Whole logs are made by the store, so that they freeze the writer; the others are forged record by record, with every
checksum but the one in question repaired. Nothing in the output depends on the clock, the machine or chance.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tools.golden.index import write_golden

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"


def main() -> None:
    """Replace the golden files, once all of them are made."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN
    with tempfile.TemporaryDirectory() as scratch:
        write_golden(Path(scratch))
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(scratch, target)


if __name__ == "__main__":
    main()
