"""Attention on encoded arrays, and its precision: against float64 attention over the same dequantized rows."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import kvcodec as kv
from kvcodec.attention.arrays import attend_arrays, score_arrays
from kvcodec.dumps import open_dump
from kvcodec.errors import CorruptRecord, DtypeError, NonFiniteError, ShapeError, SpecError
from kvcodec.layout import StreamId
from tests import attention_twin
from tests.attention_reference import attend, relative_error, worst_error

GEMMA = Path(__file__).parent / "data" / "gemma3_270m_512_3layers.safetensors"
DOCUMENT = Path(__file__).parent.parent / "docs" / "attention.md"
LAYERS = [5, 8, 17]


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def decoded(encoded):
    return kv.decode_array(encoded, dtype=np.float32)


def encode(k, v, k_spec="int4/channel/g64", v_spec="int4/token/g64"):
    return kv.encode_array(k, k_spec, stream="k"), kv.encode_array(v, v_spec, stream="v")


# -- precision: every number of the document's table -----------------------------------------------------------------


def measure_layer(layer, query_bits, specs=("int4/channel/g64", "int4/token/g64")):
    """(Frobenius, worst query) of all of the dump's queries of a layer, each of which sees what it saw."""
    with open_dump(GEMMA) as dump:
        k, v = (dump.rows(layer, s, 0, 512) for s in (StreamId.K, StreamId.V))
        queries = dump.queries(layer)
    found, wanted = [], []
    for n, position in enumerate(queries.positions.tolist()):
        first = 0 if queries.window is None else max(0, position + 1 - queries.window)
        ek, ev = encode(k[first : position + 1], v[first : position + 1], *specs)
        q = queries.q[:, n]
        found.append(attend_arrays(q, ek, ev, scale=queries.scale, query_bits=query_bits))
        wanted.append(attend(q, decoded(ek), decoded(ev), queries.scale)[0])
    found, wanted = np.concatenate(found), np.concatenate(wanted)
    return relative_error(found, wanted), worst_error(found, wanted)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    "specs", [("int4/channel/g64", "int4/token/g64"), ("int8/token/g64", "int2/channel/g32"), ("raw", "raw")]
)
def test_a_real_model(layer, specs):
    whole, worst = measure_layer(layer, 16, specs)
    assert whole <= 5e-4
    assert worst <= 5e-3
    assert measure_layer(layer, 8, specs)[0] <= (5e-2 if specs[0].startswith("int4") else 1e-1)


