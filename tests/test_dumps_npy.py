"""Dumps in .npy files: what numpy writes, what is refused, and what is written."""

import os
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcodec.dumps import create_dump, format_of, open_dump
from kvcodec.dumps.npy import NpyDump
from kvcodec.dumps.npy_header import MAGIC, parse_header
from kvcodec.errors import DtypeError, DumpError, KvcodecError, ShapeError
from tests.test_dumps import BF16, DIM, HEADS, TOKENS, K, V, rows

LAYERS = 3


def stacked(dtype=np.float32, layers=LAYERS, tokens=TOKENS):
    """(layers, 2, heads, tokens, dim), and the rows of each layer and stream."""
    parts = [[rows(2 * n + s, dtype, tokens) for s in range(2)] for n in range(layers)]
    return np.ascontiguousarray([[a.transpose(1, 0, 2) for a in pair] for pair in parts]), parts


def saved(tmp_path, array, name="dump.npy"):
    np.save(tmp_path / name, array)
    return tmp_path / name


def with_header(text, body=b"", version=b"\1\0"):
    wide = version != b"\1\0"
    return MAGIC + version + struct.pack("<I" if wide else "<H", len(text)) + text + body


def described(descr="<f4", fortran="False", shape="(1, 2, 1, 1, 1)"):
    return f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_what_numpy_saves_is_read_by_slices(tmp_path, dtype):
    array, parts = stacked(dtype)
    for name in ("dump.npy", "no_extension"):
        path = saved(tmp_path, array)
        if name != path.name:
            path = path.rename(tmp_path / name)
        with open_dump(path) as got:
            assert isinstance(got, NpyDump)
            assert (got.layers, got.dtype, got.metadata) == ((0, 1, 2), np.dtype(dtype), {})
            for layer, pair in enumerate(parts):
                for stream, whole in zip((K, V), pair, strict=True):
                    for start, stop in ((0, TOKENS), (2, 5), (3, 3)):
                        assert got.rows(layer, stream, start, stop).tobytes() == whole[start:stop].tobytes()


def test_numpy_writes_bfloat16_as_two_void_bytes(tmp_path):
    path = saved(tmp_path, stacked(BF16)[0])
    assert b"'descr': '<V2'" in path.read_bytes()[:128]
    assert np.load(path).dtype == np.dtype("V2")


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_header(tmp_path, version):
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array(file, stacked()[0], version=version)
    open_dump(tmp_path / "a.npy").close()


def test_headers_of_other_writers(tmp_path):
    body = bytes(8)
    texts = [
        b"{'shape': (1,2,1,1,1), 'fortran_order': False, 'descr': '<f4'}",
        b'{"descr": "<f4","fortran_order":False ,"shape":( 1 , 2,1,1 ,1 ,),}  \n',
        described("|V2", shape="(1, 2, 1, 1, 2)"),
    ]
    for text in texts:
        (tmp_path / "a.npy").write_bytes(with_header(text, body))
        open_dump(tmp_path / "a.npy").close()


