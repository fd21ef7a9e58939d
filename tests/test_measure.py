"""Error measures: hand-computed cases, and naive loops beside them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from kvcodec.dumps import open_dump
from kvcodec.errors import DtypeError, NonFiniteError, ShapeError, SpecError
from kvcodec.layout import StreamId
from kvcodec.measure import attention
from kvcodec.measure.attention import attention_error
from kvcodec.measure.error import RowError, WorstChannel, WorstToken

GEMMA = Path(__file__).parent / "data" / "gemma3_270m_512_3layers.safetensors"


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- rows


def test_row_error_by_hand():
    original = np.array([[[3.0, 0.0]], [[4.0, 2.0]]], np.float32)
    decoded = np.array([[[3.0, 1.0]], [[4.0, 0.0]]], np.float32)
    error = RowError()
    error.add(original, decoded)
    assert error.relative == math.sqrt(5 / 29)
    assert error.worst_channel == WorstChannel(0, 1, math.sqrt(5 / 4))
    assert error.worst_token == WorstToken(1, math.sqrt(4 / 20))
    assert error.max_abs == 2
    assert error.snr_db == pytest.approx(10 * math.log10(29 / 5), abs=1e-12)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32, np.float64])
def test_row_error_does_not_depend_on_blocks_and_equals_loops(dtype):
    original = normal(1, 50, 3, 8).astype(dtype)
    decoded = (original.astype(np.float32) + 0.1 * normal(2, 50, 3, 8)).astype(dtype)
    whole, parts = RowError(), RowError()
    whole.add(original, decoded)
    for start in range(0, 50, 7):
        parts.add(original[start : start + 7], decoded[start : start + 7])
    assert parts.tokens == whole.tokens == 50
    assert parts.worst_token == whole.worst_token
    assert parts.worst_channel[:2] == whole.worst_channel[:2]
    assert parts.relative == pytest.approx(whole.relative, rel=1e-13)
    a, b = original.astype(float).tolist(), decoded.astype(float).tolist()
    flat = [(x, y) for rows in zip(a, b, strict=True) for r in zip(*rows, strict=True) for x, y in zip(*r, strict=True)]
    assert len(flat) == 50 * 3 * 8
    naive = math.sqrt(sum((x - y) ** 2 for x, y in flat) / sum(x * x for x, _ in flat))
    assert whole.relative == pytest.approx(naive, rel=1e-12)
    channels = {
        (h, c): math.sqrt(
            sum((a[t][h][c] - b[t][h][c]) ** 2 for t in range(50)) / sum(a[t][h][c] ** 2 for t in range(50))
        )
        for h in range(3)
        for c in range(8)
    }
    worst = max(channels, key=channels.get)
    assert whole.worst_channel[:2] == worst
    assert whole.worst_channel.relative == pytest.approx(channels[worst], rel=1e-12)
    assert whole.max_abs == max(abs(x - y) for x, y in flat)


def test_row_error_of_nothing_and_of_exact_rows():
    error = RowError()
    assert error.as_dict() == {
        "tokens": 0, "relative": 0.0, "snr_db": None, "max_abs": 0.0, "worst_channel": None, "worst_token": None,
    }  # fmt: skip
    error.add(np.ones((2, 1, 4), np.float32), np.ones((2, 1, 4), np.float32))
    error.add(np.ones((0, 1, 4), np.float32), np.ones((0, 1, 4), np.float32))
    assert error.relative == 0
    assert error.snr_db == math.inf
    assert error.worst_token == WorstToken(0, 0.0)
    assert error.tokens == 2


def test_row_error_of_zero_rows_is_infinite_and_null_in_json():
    error = RowError()
    error.add(np.zeros((1, 1, 2), np.float32), np.array([[[0, 1]]], np.float32))
    assert error.relative == math.inf
    assert error.worst_channel == WorstChannel(0, 1, math.inf)
    told = json.loads(json.dumps(error.as_dict(), allow_nan=False))
    assert told["relative"] is None
    assert told["worst_channel"] == {"head": 0, "channel": 1, "relative": None}


def test_row_error_refuses_and_counts_nothing():
    error = RowError(layer=3, stream="k")
    rows = np.ones((4, 2, 8), np.float32)
    error.add(rows, rows)
    bad = rows.copy()
    bad[2, 1, 5] = np.nan
    with pytest.raises(NonFiniteError, match=r"layer 3, stream k, token 6, head 1, channel 5"):
        error.add(bad, rows)
    with pytest.raises(NonFiniteError, match=r"stream k \(decoded\), token 6"):
        error.add(rows, bad)
    with pytest.raises(ShapeError, match="decoded"):
        error.add(rows, rows[:3])
    with pytest.raises(ShapeError, match=r"was \(2, 8\)"):
        error.add(rows[:, :1], rows[:, :1])
    with pytest.raises(ShapeError, match="want"):
        error.add(rows[0], rows[0])
    with pytest.raises(DtypeError, match="int32"):
        error.add(rows.astype(np.int32), rows)
    assert error.tokens == 4
    assert error.relative == 0


# ---- attention


def naive_attention(q, positions, scale, window, k, v):
    """Logits by (head, query): {token: logit}; outputs (q_heads, positions, dim)."""
    logits, outputs = {}, np.zeros((*q.shape[:2], v.shape[2]))
    share = q.shape[0] // k.shape[1]
    for i in range(q.shape[0]):
        for j, p in enumerate(positions.tolist()):
            seen = [t for t in range(p + 1) if window is None or t > p - window]
            row = {
                t: scale * sum(float(a) * float(b) for a, b in zip(q[i, j], k[t, i // share], strict=True))
                for t in seen
            }
            top = max(row.values())
            total = sum(math.exp(x - top) for x in row.values())
            for t, x in row.items():
                outputs[i, j] += math.exp(x - top) / total * v[t, i // share].astype(float)
            logits[i, j] = row
    return logits, outputs


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("logits_max", [1, 40, 1 << 20])
def test_attention_error_equals_naive(monkeypatch, window, logits_max):
    monkeypatch.setattr(attention, "_LOGITS_MAX", logits_max)
    q, k, v = normal(1, 4, 6, 8), normal(2, 20, 2, 8), normal(3, 20, 2, 5)
    k_hat, v_hat = k + 0.1 * normal(4, *k.shape), v + 0.1 * normal(5, *v.shape)
    positions = np.array([3, 19, 0, 7, 7, 12])
    got = attention_error(q, positions, 0.3, window, k, v, k_hat, v_hat)
    logits, outputs = naive_attention(q, positions, 0.3, window, k, v)
    logits_hat, k_only = naive_attention(q, positions, 0.3, window, k_hat, v)
    differences = [logits_hat[key][t] - x for key, row in logits.items() for t, x in row.items()]
    assert got.queries == 24
    assert got.logits == len(differences)
    assert got.logit_max == pytest.approx(max(map(abs, differences)), rel=1e-9)
    assert got.logit_rms == pytest.approx(math.sqrt(sum(d * d for d in differences) / len(differences)), rel=1e-9)
    v_only = naive_attention(q, positions, 0.3, window, k, v_hat)[1]
    both = naive_attention(q, positions, 0.3, window, k_hat, v_hat)[1]
    for told, hat in ((got.k_only, k_only), (got.v_only, v_only), (got.both, both)):
        assert told.relative == pytest.approx(
            np.linalg.norm(hat - outputs) / np.linalg.norm(outputs), rel=1e-9, abs=1e-12
        )
        by_query = np.linalg.norm(hat - outputs, axis=2) / np.linalg.norm(outputs, axis=2)
        assert told.worst_relative == pytest.approx(by_query.max(), rel=1e-9, abs=1e-12)
        at_worst = by_query[told.worst_head][positions == told.worst_position]
        assert at_worst.max() == pytest.approx(by_query.max(), rel=1e-9, abs=1e-12)


def test_attention_error_by_hand():
    """One query that sees two tokens with equal logits: the output is their V's mean."""
    q = np.array([[[1.0]]], np.float32)
    k, v = np.zeros((3, 1, 1), np.float32), np.array([[[1.0]], [[3.0]], [[99.0]]], np.float32)
    k_hat, v_hat = k.copy(), v.copy()
    k_hat[1] = 2 * math.log(3)  # at scale 1/2 the logit is log 3: weights 1/4, 3/4
    v_hat[0] = 2.0
    k_hat[2] = v_hat[2] = 1000.0  # not visible
    got = attention_error(q, np.array([1]), 0.5, None, k, v, k_hat, v_hat)
    assert got.logit_max == pytest.approx(math.log(3), rel=1e-6)
    assert got.logit_rms == pytest.approx(math.log(3) / math.sqrt(2), rel=1e-6)
    assert got.k_only.relative == pytest.approx(0.5 / 2, rel=1e-6)
    assert got.v_only.relative == pytest.approx(0.5 / 2, rel=1e-6)
    assert got.both.relative == pytest.approx(0.75 / 2, rel=1e-6)
    assert (got.both.worst_head, got.both.worst_position) == (0, 1)


