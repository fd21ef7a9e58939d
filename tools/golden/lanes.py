"""What lane KEPT says of blocks that are gone, and is not what it ought to be."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcodec.layout import COUNTER_LIMIT, FREED_RUN, RETIRED_BLOCK, Kind, Lane
from kvcodec.log.frame import new_record
from tools.golden.forge import Forge, Forgeries

CASES = Forgeries()


def bad_run(name: str, shows: str, *, runs: int = 1, error: str = "CorruptRecord", **fields: Any) -> None:
    """Register a log with one FREED record, of one run."""

    @CASES.bad(name, shows, error, frozen=False)
    def _(forge: Forge) -> None:
        forge.begin()
        forge.begin_kept()
        run = np.zeros(1, FREED_RUN)
        run["lane"], run["first_frame"], run["frames"] = Lane.KEPT, 1, 1
        for field, value in fields.items():
            run[field] = value
        forge.frame(forge.seal(new_record(Kind.FREED, run.tobytes(), runs=runs)))


bad_run("freed-runs", "a FREED record that counts more runs than it has", runs=2)
bad_run("freed-none", "a FREED record without runs", runs=0)
bad_run("freed-lane", "frames of an unknown lane are freed", lane=2)
bad_run("freed-first", "frame 0 is freed", first_frame=0)
bad_run("freed-beyond", "frames out of range are freed", first_frame=COUNTER_LIMIT)
bad_run("freed-nothing", "a run of no frames", frames=0)
bad_run("freed-reserved", "a reserved field of a run is set", reserved=b"\1")


def bad_block(name: str, shows: str, *, blocks: int = 1, **fields: Any) -> None:
    """Register a log with one RETIRED record, of one block."""

    @CASES.bad(name, shows, frozen=False)
    def _(forge: Forge) -> None:
        forge.begin()
        forge.begin_kept()
        block = np.zeros(1, RETIRED_BLOCK)
        block["block"], block["cause"] = 3, 1
        for field, value in fields.items():
            block[field] = value
        forge.frame(forge.seal(new_record(Kind.RETIRED, block.tobytes(), blocks=blocks)))


bad_block("retired-blocks", "a RETIRED record that counts more blocks than it has", blocks=2)
bad_block("retired-none", "a RETIRED record without blocks", blocks=0)
bad_block("retired-cause", "a block that is retired for no known cause", cause=0)
bad_block("retired-reserved", "a reserved field of a retired block is set", reserved=b"\1")


@CASES.bad("freed-sequence", "a FREED record of a sequence", frozen=False)
def _(forge: Forge) -> None:
    forge.begin()
    forge.begin_kept()
    run = np.array([(Lane.KEPT, b"", 1, 1)], FREED_RUN)
    forge.frame(forge.seal(new_record(Kind.FREED, run.tobytes(), runs=1), sequence=1))
