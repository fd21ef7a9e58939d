"""Frames laid into erase blocks: nothing lost, nothing straddles, records split by heads only where they must be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcodec.errors import SpecError
from kvcodec.layout import FRAME_HEADER, Kind
from kvcodec.log.frame import MAX_FRAME, close_frame, new_record, place_record
from kvcodec.log.plan import plan_frames

FIRST = 64


def record(kind, heads, head_bytes, number):
    """A record whose body is `heads` pieces filled with its number."""
    out = new_record(kind, np.full(heads * head_bytes, number, np.uint8), sequence=number)

    def split(n):
        return record(kind, n, head_bytes, number), record(kind, heads - n, head_bytes, number)

    out.pieces, out.split = heads, split
    return out


records = st.lists(
    st.tuples(st.sampled_from([Kind.GROUP, Kind.STEP]), st.integers(1, 8), st.integers(1, 900)), max_size=20
)


@settings(max_examples=300)
@given(records, st.integers(0, 4096 // 8), st.sampled_from([4096, 8192, 65536]))
def test_every_record_finds_its_place(shapes, offset, block_bytes):
    numbered = [(n + 1, record(kind, heads, size, n + 1)) for n, (kind, heads, size) in enumerate(shapes)]
    frames = plan_frames(numbered, offset=FIRST + 8 * offset, first=FIRST, block_bytes=block_bytes)
    position, got = FIRST + 8 * offset, {}
    for frame in frames:
        if frame.fresh:
            position = FIRST
        assert frame.offset == position
        assert frame.records
        at = position + FRAME_HEADER.itemsize
        for lsn, one in frame.records:
            at = place_record(at, one.kind) + one.size
            got.setdefault(lsn, []).append(len(one.body))
        assert close_frame(at) == frame.end <= block_bytes
        position = frame.end
    wanted = {n + 1: heads * size for n, (_, heads, size) in enumerate(shapes)}
    assert {lsn: sum(parts) for lsn, parts in got.items()} == wanted
    assert list(got) == sorted(got)


def test_a_frame_is_not_longer_than_it_must_be():
    numbered = [(n, record(Kind.GROUP, 1, 1 << 20, 1)) for n in range(1, 10)]
    frames = plan_frames(numbered, offset=64, first=64, block_bytes=1 << 30)
    assert len(frames) == 3
    assert all(f.end - f.offset <= MAX_FRAME for f in frames)
    assert (
        len(plan_frames([(1, record(Kind.GROUP, 1, 2 * MAX_FRAME, 1))], offset=64, first=64, block_bytes=1 << 30)) == 1
    )


def test_a_head_that_fits_no_block_is_refused():
    with pytest.raises(SpecError, match="one head must fit"):
        plan_frames([(1, record(Kind.GROUP, 2, 5000, 1))], offset=64, first=64, block_bytes=4096)
    whole = new_record(Kind.SEQUENCE, bytes(5000))
    with pytest.raises(SpecError, match="1 heads"):
        plan_frames([(1, whole)], offset=2000, first=64, block_bytes=4096)


def test_the_rest_of_a_block_takes_the_heads_that_fit():
    frames = plan_frames([(1, record(Kind.GROUP, 8, 1000, 1))], offset=4096 * 2 - 2500, first=64, block_bytes=8192)
    assert [(f.fresh, [len(r.body) // 1000 for _, r in f.records]) for f in frames] == [(False, [2]), (True, [6])]