def make_long_tail(tail=131_072, dim=16):
    """q, k, v where one token has 2**16 times the weight of each of `tail` others."""
    k = np.zeros((tail + 1, 1, dim), np.float32)
    k[tail // 3, 0, 0] = 16 * math.log(2)
    q = np.zeros((1, dim), np.float32)
    q[0, 0] = math.sqrt(dim)
    v = normal(3, 1, 1, dim) + 0.2 * normal(4, tail + 1, 1, dim)
    v[tail // 3] = -v[tail // 3]
    return q, k, v


def measure_long(style, query_bits=16, specs=("int8/channel/g64", "int8/token/g16")):
    q, k, v = make_long_tail()
    if style == "flat":
        q = np.zeros_like(q)
    ek, ev = encode(k, v, *specs)
    found, state = attend_arrays(q, ek, ev, query_bits=query_bits, return_state=True)
    wanted, sums = attend(q, decoded(ek), decoded(ev))
    return relative_error(found, wanted), abs(float(state.log_sum_exp()[0] - sums[0]))


@pytest.mark.parametrize("style", ["one token", "flat"])
@pytest.mark.parametrize(
    "specs", [("int8/channel/g64", "int8/token/g16"), ("raw", "raw"), ("int4/token/g16", "int4/channel/g64")]
)
def test_long_tails_keep_their_weight(style, specs):
    error, of_sum = measure_long(style, specs=specs)
    assert error <= 1e-3
    assert of_sum <= 1e-3


@pytest.mark.parametrize("spec", ["int4/token/g64", "int8/channel/g64", "raw"])
def test_tokens_that_nobody_sees_but_are_large(spec):
    q, k, v = normal(1, 4, 64), normal(2, 256, 1, 64), normal(3, 256, 1, 64)
    k[::64, 0] = -6 * q.sum(axis=0)
    v[::64] *= 2**20
    ek, ev = encode(k, v, "int8/token/g64", spec)
    assert relative_error(attend_arrays(q, ek, ev), attend(q, decoded(ek), decoded(ev))[0]) <= 2e-4


def table_rows():
    """The table of the document as tests measure it."""
    rows = {}
    for layer in LAYERS:
        for bits in (16, 8):
            rows[f"layer {layer}, {bits} bits"] = measure_layer(layer, bits)
    for style in ("one token", "flat"):
        rows[f"131,073 tokens, {style}"] = (measure_long(style)[0],) * 2
    return rows


def test_the_documents_table_is_what_is_measured():
    printed = dict(re.findall(r"^\| ([^|]*?) \| ([^|]* \| [^|]*?) \|$", DOCUMENT.read_text(), re.M))
    for name, (whole, worst) in table_rows().items():
        assert printed[name] == f"{whole:.1e} | {worst:.1e}", name


def test_logits_alone():
    ek, _ = encode(normal(1, 300, 2, 72), normal(2, 300, 2, 16))
    q = 3 * normal(3, 4, 72)
    logits = score_arrays(q, ek)
    wanted = np.einsum("hrd,thd->hrt", q.reshape(2, 2, 72), decoded(ek)).reshape(4, 300) / math.sqrt(72)
    assert (logits.shape, logits.dtype) == ((4, 300), np.float32)
    assert np.abs(logits - wanted).max() <= 1e-3 * np.abs(wanted).max()
    assert score_arrays(q, encode(normal(1, 0, 2, 72), normal(2, 0, 2, 72))[0]).shape == (4, 0)


def blocks():
    """The document's Python, by name."""
    namespace = {}
    for code in re.findall(r"^```python [\w-]+\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S):
        exec(code, namespace)
    return namespace


def test_the_documents_python_is_the_twins():
    own, rng = blocks(), np.random.default_rng(0)
    for _ in range(300):
        numbers = (rng.standard_normal(16) * 2.0 ** rng.integers(0, 20)).astype(int).tolist()
        scales = (rng.integers(*sorted(rng.choice(255, 2, replace=False))) * 128 + rng.integers(0, 128, 16)).tolist()
        for width in (8, 16):
            assert own["fold"](numbers, scales, width) == attention_twin.fold_scales(numbers, scales, width)
        number, left = int(rng.standard_normal() * 2.0 ** rng.integers(0, 60)), int(rng.integers(-99, 99))
        factor = int(rng.integers(2**30, 2**31))
        assert own["scale_logit"](number, left, factor) == attention_twin.scale_logit(number, left, factor)
        below = int(2.0 ** rng.uniform(0, 30))
        assert own["raise_two"](below) == attention_twin.raise_two(below)


# -- shapes and forms ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 8, 72, 80, 192, 576])
@pytest.mark.parametrize(
    "specs",
    [("int4/channel/g64", "int4/token/g64"), ("int8/token/g48", "int8/channel/g16/sym"), ("raw", "int4/token/g16")],
)
def test_head_dims(dim, specs):
    k, v = normal(dim, 200, 2, dim), normal(dim + 1, 200, 2, 40)
    ek, ev = encode(k, v, *specs)
    q = normal(2, 6, dim)
    y = attend_arrays(q, ek, ev)
    assert (y.shape, y.dtype) == ((6, 40), np.float32)
    assert relative_error(y, attend(q, decoded(ek), decoded(ev))[0]) <= 5e-4


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_queries_of_any_float(dtype):
    ek, ev = encode(normal(1, 70, 2, 16), normal(2, 70, 2, 16))
    q = normal(3, 4, 16).astype(dtype)
    assert np.array_equal(attend_arrays(q, ek, ev), attend_arrays(q.astype(np.float64), ek, ev))


def test_a_query_of_zeros_weighs_all_tokens_alike():
    ek, ev = encode(normal(1, 300, 1, 16), normal(2, 300, 1, 16))
    y, state = attend_arrays(np.zeros((1, 16), np.float32), ek, ev, return_state=True)
    assert y[0] == pytest.approx(decoded(ev)[:, 0].mean(axis=0), abs=1e-4)
    assert state.log_sum_exp()[0] == pytest.approx(math.log(300), abs=1e-4)


def test_no_token_is_zeros_and_no_weight():
    ek, ev = encode(normal(1, 0, 2, 16), normal(2, 0, 2, 24))
    y, state = attend_arrays(normal(3, 4, 16), ek, ev, return_state=True)
    assert np.array_equal(y, np.zeros((4, 24), np.float32))
    assert state.log_sum_exp().tolist() == [-math.inf] * 4
    assert (state.tokens, state.bytes_read) == (0, 0)


def test_one_token_is_its_value():
    ek, ev = encode(normal(1, 1, 1, 16), normal(2, 1, 1, 16), v_spec="raw")
    assert relative_error(attend_arrays(normal(3, 1, 16), ek, ev)[0], decoded(ev)[0, 0]) <= 1e-4


# -- states ----------------------------------------------------------------------------------------------------------


def states_of(parts, q, k, v):
    return [attend_arrays(q, *encode(k[a:b], v[a:b]), return_state=True)[1] for a, b in parts]


def test_states_merge_to_the_whole_in_any_order():
    q, k, v = normal(1, 4, 32) * 3, normal(2, 1024, 2, 32), normal(3, 1024, 2, 32)
    (whole,) = states_of([(0, 1024)], q, k, v)
    parts = states_of([(0, 64), (64, 512), (512, 576), (576, 1024)], q, k, v)
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        merged = parts[order[0]]
        for n in order[1:]:
            merged = merged.merge(parts[n])
        assert relative_error(merged.output(), whole.output()) <= 1e-6
        assert merged.log_sum_exp() == pytest.approx(whole.log_sum_exp(), abs=1e-6)
        assert (merged.tokens, merged.bytes_read) == (whole.tokens, whole.bytes_read)


def test_merging_leaves_its_arguments_and_takes_empty_states():
    q, k, v = normal(1, 2, 16), normal(2, 64, 1, 16), normal(3, 64, 1, 16)
    one, none = states_of([(0, 64), (0, 0)], q, k, v)
    before = one.states.copy(), one.outputs.copy()
    for merged in (one.merge(none), none.merge(one)):
        assert np.array_equal(merged.outputs, one.outputs)
        assert np.array_equal(merged.states, one.states)
    one.merge(one)
    assert np.array_equal(before[0], one.states)
    assert np.array_equal(before[1], one.outputs)
    assert np.array_equal(none.merge(none).output(), np.zeros((2, 16)))


@pytest.mark.parametrize("dim", [1, 7, 17, 20, 25, 40])
def test_states_merge_either_way_whatever_the_channels_are(dim):
    q, k, v = normal(1, 3, dim), normal(2, 128, 1, dim), normal(3, 128, 1, dim)
    v[:64] *= 1e6
    (one, two), (whole,) = states_of([(0, 64), (64, 128)], q, k, v), states_of([(0, 128)], q, k, v)
    for merged in (one.merge(two), two.merge(one)):
        assert merged.outputs.shape == (3, dim)
        assert relative_error(merged.output(), whole.output()) <= 1e-4


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"tokens": 200}, ShapeError),
        ({"tokens": 60}, ShapeError),
        ({"heads": 3}, ShapeError),
        ({"dim": 64}, ShapeError),
        ({"full": lambda a: a[:, :, 64:]}, ShapeError),
        ({"tail": lambda a: a[:0]}, ShapeError),
        ({"full": lambda a: np.concatenate([np.full_like(a[..., :2], 255), a[..., 2:]], axis=2)}, CorruptRecord),
    ],
)
def test_records_that_are_not_what_they_say_are_refused(change, error):
    q, (ek, _) = normal(1, 4, 16), encode(normal(2, 70, 2, 16), normal(3, 70, 2, 16))
    values = {name: value(getattr(ek, name)) if callable(value) else value for name, value in change.items()}
    with pytest.raises(error):
        score_arrays(q, replace(ek, **values))


