"""All golden logs: those that a reader must read, then those that it must reject."""

from tools.golden import dictionaries, frames, models, parts, rows, superblocks, whole

_ALL = [*whole.CASES, *dictionaries.CASES, *superblocks.CASES, *frames.CASES, *models.CASES, *rows.CASES, *parts.CASES]
REJECTED = [case for case in _ALL if case.error]
CASES = [case for case in _ALL if not case.error] + REJECTED
