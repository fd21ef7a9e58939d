"""python -m tools.golden: writes the golden logs, their index, and the examples that show their bytes in formats/."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tools.golden.documents import write_examples
from tools.golden.index import write_golden

_HERE = Path(__file__).resolve().parents[2]

_GOLDEN = _HERE / "tests" / "golden"

with tempfile.TemporaryDirectory() as fresh:
    write_golden(Path(fresh))
    for old in _GOLDEN.iterdir():
        old.unlink()
    shutil.copytree(fresh, _GOLDEN, dirs_exist_ok=True)
write_examples(_HERE / "formats", _GOLDEN)
