"""What lane KEPT says of blocks that are gone, and is not what it ought to be."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.layout import COUNTER_LIMIT, FREED_RUN, RETIRED_BLOCK, Kind, Lane, RetireCause
from kvcodec.log.frame import new_record
from tools.golden.forge import Forge, Forgeries

CASES = Forgeries()


def bad_record(name: str, shows: str, kind: Kind, row: NDArray[np.void], *, sequence: int = 0, **counted: int) -> None:
    """Register a log whose lane KEPT has one record, with a body of one row. counted: how many it says it has."""

    @CASES.bad(name, shows, frozen=False)
    def _(forge: Forge) -> None:
        forge.begin()
        forge.begin_kept()
        forge.frame(forge.seal(new_record(kind, row.tobytes(), **counted), sequence=sequence))


def bad_run(name: str, shows: str, *, runs: int = 1, sequence: int = 0, **fields: Any) -> None:
    """Register a log with one FREED record, of one run with some fields changed."""
    good = {"lane": Lane.KEPT, "reserved": b"", "first_frame": 1, "frames": 1}
    row = np.array([tuple((good | fields).values())], FREED_RUN)
    bad_record(name, shows, Kind.FREED, row, sequence=sequence, runs=runs)


def bad_block(name: str, shows: str, *, blocks: int = 1, **fields: Any) -> None:
    """Register a log with one RETIRED record, of one block with some fields changed."""
    good = {"block": 3, "cause": RetireCause.FACTORY, "reserved": b""}
    bad_record(name, shows, Kind.RETIRED, np.array([tuple((good | fields).values())], RETIRED_BLOCK), blocks=blocks)


bad_run("freed-runs", "a FREED record that counts more runs than it has", runs=2)
bad_run("freed-none", "a FREED record without runs", runs=0)
bad_run("freed-lane", "frames of an unknown lane are freed", lane=2)
bad_run("freed-first", "frame 0 is freed", first_frame=0)
bad_run("freed-beyond", "frames out of range are freed", first_frame=COUNTER_LIMIT)
bad_run("freed-nothing", "a run of no frames", frames=0)
bad_run("freed-reserved", "a reserved field of a run is set", reserved=b"\1")
bad_run("freed-sequence", "a FREED record of a sequence", sequence=1)

bad_block("retired-blocks", "a RETIRED record that counts more blocks than it has", blocks=2)
bad_block("retired-none", "a RETIRED record without blocks", blocks=0)
bad_block("retired-cause", "a block that is retired for no known cause", cause=0)
bad_block("retired-reserved", "a reserved field of a retired block is set", reserved=b"\1")
