"""Dumps in .npz files: stored and compressed members, hostile archives, and what is written."""

import io
import json
import os
import struct
import tempfile
import threading
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcodec.dumps import create_dump, open_dump
from kvcodec.dumps.npz import NpzDump
from kvcodec.errors import DtypeError, DumpError, KvcodecError
from tests.test_dumps import BF16, DIM, HEADS, TOKENS, K, V, as_shape, rows
from tests.test_dumps_npy import described, stacked, with_header

SAVE = {"stored": np.savez, "deflated": np.savez_compressed}


def saved(tmp_path, tensors, how="stored"):
    SAVE[how](tmp_path / "dump.npz", **tensors)
    return tmp_path / "dump.npz"


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def pair(dtype=np.float32):
    return {"k.0": rows(1, dtype), "v.0": rows(2, dtype)}


def archive(path, members, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


def refusal(path, error=DumpError):
    with pytest.raises(error) as caught, open_dump(path) as got:
        [got.rows(layer, s, 0, got.tokens) for layer in got.layers for s in (K, V)]
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("how", SAVE)
@pytest.mark.parametrize("form", ["3-D", "4-D"])
@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
def test_what_numpy_saves_is_read_by_slices(tmp_path, how, form, dtype):
    tensors = {name: as_shape(form, array) for name, array in pair(dtype).items()}
    extra = {"ids": np.arange(7), "words": np.array(["a"]), "model.x": np.ones(3)}
    path = saved(tmp_path, tensors | extra, how)
    with open_dump(path) as got:
        assert isinstance(got, NpzDump)
        assert (got.layers, got.dtype, got.tokens) == ((0,), np.dtype(dtype), TOKENS)
        for stream, whole in zip((K, V), pair(dtype).values(), strict=True):
            for start, stop in ((2, 5), (0, TOKENS), (3, 3)):
                assert got.rows(0, stream, start, stop).tobytes() == whole[start:stop].tobytes()


def test_one_array_of_all_layers(tmp_path):
    array, parts = stacked()
    np.savez(tmp_path / "a.npz", array)
    with open_dump(tmp_path / "a.npz") as got:
        assert got.layers == (0, 1, 2)
        assert np.array_equal(got.rows(2, V, 1, 4), parts[2][1][1:4])


def test_queries_and_metadata(tmp_path):
    tensors = pair() | {"q.0": rows(3)[:, :, :].transpose(1, 0, 2).copy(), "q_pos": np.arange(TOKENS)}
    members = [(f"{name}.npy", npy(array)) for name, array in tensors.items()]
    path = archive(tmp_path / "a.npz", [*members, ("metadata.json", json.dumps({"logit_scale": "0.5"}))])
    with open_dump(path) as got:
        assert got.metadata == {"logit_scale": "0.5"}
        assert got.queries(0).scale == 0.5


def test_only_the_slice_of_a_stored_member_is_read(tmp_path, monkeypatch):
    path = saved(tmp_path, pair())
    asked = []
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, into, at: asked.append(sum(map(len, into))) or real(file, into, at))
    with open_dump(path) as got:
        got.rows(0, K, 2, 4)
    assert sum(asked) == 2 * HEADS * DIM * 4


