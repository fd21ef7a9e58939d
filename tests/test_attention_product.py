"""Attention on product codes: against naive twins bit by bit, and against float64 over the decoded rows."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.attention.arrays import attend_arrays, score_arrays
from kvcodec.codecs import EncodedArray
from kvcodec.codecs.product_rows import ProductCodec
from kvcodec.codecs.rotation import Rotation
from kvcodec.errors import CorruptRecord, SpecError
from kvcodec.layout import DtypeId, StreamId
from kvcodec.spec import CodecSpec
from tests import attention_product_twin, attention_twin
from tests.attention_problems import EXTREME, NORMAL, SUBNORMAL, Kind, coded_kind, make_problem, run, score, solve
from tests.attention_product_twin import Books
from tests.attention_reference import attend, relative_error
from tests.test_attention import blocks
from tests.test_attention_dictionary import dictionary_kinds, other_kinds
from tests.test_product_codec import product

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
TOKENS = 60 if INTERPRETED else 200
DIMS = [1, 24, 40] if INTERPRETED else [1, 16, 24, 72, 128, 272]


@st.composite
def product_kinds(draw, *styles):
    components = draw(st.integers(1, 40))
    turned = draw(st.booleans()) and draw(st.booleans())
    return Kind(
        0, style=draw(st.sampled_from(styles)), groups=draw(st.integers(1, components)), components=components,
        mean=draw(st.booleans()), turning=draw(st.integers(1, 20)) if turned else 0,
        mixed=draw(st.booleans()) and draw(st.booleans()), half=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def problems(draw, styles=(NORMAL, NORMAL, SUBNORMAL)):
    tokens = draw(st.integers(1, TOKENS))
    pieces, sizes = [], []
    for _ in range(2):
        inside = draw(st.lists(st.integers(1, tokens), max_size=2))
        sizes.append(np.diff(sorted({0, tokens, *inside})).tolist())
        products = product_kinds(*styles)
        kinds = st.one_of(products, products, products, dictionary_kinds(*styles), other_kinds(*styles))
        pieces.append([draw(kinds) for _ in sizes[-1]])
    return make_problem(
        draw(st.integers(0, 2**32 - 1)), pieces, sizes, (draw(st.sampled_from(DIMS)), draw(st.sampled_from(DIMS))),
        kv_heads=draw(st.integers(1, 2)), per_head=draw(st.integers(1, 6)), width=draw(st.sampled_from([16, 8])),
        spread=draw(st.sampled_from([0.0, 0.1, 2.0, 5.0])), latent=draw(st.booleans()),
        q_style=draw(st.sampled_from([NORMAL, EXTREME])), begin=draw(st.sampled_from([0, 70, 5000])),
    )  # fmt: skip


@settings(max_examples=10 if INTERPRETED else 25)
@given(problems())
def test_any_attention_over_product_codes_is_its_twins_bit_by_bit(problem):
    assert run(problem)[0] == solve(problem)


@settings(max_examples=5 if INTERPRETED else 12)
@given(problems((EXTREME,)))
def test_codes_of_any_size_are_their_twins_bit_by_bit(problem):
    assert run(problem)[0] == solve(problem)


@settings(max_examples=5 if INTERPRETED else 12)
@given(problems((NORMAL, SUBNORMAL, EXTREME)))
def test_logits_alone_are_their_twins_bit_by_bit(problem):
    found, wanted = score(problem)
    assert found == wanted


def test_threads_and_chunks_change_nothing():
    kind = Kind(0, groups=3, components=5, mean=True)
    tokens = 200 if INTERPRETED else 4500  # two chunks
    problem = make_problem(1, [[kind], [kind]], [[tokens], [tokens]], (16, 16), kv_heads=2, per_head=3)
    states = run(problem)[0]
    assert states == run(problem, threads=2)[0] == run(problem, threads=64)[0] == solve(problem)


@pytest.mark.parametrize("per_head", [1, 2])
def test_strips_that_wait_are_added_before_their_buckets_are_shifted(per_head):
    tokens = 200 if INTERPRETED else 1200  # 19 strips: more than wait
    kind = Kind(0, groups=2, components=3, mean=True)
    problem = make_problem(2, [[kind], [kind]], [[tokens], [tokens]], (16, 16), per_head=per_head, spread=5.0)
    assert run(problem)[0] == solve(problem)


def test_codes_of_all_sorts_follow_one_another_in_a_stream():
    one, two = Kind(0, groups=3, components=5, mean=True), Kind(0, groups=9, components=12)
    kinds = [one, Kind(8, terms=3, atoms=40, mean=True), two, Kind(16), coded_kind(4, False, 64, False), one]
    sizes = [20, 30, 9, 21, 50, 10]
    problem = make_problem(1, [kinds, kinds[::-1]], [sizes, sizes[::-1]], (16, 24), per_head=2, latent=True)
    assert run(problem)[0] == solve(problem)


# -- precision -------------------------------------------------------------------------------------------------------


def coded(own, tokens, heads, stream, seed=0, gains=(150, 256), shapes=(5, 12)):
    """Any codes of so many tokens, by product codes, of vectors that differ in length as those of caches do."""
    rng, groups = np.random.default_rng(seed), own.groups
    rows = rng.integers(0, 256, (tokens, heads, groups + 2)).astype(np.uint8)
    rows[..., 0], rows[..., 1] = rng.integers(*gains, (tokens, heads)), rng.integers(*shapes, (tokens, heads))
    codec, split = ProductCodec(CodecSpec.parse("pq"), own), tokens // 64 * 64
    full, tail = (
        codec.lay(part, size, own.dim, alike=False).body if len(part) else np.empty((0, heads, 0), np.uint8)
        for part, size in ((rows[:split], 64), (rows[split:], tokens - split))
    )
    errors = np.zeros((len(full) + len(tail), heads), np.uint16)
    return EncodedArray(codec.spec, stream, DtypeId.BFLOAT16, tokens, heads, own.dim, full, tail, errors, own)


def decoded(encoded):
    return kv.decode_array(encoded, dtype=np.float32)


def choose_scale(q, k):
    """A logit scale that gives logits of up to 8 nats."""
    return 8 / np.abs(decoded(k).reshape(-1, q.shape[1]).astype(np.float64) @ q.T).max()


@pytest.mark.parametrize(
    ("dim", "components", "groups", "tokens", "heads", "per_head"),
    [(16, 4, 1, 200, 1, 1), (128, 128, 128, 200, 1, 4), (1024, 512, 60, 70, 1, 2), (64, 40, 9, 3000, 2, 3)],
)
def test_outputs_are_within_a_thousandth(dim, components, groups, tokens, heads, per_head):
    own = [product(dim, components, groups, seed=n) for n in range(2)]
    k, v = (coded(p, tokens, heads, s, n) for n, (p, s) in enumerate(zip(own, (StreamId.K, StreamId.V), strict=True)))
    q = np.random.default_rng(3).standard_normal((heads * per_head, dim))
    scale = choose_scale(q, k)
    y, state = attend_arrays(q, k, v, scale=scale, return_state=True)
    assert relative_error(y, attend(q, decoded(k), decoded(v), scale)[0]) <= 1e-3
    padding = -tokens % 64 - -tokens % 16  # rows behind the last tile, whose gains and shapes are not read
    assert (state.tokens, state.bytes_read) == (tokens, k.nbytes + v.nbytes - 2 * 2 * heads * padding)
    logits = np.einsum("hrd,thd->hrt", q.reshape(heads, per_head, dim), decoded(k)).reshape(len(q), tokens) * scale
    assert np.abs(score_arrays(q, k, scale=scale) - logits).max() <= 1e-3 * np.abs(logits).max()


def test_the_largest_gains_and_shapes():
    own, most = product(24, 20, 6), {"gains": (255, 256), "shapes": (15, 16)}
    k, v = (coded(own, 100, 1, s, **most) for s in (StreamId.K, StreamId.V))
    q = np.random.default_rng(3).standard_normal((2, 24))
    scale = choose_scale(q, k)
    assert relative_error(attend_arrays(q, k, v, scale=scale), attend(q, decoded(k), decoded(v), scale)[0]) <= 1e-3


@pytest.mark.parametrize("shares", ["alike", "one far above"])
def test_many_tokens(shares):
    tokens, own = 2_000 if INTERPRETED else 100_000, product(16, 12, 5, seed=1)
    k = np.zeros((tokens, 1, 16), np.float32)
    k[tokens // 3, 0, 0] = 0 if shares == "alike" else 16 * np.log(2) * 4
    v, q = coded(own, tokens, 1, StreamId.V, gains=(200, 201)), np.zeros((1, 16), np.float32)
    q[0, 0] = 1
    k = kv.encode_array(k, "raw", stream="k")
    assert relative_error(attend_arrays(q, k, v), attend(q, decoded(k), decoded(v))[0]) <= 1e-3


def test_rows_of_zeros_are_zero():
    own, q = product(16, 12, 5), np.ones((2, 16))
    k, v = (coded(own, 70, 1, s, gains=(0, 1)) for s in (StreamId.K, StreamId.V))
    assert not score_arrays(q, k).any()
    assert not attend_arrays(q, k, v).any()


@pytest.mark.parametrize("first", [0, 77])
@pytest.mark.parametrize("values", ["pq", "int4/token/g64", "raw"])
def test_keys_before_their_rotary_embedding(first, values):
    turned = product(40, 30, 7, rotation=Rotation.of_base(50.0, 32))
    k, v = (
        replace(coded(turned, 150, 1, StreamId.K), first=first),
        coded(product(40, 30, 7, seed=2), 150, 1, StreamId.V),
    )
    if values != "pq":
        v = kv.encode_array(decoded(v), values, stream="v")
    q = np.random.default_rng(3).standard_normal((3, 40))
    scale = choose_scale(q, k)
    assert relative_error(attend_arrays(q, k, v, scale=scale), attend(q, decoded(k), decoded(v), scale)[0]) <= 1e-3


def test_states_of_parts_merge():
    own, q = product(24, 20, 6), np.random.default_rng(3).standard_normal((4, 24))
    both = [coded(own, 320, 2, s, n) for n, s in enumerate((StreamId.K, StreamId.V))]
    scale, states = choose_scale(q, both[0]), []
    for span in (slice(0, 2), slice(2, 5)):
        parts = [replace(e, full=e.full[span], tokens=64 * len(e.full[span]), errors=e.errors[span]) for e in both]
        states.append(attend_arrays(q, *parts, scale=scale, return_state=True)[1])
    merged, whole = states[0].merge(states[1]).output(), attend_arrays(q, *both, scale=scale)
    assert relative_error(merged, whole) <= 1e-6


def test_tiers_leave_product_codes_whole():
    own, q = product(24, 20, 6), np.random.default_rng(3).standard_normal((4, 24))
    k, v = (coded(own, 200, 2, s, n) for n, s in enumerate((StreamId.K, StreamId.V)))
    assert np.array_equal(attend_arrays(q, k, v, tiers=(2, 0.1)), attend_arrays(q, k, v))


def test_damaged_codes_are_refused():
    own, q = product(16, 12, 5), np.ones((2, 16))
    k, v = (coded(own, 64, 1, s) for s in (StreamId.K, StreamId.V))
    v.full[0, 0, 64 + 9] = 16
    with pytest.raises(CorruptRecord, match="row 9 of a head: shape 16"):
        attend_arrays(q, k, v)
    with pytest.raises(SpecError, match="needs product codes"):
        attend_arrays(q, k, replace(v, dictionary=None))


def test_the_documents_python_is_the_twins():
    own, rng = blocks(), np.random.default_rng(0)
    for _ in range(500):
        held, none = attention_product_twin.Centroids(Books(*[None] * 2, (1,), *[None] * 2)), None
        held.exponent, held.total = (
            int(rng.integers(-200, 200)),
            int(2.0 ** rng.uniform(0, 31)) * int(rng.integers(0, 2)),
        )
        unit, total = held.exponent + int(rng.integers(-40, 40)), int(2.0 ** rng.uniform(0, 30))
        exponent, down = own["make_room"](held.exponent, held.total, unit, total)
        wanted = attention_twin.round_half(held.total, down)
        assert attention_product_twin.make_room(held, unit, total) == unit - exponent
        assert (held.exponent, held.total) == (exponent, wanted)
        sums = (rng.standard_normal(5) * 2.0 ** rng.integers(0, 30)).astype(int).tolist()
        mean = none if rng.random() < 0.2 else rng.integers(-(2**22), 2**22 + 1, 5)
        scale, gain = (int(n) * int(rng.integers(0, 5) > 0) for n in rng.integers(0x80, 0x7F80, 2))
        power = int(rng.integers(-60, 60))
        books = Books(*[none] * 5, mean, power)
        told = (rng.standard_normal(5) * 2.0 ** rng.integers(0, 30)).astype(int).tolist()
        factor = int(rng.integers(0x80, 0x7F80)) * int(rng.integers(0, 2))
        meant = none if mean is none else mean.tolist()
        document = own["put_together"](sums, scale, meant, gain, power, told, factor)
        assert document == attention_product_twin.put_together(sums, scale, gain, books, told, factor)
