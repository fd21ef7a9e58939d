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
    summaries,
    superblocks,
    trellises,
    whole,
)

_WHOLE = (whole, dictionaries, bounded, grown, products, trellises)
_MODULES = (*_WHOLE, superblocks, frames, lanes, models, rows, parts, summaries)
_ALL = [case for module in _MODULES for case in module.CASES]
REJECTED = [case for case in _ALL if case.error]
CASES = [case for case in _ALL if not case.error] + REJECTED