def test_compressed_members_are_unpacked_once_and_leave_nothing(tmp_path, monkeypatch):
    path = saved(tmp_path, pair(), "deflated")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    before = len(os.listdir("/proc/self/fd"))
    with open_dump(path) as got:
        whole = rows(1)
        bad = []

        def read():
            for start in range(TOKENS):
                bad.extend([] if got.rows(0, K, start, TOKENS).tobytes() == whole[start:].tobytes() else [start])

        threads = [threading.Thread(target=read) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert bad == []
        assert list(got._unpacked) == ["k.0"]
        assert os.listdir(scratch) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_room_to_unpack(tmp_path, monkeypatch):
    path = saved(tmp_path, pair(), "deflated")
    real = os.fstatvfs
    monkeypatch.setattr(os, "fstatvfs", lambda fd: type("Disk", (), {"f_bavail": 0, "f_frsize": real(fd).f_frsize}))
    assert "no room for its" in refusal(path)


def test_what_cannot_be_read(tmp_path):
    for array, text in (
        (rows(1).astype(object), "a pickle: those are never read"),
        (rows(1).astype(">f4"), "big-endian"),
        (np.asfortranarray(rows(1)), "Fortran order"),
        (rows(1).astype(np.uint16), "16-bit integers"),
        (rows(1).astype(np.float64), "is F64, want"),
        (np.zeros((7, 3, 4), "V1"), "V1"),
        (np.zeros((7, 3, 4), [("a", "<f4")]), "structured"),
    ):
        np.savez(tmp_path / "a.npz", allow_pickle=True, **(pair() | {"k.0": array}))
        assert text in refusal(tmp_path / "a.npz", DtypeError)
        np.savez(tmp_path / "a.npz", allow_pickle=True, **(pair() | {"other": array}))  # only what is used matters
        open_dump(tmp_path / "a.npz").close()


def test_members_that_are_there_twice(tmp_path):
    members = [(f"{name}.npy", npy(array)) for name, array in pair().items()]
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = archive(tmp_path / "a.npz", [*members, members[0]])
    assert "'k.0.npy' is there twice" in refusal(path)


def test_archives_that_lie(tmp_path):
    good = saved(tmp_path, pair()).read_bytes()
    at = good.index(b"PK\1\2")
    second = good.index(b"PK\1\2", at + 4)
    changes = [
        ("another's", lambda b: b.__setitem__(slice(second + 42, second + 46), bytes(4))),
        ("is encrypted", lambda b: b.__setitem__(at + 8, 1)),
        ("by method 12", lambda b: b.__setitem__(at + 10, 12)),
        ("is stored, but", lambda b: b.__setitem__(slice(at + 24, at + 28), struct.pack("<I", 1 << 30))),
        ("truncated: member", lambda b: b.__setitem__(slice(at + 20, at + 28), struct.pack("<II", 1 << 20, 1 << 20))),
        ("is another's", lambda b: b.__setitem__(30, ord("x"))),
        ("is another's", lambda b: b.__setitem__(8, 8)),
    ]  # fmt: skip
    for text, change in changes:
        content = bytearray(good)
        change(content)
        (tmp_path / "bad.npz").write_bytes(content)
        message = refusal(tmp_path / "bad.npz")
        assert text in message


def test_members_that_overlap(tmp_path):
    inner = archive(tmp_path / "inner", [("v.0.npy", npy(rows(2)))]).read_bytes()
    body = inner[: inner.index(b"PK\1\2")]  # a whole member, as the content of another
    path = archive(tmp_path / "a.npz", [("k.0.npy", body), ("v.0.npy", npy(rows(2)))])
    content = bytearray(path.read_bytes())
    second = content.index(b"PK\1\2", content.index(b"PK\1\2") + 4)
    inside = content.index(b"PK\3\4", 4)
    content[second + 42 : second + 46] = struct.pack("<I", inside)
    path.write_bytes(content)
    assert f"'v.0.npy' overlaps the one before at byte {inside}" in refusal(path)


def test_bombs(tmp_path):
    header = described(shape="(1000000000, 3, 4)")
    members = [("k.0.npy", with_header(header, bytes(48))), ("v.0.npy", npy(rows(2)))]
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        assert "48 are there" in refusal(archive(tmp_path / "a.npz", members, method))
    path = archive(tmp_path / "b.npz", [("k.0.npy", with_header(header, bytes(48)))], zipfile.ZIP_DEFLATED)
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\1\2")
    content[at + 24 : at + 28] = struct.pack("<I", 0xFFFF0000)  # unpacked size
    path.write_bytes(content)
    assert "can't unpack to 4294901760" in refusal(path)
    (tmp_path / "c.npz").write_bytes(b"PK\5\6" + bytes(8) + struct.pack("<IIH", 200_000_000, 0, 0) + b"x")
    refusal(tmp_path / "c.npz")


def test_a_wrong_checksum_of_a_compressed_member(tmp_path):
    path = saved(tmp_path, pair(), "deflated")
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\1\2")
    content[at + 16] ^= 1
    path.write_bytes(content)
    assert "Bad CRC-32" in refusal(path)


def test_metadata_refused(tmp_path):
    members = [(f"{name}.npy", npy(array)) for name, array in pair().items()]
    for text, why in (
        ("[]", "does not begin"),
        ('{"a": 1}', "table of texts"),
        ('{"a":"b","a":"c"}', "twice"),
        ("{", "JSON"),
    ):
        assert why in refusal(archive(tmp_path / "a.npz", [*members, ("metadata.json", text)]))
    assert "want 1048576 at most" in refusal(
        archive(tmp_path / "a.npz", [*members, ("metadata.json", " " * (2 << 20))])
    )


GOOD = {}
for _how, _save in SAVE.items():
    _file = io.BytesIO()
    _save(_file, **{"k.0": np.ones((1, 1, 2), np.float16), "v.0": np.ones((1, 1, 2), np.float16)})
    GOOD[_how] = _file.getvalue()


@pytest.mark.parametrize("how", SAVE)
def test_every_truncation_is_refused(tmp_path, how):
    whole = GOOD[how]
    path = tmp_path / "cut.npz"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refusal(path)


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(GOOD)),
    st.lists(st.tuples(st.integers(0, 900), st.binary(max_size=4), st.integers(0, 4)), min_size=1, max_size=4),
)
def test_mutants_are_read_or_refused(tmp_path_factory, how, changes):
    content = bytearray(GOOD[how])
    for at, new, removed in changes:
        content[at : at + removed] = new
    path = tmp_path_factory.getbasetemp() / "mutant.npz"
    path.write_bytes(content)
    try:
        with open_dump(path) as got:
            [got.rows(layer, s, 0, got.tokens) for layer in got.layers for s in (K, V)]
    except KvcodecError:
        pass


