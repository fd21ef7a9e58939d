"""A .kvdict file: the dictionaries of a model's streams (formats/kvdict.md)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.dictionary import MAX_DIM, Dictionary, DictionarySet
from kvcodec.codecs.product import Product
from kvcodec.codecs.product_bytes import product_from_bytes
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.trellis import Trellis
from kvcodec.codecs.trellis_bytes import trellis_from_bytes
from kvcodec.codecs.uses import count_pairs, uses_from_bytes
from kvcodec.errors import (
    BadMagic,
    CorruptRecord,
    FormatError,
    LogExists,
    ShapeError,
    SpecError,
    TruncatedLog,
    UnsupportedVersion,
)
from kvcodec.layout import (
    ALIGNMENT,
    DICTIONARY_USE,
    FORMAT_VERSION,
    KVDICT,
    KVDICT_ENTRY,
    KVDICT_MAGIC,
    KvdictFlag,
    Transform,
    align,
)
from kvcodec.sparse_spec import MAX_ATOMS, MAX_DICTIONARY

T = TypeVar("T")
_MAX_INFORMATION = 1 << 24
_CRC = 4  # bytes of a checksum
_SHAPED = (KvdictFlag.PRODUCT, KvdictFlag.TRELLIS)
_SHAPED_FIELDS = ("offset", "crc", "flags", "bytes")


class Artefact(NamedTuple):
    """What a .kvdict file holds. information: how it was trained, as JSON can say it."""

    dictionaries: DictionarySet
    information: Mapping[str, Any]


def write_artefact(path: str | Path, artefact: Artefact, *, overwrite: bool = False) -> None:
    """Write a .kvdict file, whole or not at all. Raises LogExists."""
    path = Path(path)
    if path.exists() and not overwrite:
        raise LogExists(errno.EEXIST, "exists already; ask for overwrite to replace it", str(path))
    data = _encode(artefact)
    fresh = path.with_name(f".{path.name[:200]}.{secrets.token_hex(8)}.tmp")
    try:
        with fresh.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def read_artefact(path: str | os.PathLike[str]) -> Artefact:
    """Read a .kvdict file, every checksum and the set's hash checked.

    Raises OSError, BadMagic, UnsupportedVersion, TruncatedLog, CorruptRecord.
    """
    data = np.fromfile(path, np.uint8)
    if data[: len(KVDICT_MAGIC)].tobytes() != KVDICT_MAGIC:
        raise BadMagic(f"{path} is no .kvdict file")
    if len(data) < KVDICT.itemsize:
        raise TruncatedLog(f"{path} ends within its header")
    head = data[: KVDICT.itemsize].view(KVDICT)[0]
    if int(head["version"]) != FORMAT_VERSION:
        raise UnsupportedVersion(f"{path}: version {int(head['version'])}")
    count, information = int(head["dictionaries"]), int(head["information_bytes"])
    table_end = KVDICT.itemsize + count * KVDICT_ENTRY.itemsize
    if information > _MAX_INFORMATION:
        raise CorruptRecord(0, f"{path}: {information} bytes of information")
    if len(data) < max(table_end + information, int(head["file_bytes"])):
        raise TruncatedLog(f"{path} has {len(data)} bytes, its header says {int(head['file_bytes'])}")
    _check_head(data, head, table_end + information)
    entries = data[KVDICT.itemsize : table_end].view(KVDICT_ENTRY)
    _check_places(entries, table_end + information, len(data))
    try:
        plain = [entry for entry in entries if _kind(entry) is None]
        products, trellises = ([entry for entry in entries if _kind(entry) == kind] for kind in _SHAPED)
        own = DictionarySet(
            _read_all(data, plain, _read_dictionary), _read_all(data, products, _read_product),
            _read_all(data, trellises, _read_trellis),
        )  # fmt: skip
        told = json.loads(bytes(data[table_end : table_end + information]).decode())
    except FormatError:
        raise  # they name the byte
    except (ShapeError, SpecError, ValueError, RecursionError) as error:
        raise CorruptRecord(0, f"{path}: {error}") from None
    if own.hash != head["basis_hash"].tobytes():
        raise CorruptRecord(0, f"{path}: the set's hash is {own.hash.hex()}, its header names another")
    if not isinstance(told, dict):
        raise CorruptRecord(table_end, f"{path}: the information is no JSON object")
    return Artefact(own, told)


def read_dictionary(path: str | os.PathLike[str]) -> DictionarySet:
    """The set of dictionaries of a .kvdict file. Raises as read_artefact does."""
    return read_artefact(path).dictionaries


def _encode(artefact: Artefact) -> bytes:
    own, information = artefact.dictionaries, json.dumps(artefact.information, sort_keys=True).encode()
    if len(information) > _MAX_INFORMATION:
        raise SpecError(f"{len(information)} bytes of information, at most {_MAX_INFORMATION}")
    entries = np.zeros(len(own.dictionaries) + len(own.shaped), KVDICT_ENTRY)
    bodies = [_encode_dictionary(one) for one in own.dictionaries] + [one.to_bytes() for one in own.shaped]
    offset = align(KVDICT.itemsize + entries.nbytes + len(information), ALIGNMENT)
    for entry, one in zip(entries, own.dictionaries, strict=False):
        entry["atoms"], entry["head_dim"], entry["uses"] = one.size, one.dim, len(one.uses)
        entry["errors"], entry["transform"], entry["flags"] = len(one.errors), one.transform, _flags(one)
        entry["pairs"] = count_pairs(one.rotation)
    kinds = np.repeat(_SHAPED, [len(own.products), len(own.trellises)])
    entries["flags"][len(own.dictionaries) :] = kinds
    for entry, body in zip(entries, bodies, strict=True):
        entry["offset"], entry["bytes"], entry["crc"] = offset, len(body), google_crc32c.value(body)
        offset = align(offset + len(body), ALIGNMENT)
    head = np.zeros((), KVDICT)
    head["magic"], head["version"], head["dictionaries"] = KVDICT_MAGIC, FORMAT_VERSION, len(entries)
    head["information_bytes"], head["basis_hash"], head["file_bytes"] = len(information), np.void(own.hash), offset
    rest = entries.tobytes() + information
    head["crc"] = google_crc32c.value(head.tobytes()[:-_CRC] + rest)
    out = bytearray(head.tobytes() + rest)
    for entry, body in zip(entries, bodies, strict=True):
        out += bytes(int(entry["offset"]) - len(out)) + body
    return bytes(out) + bytes(offset - len(out))


def _flags(one: Dictionary) -> KvdictFlag:
    mean = KvdictFlag.MEAN if one.has_mean else KvdictFlag.NONE
    return mean | (KvdictFlag.NONE if one.metric is None else KvdictFlag.METRIC)


def _encode_dictionary(one: Dictionary) -> bytes:
    parts = [one.head(), one.errors.astype("<f4").tobytes()]
    parts += [] if one.metric is None else [one.metric.astype("<f4").tobytes()]
    return b"".join([*parts, np.ascontiguousarray(one.atoms).tobytes()])


def _check_head(data: NDArray[np.uint8], head: np.void, end: int) -> None:
    if any(head["reserved"].tobytes()):
        raise UnsupportedVersion("a reserved field of a .kvdict file is set")
    whole = data[: KVDICT.itemsize - _CRC].tobytes() + data[KVDICT.itemsize : end].tobytes()
    size = int(head["file_bytes"])
    if int(head["crc"]) != google_crc32c.value(whole) or size != len(data) or size % ALIGNMENT:
        raise CorruptRecord(0, "header or table of a .kvdict file")


def _check_places(entries: NDArray[np.void], start: int, end: int) -> None:
    """Dictionaries lie one behind the other: together they are no larger than the file."""
    for entry in entries:
        at, size = int(entry["offset"]), int(entry["bytes"])
        if at < start or at + size > end:
            raise CorruptRecord(at, f"a dictionary of {size} bytes that overlaps another one, or the end of the file")
        start = at + size


def _sizes(entry: np.void) -> list[int]:
    """Bytes of uses, mean, rotation, errors, metric and atoms."""
    flags, atoms, dim = (int(entry[name]) for name in ("flags", "atoms", "head_dim"))
    return [
        int(entry["uses"]) * DICTIONARY_USE.itemsize, 4 * dim if flags & KvdictFlag.MEAN else 0,
        8 * int(entry["pairs"]), 4 * int(entry["errors"]), 4 * dim * dim if flags & KvdictFlag.METRIC else 0,
        atoms * dim,
    ]  # fmt: skip


def _read_all(
    data: NDArray[np.uint8], entries: Sequence[np.void], read: Callable[[NDArray[np.uint8], np.void], T]
) -> tuple[T, ...]:
    """What entries say. Raises FormatError, which names the byte where what is wrong begins."""
    found = []
    for entry in entries:
        try:
            found.append(read(data, entry))
        except FormatError:
            raise
        except ValueError as error:
            raise CorruptRecord(int(entry["offset"]), str(error)) from None
    return tuple(found)


def _read_dictionary(data: NDArray[np.uint8], entry: np.void) -> Dictionary:
    start, flags = int(entry["offset"]), int(entry["flags"])
    atoms, dim, errors = int(entry["atoms"]), int(entry["head_dim"]), int(entry["errors"])
    known = flags & ~int(KvdictFlag.MEAN | KvdictFlag.METRIC) == 0 and int(entry["transform"]) in list(Transform)
    if not known or any(entry["reserved"].tobytes()):
        raise UnsupportedVersion(f"at byte {start}: flags, transform or a reserved field of a dictionary")
    turned = int(entry["transform"]) != Transform.NONE
    if not (1 <= atoms <= MAX_DICTIONARY and 1 <= dim <= MAX_DIM and errors <= MAX_ATOMS) or (
        turned != (int(entry["pairs"]) > 0)
    ):
        raise CorruptRecord(start, f"a dictionary of {atoms} atoms of {dim} channels, {errors} errors")
    sizes, body = _sizes(entry), _take_body(data, entry)
    if len(body) != sum(sizes):
        raise CorruptRecord(start, f"a dictionary of {len(body)} bytes, want {sum(sizes)}")
    uses, mean, steps, curve, metric, matrix = np.split(body, np.cumsum(sizes)[:-1])
    return Dictionary(
        matrix.view(np.int8).reshape(atoms, dim).copy(),
        uses_from_bytes(uses),
        mean.copy().view("<f4").astype(np.float32),
        Rotation(steps.copy().view("<u8")) if turned else None,
        metric.copy().view("<f4").astype(np.float32).reshape(dim, dim) if len(metric) else None,
        curve.copy().view("<f4").astype(np.float32),
    )


def _kind(entry: np.void) -> KvdictFlag | None:
    """Which other codes than a dictionary an entry says that it is of."""
    return next((kind for kind in _SHAPED if int(entry["flags"]) & kind), None)


def _read_product(data: NDArray[np.uint8], entry: np.void) -> Product:
    _check_shaped(entry, KvdictFlag.PRODUCT, "product codes")
    return product_from_bytes(_take_body(data, entry))


def _read_trellis(data: NDArray[np.uint8], entry: np.void) -> Trellis:
    _check_shaped(entry, KvdictFlag.TRELLIS, "trellis codes")
    return trellis_from_bytes(_take_body(data, entry))


def _check_shaped(entry: np.void, flag: KvdictFlag, name: str) -> None:
    """Raises UnsupportedVersion for an entry of such codes that says more than where their bytes are."""
    start, rest = int(entry["offset"]), [n for n in entry.dtype.names or () if n not in _SHAPED_FIELDS]
    if int(entry["flags"]) != flag or any(any(entry[field].tobytes()) for field in rest):
        raise UnsupportedVersion(f"at byte {start}: flags, or another field, of {name}")


def _take_body(data: NDArray[np.uint8], entry: np.void) -> NDArray[np.uint8]:
    start, size = int(entry["offset"]), int(entry["bytes"])
    body = data[start : start + size]
    if start % ALIGNMENT or int(entry["crc"]) != google_crc32c.value(body.tobytes()):
        raise CorruptRecord(start, "checksum of a dictionary or of other codes")
    return body
