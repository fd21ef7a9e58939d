"""The rows of `kvcodec bench` under pytest-benchmark: to compare versions of kvcodec (--benchmark-compare).

    python -m pytest bench [--rows PATTERN] [--full] [--benchmark-autosave]

Ratios to peers are `kvcodec bench`'s to tell: there they take turns.
"""

import pytest

from kvcodec.bench.row import OURS, Contender


def test_row(row, benchmark, peers, tmp_path):
    """Time what kvcodec does of each row, after its check; rows without it say so."""
    entries = row.prepare(peers, tmp_path)
    ours = next((e for e in entries if isinstance(e, Contender) and e.name == OURS), None)
    if ours is None:
        pytest.skip("kvcodec has no part in it")
    ours.run()
    ours.check()
    benchmark.extra_info.update(row=row.name, shape=row.shape, unit=row.unit, units=ours.units)
    benchmark(ours.run)