# ---- writer


def test_numpy_and_zipfile_read_what_is_written(tmp_path):
    tensors = pair(BF16) | {"positions": np.arange(TOKENS), "é.ü": np.zeros((0, 3), np.float32)}
    declared = [(name, array.dtype, array.shape) for name, array in tensors.items()]
    path = tmp_path / "out.npz"
    with create_dump(path, declared, {"model": "ü", "kv_heads": "3"}) as writer:
        for name, array in tensors.items():
            for start in (4, 0, 2, 6):
                if name != "é.ü":
                    writer.write(name, start, array[start : start + 2])
        assert not path.exists()
        writer.commit()
    assert os.listdir(tmp_path) == ["out.npz"]
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert json.loads(archive.read("metadata.json")) == {"model": "ü", "kv_heads": "3"}
        for info in archive.infolist():
            assert zlib.crc32(archive.read(info)) == info.CRC
    with np.load(path) as library:
        assert set(library) == {*tensors, "metadata.json"}
        for name, array in tensors.items():
            assert library[name].shape == array.shape
            assert library[name].tobytes() == array.tobytes()
    with open_dump(path) as got:
        assert got.metadata["model"] == "ü"
        assert got.rows(0, K, 0, TOKENS).tobytes() == tensors["k.0"].tobytes()


def test_the_writer_refuses(tmp_path):
    path = tmp_path / "out.npz"
    with pytest.raises(DumpError, match="there twice"):
        create_dump(path, [("a", BF16, (1,)), ("a", BF16, (1,))], {})
    with pytest.raises(DumpError, match="more than 60000 bytes"):
        create_dump(path, [("a" * 60_001, BF16, (1,))], {})
    with pytest.raises(DumpError, match="metadata of"):
        create_dump(path, [], {"a": "x" * (1 << 20)})
    with pytest.raises(DtypeError, match="npy has no dtype"):
        create_dump(path, [("a", np.complex128, (1,))], {})
    assert os.listdir(tmp_path) == []
    with create_dump(path, [], {}) as writer:
        writer.commit()
    assert zipfile.ZipFile(path).namelist() == []
