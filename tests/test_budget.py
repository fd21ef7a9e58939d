"""Bytes by arithmetic, against the numbers that must come out and against real encodes."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvcodec as kv
from kvcodec.errors import SpecError
from kvcodec.layout import StreamId
from kvcodec.measure.budget import Budget, cache_bytes, sparse_code_bytes
from tests import reference

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
K64, V64 = "int4/channel/g64", "int4/token/g64"
ALL_CODED = {"residual": 0, "sinks": 0}


def stored_bytes(path, model, tokens, k, v, residual, sinks):
    """payload_bytes of a real store."""
    rng = np.random.default_rng(0)
    with kv.open(path, "w", model=model, k=k, v=v, residual=residual, sinks=sinks) as store:
        for number, layer in enumerate(model.layers):
            rows = (rng.standard_normal((tokens, s.heads, s.dim)).astype(ml_dtypes.bfloat16) for s in layer.streams)
            if layer.streams:
                store.sequence("a").append(number, *rows)
        store.sync()
        return store.stats()


def test_1048576_numbers_take_589824_bytes():
    model = kv.Model.uniform(1, 8, 64)
    budget = cache_bytes(model, 1024, k=K64, v=V64, **ALL_CODED)
    assert budget.coded_numbers == 1_048_576
    assert (budget.payload_bytes, budget.raw_bytes) == (589_824, 0)
    assert budget.payload_bytes == 576 * KIB
    assert round(budget.ratio, 3) == 3.556
    assert budget.bytes_per_number == 0.5625
    rows = np.ones((1024, 8, 128), ml_dtypes.bfloat16)
    for spec, stream in ((K64, "k"), (V64, "v")):
        assert kv.encode_array(rows, spec, stream=stream).nbytes == 589_824


def test_one_layer_takes_9_359375_mib(tmp_path):
    model = kv.Model.uniform(1, 8, 128)
    sizes = {"k": K64, "v": V64, "residual": 128, "sinks": 0}
    budget = cache_bytes(model, 8192, **sizes)
    assert budget.payload_bytes == 9.359375 * MIB
    stats = stored_bytes(tmp_path / "a.kvlog", model, 8192, **sizes)
    assert stats.payload_bytes == budget.payload_bytes
    assert (stats.coded_bytes, stats.coded_numbers) == (budget.coded_bytes, budget.coded_numbers)
    assert stats.raw16_bytes == budget.raw16_bytes


def test_32_layers_take_299_5_mib():
    model = kv.Model.uniform(32, 8, 128)
    assert cache_bytes(model, 8192, k=K64, v=V64, residual=128, sinks=0).payload_bytes == 299.5 * MIB


@pytest.mark.parametrize(("heads", "size"), [(32, 4 * GIB), (8, GIB)])
def test_16_bit_rows_of_32_layers(heads, size):
    model = kv.Model.uniform(32, heads, 128)
    budget = cache_bytes(model, 8192, k="raw", v="raw", **ALL_CODED)
    assert (budget.raw16_bytes, budget.payload_bytes, budget.ratio) == (size, size, 1.0)


def test_the_symmetric_example():
    x = np.float32([-1, -0.2, 0.3, 1])
    assert np.rint(x / np.float32(1 / 7)).tolist() == [-7, -1, 2, 7]
    scale, zero = reference.choose_steps(x, symmetric=True)
    assert (reference.round_group(x, scale, zero, symmetric=True).astype(int) - 8).tolist() == [-7, -1, 2, 7]
    rows = np.zeros((1, 1, 16), np.float32)
    rows[0, 0, :4] = x
    encoded = kv.encode_array(rows, "int4/token/g16/sym", dtype=ml_dtypes.bfloat16)
    decoded = kv.decode_array(encoded, dtype=np.float32)[0, 0, :4]
    step = encoded.tail[0, 0, :2].view(ml_dtypes.bfloat16).astype(np.float32)[0]
    assert 1 / 7 <= step <= 1 / 7 * (1 + 2**-7)
    assert (decoded / step).tolist() == [-7, -1, 2, 7]


def test_six_pairs_of_a_dictionary_code_take_18_bytes():
    raw = cache_bytes(kv.Model.uniform(1, 1, 128, dtype="float16"), 1, k="raw", v="raw", **ALL_CODED)
    assert raw.payload_bytes == 2 * 256  # one vector of K, one of V
    assert sparse_code_bytes(6) == 18
    assert 32 * 8 * sparse_code_bytes(6) == 4608


@pytest.mark.parametrize("group", [32, 64, 128])
def test_bytes_a_number_follow_the_group(group):
    model = kv.Model.uniform(1, 2, 128)
    for symmetric, metadata in (("", 4), ("/sym", 2)):
        k, v = f"int4/channel/g{group}{symmetric}", f"int4/token/g{group}{symmetric}"
        budget = cache_bytes(model, 256, k=k, v=v, **ALL_CODED)
        assert budget.bytes_per_number == 0.5 + metadata / group


SPECS = ["int4/channel/g64", "int4/channel/g128", "int4/token/g32", "int4/token/g64/sym", "raw"]


@given(
    tokens=st.integers(1, 400),
    residual=st.sampled_from([0, 1, 63, 64, 128]),
    sinks=st.sampled_from([0, 1, 4, 70]),
    k=st.sampled_from(SPECS),
    v=st.sampled_from(SPECS),
    dims=st.sampled_from([(16, 16), (24, 40), (80, 64)]),
    heads=st.integers(1, 3),
)
def test_a_budget_is_what_a_store_takes(tmp_path_factory, tokens, residual, sinks, k, v, dims, heads):
    model = kv.Model((kv.Layer.kv(heads, dims[0], v_head_dim=dims[1]), kv.Layer(), kv.Layer.kv(1, 16)))
    sizes = {"k": k, "v": v, "residual": residual, "sinks": sinks}
    budget = cache_bytes(model, tokens, **sizes)
    stats = stored_bytes(tmp_path_factory.mktemp("budget") / "a.kvlog", model, tokens, **sizes)
    assert budget == Budget(
        stats.raw16_bytes, stats.coded_bytes, stats.coded_numbers, stats.payload_bytes - stats.coded_bytes
    )


def test_other_streams_are_raw():
    model = kv.Model((kv.Layer((kv.Stream(StreamId.C, 1, 512), kv.Stream(StreamId.KR, 1, 64))),))
    assert cache_bytes(model, 100, k=K64, v=V64, residual=128, sinks=4).payload_bytes == 2 * 100 * (512 + 64)


def test_nothing_takes_nothing():
    empty = cache_bytes(kv.Model.uniform(1, 1, 16), 0, k=K64, v=V64, residual=128, sinks=4)
    assert empty == Budget()
    assert empty.ratio != empty.ratio
    assert empty.bytes_per_number != empty.bytes_per_number


def test_negative_sizes_are_refused():
    model = kv.Model.uniform(1, 1, 16)
    for wrong in ({"tokens": -1}, {"residual": -1}, {"sinks": -1}):
        sizes = {"tokens": 1, "residual": 0, "sinks": 0} | wrong
        with pytest.raises(SpecError, match="must be 0 or more"):
            cache_bytes(model, sizes["tokens"], k=K64, v=V64, residual=sizes["residual"], sinks=sizes["sinks"])


def test_a_long_cache_is_programmed_3_45_times_smaller_than_16_bit(tmp_path):
    """32 layers x 8 heads x 128 x 4096 tokens on tlc, residual 0, every frame, header and page counted."""
    model = kv.Model.uniform(32, 8, 128)
    rows = np.random.default_rng(0).standard_normal((4096, 8, 128), np.float32).astype(ml_dtypes.bfloat16)
    with kv.open(tmp_path / "a.kvlog", "w", model=model, k=K64, v=V64, **ALL_CODED) as store:
        for layer in range(32):
            store.sequence("a").append(layer, rows, rows)
    with kv.open(tmp_path / "a.kvlog") as store:
        stats = store.stats()
    assert stats.raw16_bytes == 512 * MIB
    assert stats.coded_ratio == 32 / 9
    assert stats.ratio(stats.programmed_bytes) >= 3.45