def test_heads_that_are_strided_are_read_as_they_are():
    q, (ek, ev) = normal(1, 4, 16), encode(normal(2, 70, 4, 16), normal(3, 70, 4, 16))
    some = [replace(e, heads=2, full=e.full[:, ::2], tail=e.tail[:, ::2]) for e in (ek, ev)]
    assert relative_error(attend_arrays(q, *some), attend(q, *map(decoded, some))[0]) <= 5e-4


@pytest.mark.parametrize(("spec", "most"), [("int8/channel/g64", 5e-3), ("int2/channel/g64", 3e-2)])
def test_channels_far_from_zero_cost_what_the_document_says(spec, most):
    q, k, v = normal(1, 4, 64), normal(2, 512, 1, 64), normal(3, 512, 1, 64)
    k[:, :, :4] = 30 + 0.02 * k[:, :, :4]
    ek, ev = encode(k, v, spec, "int4/token/g64")
    assert 5e-4 < relative_error(attend_arrays(q, ek, ev), attend(q, decoded(ek), decoded(ev))[0]) <= most


def test_states_of_other_queries_do_not_merge():
    k, v = normal(2, 64, 1, 16), normal(3, 64, 1, 16)
    (one,), (two,) = (states_of([(0, 64)], normal(1, n, 16), k, v) for n in (1, 2))
    with pytest.raises(ShapeError, match=r"states are of shapes \(1, 16\) and \(2, 16\)"):
        one.merge(two)


