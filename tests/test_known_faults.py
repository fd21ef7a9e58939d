"""Faults that are known and not mended yet: each of these tests becomes an error as soon as it passes."""

import pytest

from kvcodec.errors import NoSpace
from tests.test_lifecycle import append, data, make


@pytest.mark.xfail(
    strict=True, raises=NoSpace, reason="SUMMARY records of a sequence that lives are never worth nothing"
)
def test_a_sequence_that_is_summarised_for_ever_fills_no_device(tmp_path):
    with make(tmp_path / "c", device="page=64,unit=64,block=2048", capacity=32 * 2048) as store:
        own = store.sequence("p")
        for n in range(600):
            append(own, data(16, n))
            if settled := min(open_.first for open_ in own._open.values()):
                own.summarize(0, settled, dict(enumerate(data(2, n))))
