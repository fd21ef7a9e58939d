"""The extent map against a plain list of owners."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcodec.log.located import NOWHERE
from kvcodec.store.extents import Coded, ExtentMap, Part

TOKENS = 40
spans = st.tuples(st.integers(0, TOKENS - 1), st.integers(1, 12))
actions = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "insert", "drop", "forget"]), spans, st.integers(1, 50)), max_size=40
)


def owners(extents):
    out = [0] * (TOKENS + 12)
    for extent in extents:
        assert extent.first < extent.end
        assert extent.coded.first <= extent.first
        assert extent.end <= extent.coded.first + extent.coded.tokens
        for t in range(extent.first, extent.end):
            assert out[t] == 0
            out[t] = extent.coded.lsn
    return out


@settings(max_examples=400)
@given(actions)
def test_the_highest_lsn_wins_for_each_token(steps):
    extents, want = ExtentMap(), [0] * (TOKENS + 12)
    used = set()
    for action, (first, count), lsn in steps:
        if action == "drop":
            extents.drop(first, lsn)
            want = [0 if t >= first and owner <= lsn else owner for t, owner in enumerate(want)]
        elif action == "forget":
            end = max((extent.end for extent in extents if extent.end <= first), default=0)
            extents.forget(end)
            want[:end] = [0] * end
        elif lsn not in used:
            used.add(lsn)
            extents.insert(Coded(lsn, None, first, count, (Part(NOWHERE, 0, 1, 0),)))
            for t in range(first, first + count):
                want[t] = max(want[t], lsn)
        assert owners(extents) == want
        assert extents.reach == (want.index(0) if 0 in want else len(want))
        assert extents.end == max((t + 1 for t, owner in enumerate(want) if owner), default=0)
        assert [e.first for e in extents] == sorted(e.first for e in extents)
        low, high = first, first + count
        expected = {owner for owner in want[low:high] if owner}
        covering = extents.covering(low, high)
        assert {e.coded.lsn for e in covering} == expected
        assert all(e.end > low and e.first < high for e in covering)


def test_appending_is_one_extent_a_record():
    extents = ExtentMap()
    for n in range(100):
        extents.insert(Coded(n + 1, False, 64 * n, 64, ()))
    assert len(extents) == 100
    assert extents.reach == 6400
