"""Reader of .kvdict files: a mutated one is read, and rows are coded, rebuilt and attended to with what it holds."""

from __future__ import annotations

import contextlib
import functools
import re
import tempfile
from pathlib import Path

import numpy as np

import kvcodec as kv
from kvcodec.codecs.dictionary import Dictionary, DictionarySet, quantize_atoms
from kvcodec.codecs.rotation import Rotation
from kvcodec.dictionary.artefact import Artefact, read_artefact, write_artefact
from kvcodec.errors import FormatError, KvcodecError
from kvcodec.flash.checksum import crc32c
from kvcodec.layout import KVDICT, KVDICT_ENTRY, PRODUCT, TRELLIS, KvdictFlag, StreamId
from tests.fuzz.choices import Choices
from tests.fuzz.edits import change_bytes, change_field
from tests.fuzz.image_structs import Struct
from tests.test_product_codec import product
from tests.trellis_codes import trellis

K, V = StreamId.K, StreamId.V
_DIM = 8
_MOST_EDITS = 6
_CRC = 4
_HASH = re.compile("the set's hash is ([0-9a-f]{32}),")


@functools.cache
def kvdict_seeds() -> list[bytes]:
    """Files of each sort of codes, and of all of them."""
    turn = Rotation.of_base(50.0, _DIM)
    rng = np.random.default_rng(3)
    metric = np.eye(_DIM, dtype=np.float32) * np.arange(1, _DIM + 1, dtype=np.float32)
    atoms = [quantize_atoms(rng.standard_normal((16, _DIM))) for _ in range(2)]
    errors = np.array([0.5, 0.25], np.float32)
    mean = np.full(_DIM, 0.125, np.float32)
    plain = Dictionary(atoms[0], ((0, K),), mean, turn, None, errors)
    weighed = Dictionary(atoms[1], ((0, V), (1, V)), np.zeros(_DIM, np.float32), None, metric, errors)
    products = (product(_DIM, 6, 3, ((0, K), (1, K)), turn), product(_DIM, 5, 2, ((0, V),), seed=1))
    trellises = (trellis(_DIM, 6, ((0, K),), turn), trellis(_DIM, 5, ((0, V),), seed=1))
    sets = [
        DictionarySet((plain, weighed)), DictionarySet(products=products), DictionarySet(trellises=trellises),
        DictionarySet((plain, weighed), (product(_DIM, 6, 3, ((2, K),)),), (trellis(_DIM, 5, ((3, K),)),)),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{n}.kvdict" for n in range(len(sets))]
        for path, own in zip(paths, sets, strict=True):
            write_artefact(path, Artefact(own, {"options": {"codec": "pq"}, "metrics": [1, None, "x"]}))
        return [path.read_bytes() for path in paths]


def mutate(data: bytes) -> bytes:
    """A mutated file."""
    choices = Choices(data)
    seed, flags = choices.pick(kvdict_seeds()), choices.number()
    content, entries = bytearray(seed), _entries(seed)
    bodies = [(int(e.of(bytearray(seed))["offset"]), int(e.of(bytearray(seed))["bytes"])) for e in entries]
    structs = [Struct(KVDICT, 0), *entries, *_heads(seed, entries)]
    for _ in range(_MOST_EDITS):
        what = choices.below(8)
        if what < 3:
            change_field(content, structs, choices)
        elif what < 6:
            start, size = choices.pick(bodies)
            change_bytes(content, start, start + size, choices)
        else:
            change_bytes(content, 0, len(content) if what == 6 else bodies[0][0], choices)
        if not choices.left:
            break
    if flags & 8 and flags & 16:
        del content[len(content) - choices.number(2) % len(content) :]
    return repair(bytes(content), entries, rename=flags & 4 == 0) if flags & 3 else bytes(content)


def repair(content: bytes, entries: list[Struct], *, rename: bool) -> bytes:
    """Checksums made right, and the hash that the header names if what is there has one."""
    data = bytearray(content)
    for entry in entries:
        if entry.end <= len(data):
            fields = entry.of(data)
            start, size = int(fields["offset"]), int(fields["bytes"])
            fields["crc"] = crc32c(bytes(data[start : start + size]))
    _seal(data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "renamed.kvdict"
        path.write_bytes(data)
        try:
            if rename:
                read_artefact(path)
        except FormatError as error:
            found = _HASH.search(str(error))
            if found is not None:
                np.frombuffer(data, KVDICT, 1)[0]["basis_hash"] = np.void(bytes.fromhex(found[1]))
                _seal(data)
        except Exception:  # `run` shall meet it
            pass
    return bytes(data)


def _seal(data: bytearray) -> None:
    if len(data) >= KVDICT.itemsize:
        head = np.frombuffer(data, KVDICT, 1)[0]
        end = KVDICT.itemsize + int(head["dictionaries"]) * KVDICT_ENTRY.itemsize + int(head["information_bytes"])
        rest = bytes(data[: KVDICT.itemsize - _CRC]) + bytes(data[KVDICT.itemsize : end])
        head["crc"] = crc32c(rest)


def _entries(seed: bytes) -> list[Struct]:
    count = int(np.frombuffer(seed, KVDICT, 1)[0]["dictionaries"])
    return [Struct(KVDICT_ENTRY, KVDICT.itemsize + n * KVDICT_ENTRY.itemsize) for n in range(count)]


def _heads(seed: bytes, entries: list[Struct]) -> list[Struct]:
    """Heads of product and trellis codes."""
    dtypes, found = {int(KvdictFlag.PRODUCT): PRODUCT, int(KvdictFlag.TRELLIS): TRELLIS}, []
    for entry in entries:
        fields = entry.of(bytearray(seed))
        if int(fields["flags"]) in dtypes:
            found.append(Struct(dtypes[int(fields["flags"])], int(fields["offset"])))
    return found


def run(data: bytes) -> None:
    """Raises whatever is no KvcodecError, and AssertionError for numbers that are not finite."""
    content = mutate(data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzzed.kvdict"
        path.write_bytes(content)
        try:
            own = read_artefact(path).dictionaries
        except KvcodecError:
            return
    own.describe()
    for layer, stream in list(own.uses())[:4]:
        for spec, find in (("dict/s3", own.find), ("pq", own.find_product), ("tcq", own.find_trellis)):
            trained = find(layer, stream)
            if trained is not None and trained.dim <= 64:
                with contextlib.suppress(KvcodecError):
                    _use(spec, trained, stream)


def _use(spec: str, trained: object, stream: StreamId) -> None:
    x = np.linspace(-3, 3, 66 * trained.dim, dtype=np.float32).reshape(66, 1, trained.dim)
    coded = kv.encode_array(x, spec, stream=stream, dictionary=trained)
    assert np.isfinite(kv.decode_array(coded, dtype=np.float32)).all(), "rows that are not finite"
    other = kv.encode_array(x, "raw", stream=V if stream == K else K)
    pair = (coded, other) if stream == K else (other, coded)
    assert np.isfinite(kv.attend(x[0], *pair)).all(), "attention that is not finite"
