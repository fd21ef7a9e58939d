"""Whole dumps and logs: how far one is from another."""

import numpy as np
import pytest

from kvcodec.bulk.compare import compare
from kvcodec.bulk.decode import decode_log
from kvcodec.bulk.encode import encode_dump
from kvcodec.errors import (
    DumpError,
    ShapeError,
)
from tests.caches import rows
from tests.test_bulk import REAL, dump_fixture, log_fixture, make_dump, write_dump  # noqa: F401


def test_a_log_and_its_decoded_dump_compare_alike(tmp_path, dump, log):
    decode_log(log, tmp_path / "b.kvlog")  # the name says nothing
    (one, other) = (compare(dump, path).as_dict() for path in (log, tmp_path / "b.kvlog"))
    assert one["layers"] == other["layers"]
    assert one["total"] == other["total"]
    assert (one["sequence"], other["sequence"]) == ("chat", None)
    assert one["total"]["attention"] is None


def test_the_errors_are_those_of_the_rows(tmp_path):
    original = {f"{s}.{n}": rows(n, s, 70, dtype=np.float32) for n in range(2) for s in "kv"}
    changed = {name: array.copy() for name, array in original.items()}
    changed["v.1"][7, 1, 5] += 3
    result = compare(write_dump(tmp_path / "a.safetensors", original), write_dump(tmp_path / "b.safetensors", changed))
    v = result.layers[1].v
    assert v.relative == pytest.approx(3 / np.linalg.norm(original["v.1"]), rel=1e-6)
    assert (v.worst_token.token, v.worst_channel[:2]) == (7, (1, 5))
    assert [layer.k.relative for layer in result.layers] == [0, 0]
    both = np.linalg.norm([np.linalg.norm(original[f"v.{n}"]) for n in range(2)])
    assert result.v.relative == pytest.approx(3 / both, rel=1e-6)
    assert result.largest_relative == v.relative


def test_what_cannot_be_compared_is_said(tmp_path, dump, log):
    with pytest.raises(ShapeError, match="300 tokens, want 70"):
        compare(make_dump(tmp_path / "x.safetensors", 70), log)
    with pytest.raises(ShapeError, match="layers 0,1, want 0,1,2"):
        compare(make_dump(tmp_path / "x.safetensors", 300, (0, 1, 2)), log)
    with pytest.raises(ShapeError, match=r"layer 0: \(heads, dim\)"):
        compare(make_dump(tmp_path / "x.safetensors", 300, heads=4), log)
    with pytest.raises(DumpError, match="a kvcodec log, not a dump"):
        compare(log, dump)


def test_k_by_channel_beats_k_by_token_on_a_real_dump(tmp_path):
    encode_dump(REAL, tmp_path / "channel.kvlog")
    encode_dump(REAL, tmp_path / "token.kvlog", k="int4/token/g64")
    channel, token = (compare(REAL, tmp_path / f"{name}.kvlog") for name in ("channel", "token"))
    for a, b in zip(channel.layers, token.layers, strict=True):
        assert a.attention.k_only.relative < b.attention.k_only.relative
        assert a.attention.v_only == b.attention.v_only
    assert channel.attention.k_only < token.attention.k_only / 4
    assert channel.attention.both < 0.06
    assert channel.attention.logits == sum(layer.attention.logits for layer in channel.layers)