REFUSED = [
    (b"", DumpError, "does not begin"),
    (MAGIC, DumpError, "npy version"),
    (MAGIC + b"\4\0" + bytes(80), DumpError, "npy version 4.0"),
    (MAGIC + b"\1\1" + bytes(80), DumpError, "npy version 1.1"),
    (MAGIC + b"\1\0\1", DumpError, "without its length"),
    (MAGIC + b"\1\0\x40\0{", DumpError, "truncated: npy header of 64 bytes"),
    (MAGIC + b"\2\0" + b"\xff" * 4, DumpError, "npy header of 4294967295 bytes"),
    (with_header(b""), DumpError, "is no table"),
    (with_header(b"[1]"), DumpError, "is no table"),
    (with_header(b"{}"), DumpError, "once each"),
    (with_header(b"{'descr': '<f4', 'fortran_order': False}"), DumpError, "once each"),
    (with_header(b"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}"), DumpError, "once each"),
    (with_header(b"{'descr': True, 'fortran_order': False, 'shape': ()}"), DumpError, "once each"),
    (with_header(b"{'descr': '<f4', 'fortran_order': 'x', 'shape': ()}"), DumpError, "once each"),
    (with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': __import__('os')}"), DumpError, "once each"),
    (with_header(described(shape="(-1, 2, 1, 1, 1)")), DumpError, "once each"),
    (with_header(described(shape="(1.0,)")), DumpError, "once each"),
    (with_header(described(shape=f"({1 << 63},)")), DumpError, "beyond what numpy holds"),
    (with_header(described(shape="(" + "1, " * 65 + ")")), DumpError, "beyond what numpy holds"),
    (with_header(described(), b"1234567"), DumpError, "takes 8 bytes, 7 are there"),
    (with_header(described(shape="(1, 2, 1, 1000000000000, 1)"), b"12345678"), DumpError, "8 are there"),
    (with_header(described(shape=f"({1 << 62}, 2, 4, 4, 4)"), b"12345678"), DumpError, "8 are there"),
    (with_header(described(), b"123456789"), DumpError, "1 bytes follow"),
    (with_header(described("|O"), b"12345678"), DtypeError, "a pickle: those are never read"),
    (with_header(described(">f4"), b"12345678"), DtypeError, "big-endian"),
    (with_header(described("<i4"), b"12345678"), DtypeError, "array is <i4, want"),
    (with_header(described("<f8"), b"1234567812345678"), DtypeError, "is F64, want"),
    (with_header(described("<u2"), b"1234"), DtypeError, "16-bit integers: save bfloat16 as it is"),
    (with_header(described("|V1"), b"12"), DtypeError, "'|V1', want <f2"),
    (with_header(described("<f4", "True", "(1, 2, 1, 1, 2)"), bytes(16)), DtypeError, "Fortran order"),
    (with_header(b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}"), DtypeError, "structured"),
    (with_header(described(shape="(2,)"), b"12345678"), DumpError, "want (layers, 2, heads, tokens, dim)"),
    (with_header(described(shape="(2, 1, 1, 1, 1)"), b"12345678"), DumpError, "want (layers, 2, heads"),
    (with_header(described(shape="(0, 2, 1, 1, 1)")), DumpError, "no tensor is known"),
    (with_header(b"{" + b"'descr': '<f4', 'shape': (" + b"1" * 60000 + b"}"), DumpError, "once each"),
    (with_header(b"{'shape': (" + b" " * 65000 + b"x}"), DumpError, "once each"),
]


@pytest.mark.parametrize(("content", "error", "text"), REFUSED)
def test_refused(tmp_path, content, error, text):
    path = tmp_path / "bad.npy"
    path.write_bytes(content)
    with pytest.raises(error) as caught:
        open_dump(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_objects_are_never_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    np.save(tmp_path / "a.npy", np.array([Bomb()], object), allow_pickle=True)
    with pytest.raises(DtypeError, match="pickle"):
        open_dump(tmp_path / "a.npy")
    assert not (tmp_path / "exploded").exists()


def test_every_truncation_is_refused(tmp_path):
    whole = saved(tmp_path, stacked(np.float16, 1, 2)[0]).read_bytes()
    for length in range(len(whole)):
        (tmp_path / "cut.npy").write_bytes(whole[:length])
        with pytest.raises(DumpError):
            open_dump(tmp_path / "cut.npy")


@settings(max_examples=300)
@given(st.binary(max_size=120))
def test_any_header_is_parsed_or_refused(text):
    for version in (b"\1\0", b"\2\0"):
        try:
            parse_header(with_header(text, version=version))
            parse_header(with_header(b"{" + text + b"}", version=version))
        except KvcodecError:
            pass


# ---- writer


def declare(layers=(0, 1, 2), dtype=BF16, tokens=TOKENS):
    return [(f"{s}.{n}", dtype, (tokens, HEADS, DIM)) for n in layers for s in "kv"]


@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
def test_what_is_written_is_what_numpy_would_write(tmp_path, dtype):
    array, parts = stacked(dtype)
    with create_dump(tmp_path / "out.npy", declare(dtype=dtype), {"ignored": "x"}) as writer:
        for start in (4, 0, 2, 6):
            for n, pair in enumerate(parts):
                for s, whole in zip("kv", pair, strict=True):
                    writer.write(f"{s}.{n}", start, whole[start : start + 2])
        writer.commit()
    assert (tmp_path / "out.npy").read_bytes() == saved(tmp_path, array).read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["dump.npy", "out.npy"]


def test_layers_that_an_array_cannot_hold(tmp_path):
    path = tmp_path / "out.npy"
    with pytest.raises(ShapeError, match=r"layers differ in shape.*\.npz or \.safetensors can"):
        create_dump(path, [*declare((0,)), *declare((1,), tokens=8)], {})
    with pytest.raises(DtypeError, match="differ in dtype"):
        create_dump(path, [*declare((0,)), *declare((1,), np.float16)], {})
    for tensors in ([*declare(), ("positions", np.int64, (7,))], declare()[:-1], [], declare() + declare()[:1]):
        with pytest.raises(DumpError, match="K and V of layers and nothing else"):
            create_dump(path, tensors, {})
    assert os.listdir(tmp_path) == []


def test_a_row_that_is_missing_leaves_nothing(tmp_path):
    with create_dump(tmp_path / "out.npy", declare(), {}) as writer, pytest.raises(DumpError, match="row 0 of tensor"):
        writer.commit()
    assert os.listdir(tmp_path) == []


def test_the_extension_is_the_format():
    assert [format_of(name) for name in ("a.npy", "a.NPZ", "a.safetensors", "a", "a.b/c.npy")] == [
        "npy", "npz", "safetensors", "safetensors", "npy",
    ]  # fmt: skip