def test_attention_error_is_zero_for_itself_and_null_in_json_where_infinite():
    q, k, v = normal(1, 2, 3, 4), normal(2, 9, 1, 4), normal(3, 9, 1, 4)
    same = attention_error(q, np.array([0, 4, 8]), 1.0, None, k, v, k, v)
    assert same.both.relative == same.logit_max == same.logit_rms == 0
    zero = attention_error(q, np.array([0, 4, 8]), 1.0, None, k, 0 * v, k, v)
    told = json.loads(json.dumps(zero.as_dict(), allow_nan=False))
    assert told["both"]["relative"] is None
    assert told["k_only"]["relative"] == 0


def test_attention_error_refuses():
    good = {
        "q": normal(1, 4, 3, 8), "positions": np.array([0, 4, 8]), "scale": 0.5, "window": None,
        "k": normal(2, 9, 2, 8), "v": normal(3, 9, 2, 8), "k_hat": normal(2, 9, 2, 8), "v_hat": normal(3, 9, 2, 8),
    }  # fmt: skip
    nan = good["k"].copy()
    nan[5, 1, 2] = np.nan
    cases = [
        ({"positions": np.array([0, 4, 9])}, ShapeError, "9 at 2, but there are 9 tokens"),
        ({"positions": np.array([-1, 4, 8])}, ShapeError, "-1 at 0"),
        ({"positions": np.array([0, 4])}, ShapeError, "positions"),
        ({"positions": np.array([0.0, 4, 8])}, ShapeError, "integers"),
        ({"q": normal(1, 3, 3, 8)}, ShapeError, "multiple of 2 heads"),
        ({"q": normal(1, 4, 3, 7)}, ShapeError, "q: shape"),
        ({"q": normal(1, 4, 0, 8), "positions": np.zeros(0, int)}, ShapeError, "q: shape"),
        ({"v": normal(3, 8, 2, 8)}, ShapeError, "v:"),
        ({"k_hat": normal(2, 9, 2, 7)}, ShapeError, "k_hat"),
        ({"v_hat": normal(2, 8, 2, 8)}, ShapeError, "v_hat"),
        ({"scale": 0.0}, SpecError, "scale"),
        ({"scale": math.nan}, SpecError, "scale"),
        ({"window": 0}, SpecError, "window"),
        ({"k_hat": nan}, NonFiniteError, "stream k_hat, token 5, head 1, channel 2"),
        ({"v": nan}, NonFiniteError, "stream v, token 5, head 1, channel 2"),
        ({"k": good["k"].astype(int)}, DtypeError, "k: dtype"),
    ]
    for change, error, text in cases:
        with pytest.raises(error, match=text):
            attention_error(**(good | change))


def test_attention_error_of_the_real_dump():
    """Rounding K to bfloat16 twice changes nothing; one-sixteenth noise on K tells more in logits than on V."""
    with open_dump(GEMMA) as dump:
        for layer in dump.layers:
            q = dump.queries(layer)
            k, v = (dump.rows(layer, stream, 0, 512).astype(np.float32) for stream in (StreamId.K, StreamId.V))
            k_hat, v_hat = (a * (1 + normal(7, *a.shape) / 256) for a in (k, v))
            got = attention_error(q.q, q.positions, q.scale, q.window, k, v, k_hat, v_hat)
            assert got.queries == q.q.shape[0] * q.q.shape[1]
            assert got.logits == 4 * int((q.positions + 1).sum())  # the window of 512 hides nothing here
            assert 0 < got.logit_rms < got.logit_max < 1
            assert 0 < got.v_only.relative < 1 / 128
            assert got.both.relative == pytest.approx(math.hypot(got.k_only.relative, got.v_only.relative), rel=0.25)