def test_the_log_of_the_sum():
    q, k, v = normal(1, 4, 64) * 2, normal(2, 777, 2, 64), normal(3, 777, 2, 64)
    ek, ev = encode(k, v)
    _, state = attend_arrays(q, ek, ev, return_state=True)
    assert state.log_sum_exp() == pytest.approx(attend(q, decoded(ek), decoded(ev))[1], abs=1e-3)
    assert state.tokens == 777


def test_bytes_read_are_those_of_the_records():
    ek, ev = encode(normal(2, 128, 2, 64), normal(3, 128, 2, 64))
    _, state = attend_arrays(normal(1, 4, 64), ek, ev, return_state=True)
    assert state.bytes_read == ek.nbytes + ev.nbytes


# -- errors ----------------------------------------------------------------------------------------------------------


def test_what_is_refused():
    q, (ek, ev) = normal(1, 4, 16), encode(normal(2, 70, 2, 16), normal(3, 70, 2, 24))
    bad = q.copy()
    bad[2, 5] = np.nan
    other, heads = encode(normal(2, 69, 2, 16), normal(3, 70, 1, 24))
    for error, arguments, words in [
        (NonFiniteError, {"q": bad}, "head 2, channel 5"),
        (NonFiniteError, {"q": np.full((4, 16), np.inf)}, "head 0, channel 0"),
        (ShapeError, {"q": q[:3]}, r"q: shape is \(3, 16\), want \(a multiple of 2 heads, 16\)"),
        (ShapeError, {"q": q[:, :15]}, r"q: shape is \(4, 15\)"),
        (ShapeError, {"q": q[None]}, r"q: shape is \(1, 4, 16\)"),
        (ShapeError, {"q": q[:0]}, r"q: shape is \(0, 16\)"),
        (DtypeError, {"q": q.astype(int)}, "got int64"),
        (DtypeError, {"q": [[1, 2]]}, "got int64"),
        (ShapeError, {"k": other}, "k is 69 x 2, v 70 x 2"),
        (ShapeError, {"v": heads}, "k is 70 x 2, v 70 x 1"),
        (SpecError, {"k": ev}, "k is of stream v"),
        (SpecError, {"v": ek}, "v of k"),
        (SpecError, {"scale": 0}, "scale is 0, want a finite number above 0"),
        (SpecError, {"scale": -1.0}, "scale is -1"),
        (SpecError, {"scale": math.nan}, "scale is nan"),
        (SpecError, {"query_bits": 12}, "query_bits is 12, want 8 or 16"),
    ]:
        with pytest.raises(error, match=words):
            attend_arrays(**({"q": q, "k": ek, "v": ev} | arguments))
