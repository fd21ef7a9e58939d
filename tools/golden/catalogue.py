"""All golden logs: those that a reader must read, then those that it must reject."""

from tools.golden import (
    bounded,
    dictionaries,
    frames,
    grown,
    lanes,
    models,
    parts,
    products,
    rows,
    superblocks,
    trellises,
    whole,
)

_MODULES = (whole, dictionaries, bounded, grown, products, trellises, superblocks, frames, lanes, models, rows, parts)
_ALL = [case for module in _MODULES for case in module.CASES]
REJECTED = [case for case in _ALL if case.error]
CASES = [case for case in _ALL if not case.error] + REJECTED
