"""Dictionaries as kernels read them, and tables of a query's products with their atoms."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.columns import FORM, place_column
from kvcodec.attention.query import Queries
from kvcodec.codecs.codec import take_out
from kvcodec.codecs.dictionary import Dictionary
from kvcodec.layout import CHANNEL_LANE_TOKENS, TILE_LANES, align

_ATOMS = 64  # that kernels multiply at a time
_BLOCK = CHANNEL_LANE_TOKENS
TURNED_AT_ONCE = 64 * _BLOCK  # positions for which a query is turned at once
_QUAD = 4  # query heads of a KV head that share a table
_MEAN_BITS = 22
_WIDE = 32  # channels that rebuilding sums at a time


class Atoms:
    """A dictionary in memory for kernels: atoms padded with zeros to whole vectors, the mean as integers.

    address: of its header, the columns of kernels/forms.py; it stays as long as this object is there.
    """

    def __init__(self, own: Dictionary) -> None:
        dim = align(own.dim, TILE_LANES)
        self.size, self.padded = own.size, align(own.size, _ATOMS)
        self.dim = dim
        self._atoms = take_out(None, (self.padded, dim), np.int8)
        self._atoms[...] = 0
        self._atoms[: own.size, : own.dim] = own.atoms
        self._mean, exponent = np.zeros(dim, np.int32), 0
        if own.has_mean:
            exponent = int(np.frexp(np.abs(own.mean).max())[1]) - _MEAN_BITS
            self._mean[: own.dim] = np.rint(np.ldexp(own.mean.astype(np.float64), -exponent))
        mean = self._mean.ctypes.data if own.has_mean else 0
        fields = self._atoms.ctypes.data, own.size, self.padded, dim, mean, exponent
        self._header = np.array([*fields, own.dim, *(0,) * 6], np.int64)
        self.address = self._header.ctypes.data
        self.rotation = own.rotation
        self._to_rebuild: tuple[NDArray[Any], ...] = ()

    def prepare_rebuilding(self) -> None:
        """Make what kernels/rebuild.py takes, once: a second copy of the atoms, and turns of the nearest positions."""
        if self._to_rebuild:
            return
        from kvcodec.kernels._rebuild import ATOM_ORDER, BIAS, SUM_ORDER
        from kvcodec.kernels.rebuild import MEAN_ROOM

        wide = align(self.dim, _WIDE)
        mean = np.ascontiguousarray(self._mean.reshape(-1, TILE_LANES)[:, SUM_ORDER] << np.int32(MEAN_ROOM))
        biased = take_out(None, (self.padded, wide), np.uint8)
        biased[...] = BIAS
        biased[:, : self.dim] = self._atoms.astype(np.int16) + BIAS
        biased[...] = biased.reshape(-1, wide // _WIDE, _WIDE)[:, :, ATOM_ORDER].reshape(biased.shape)
        greatest = max(int(np.abs(self._atoms.astype(np.int16)).max()), 1)
        near = far = np.zeros((0, 2, 0), np.int32)
        if self.rotation is not None:
            near = np.minimum((self.rotation.turns(np.arange(2 * _BLOCK)) + (1 << 14)) >> 15, 32767).astype(np.int16)
            far = self.rotation.turns(np.arange(0, TURNED_AT_ONCE, _BLOCK))
        addresses = near.shape[2], near.ctypes.data, far.ctypes.data
        self._header[7:] = greatest, biased.ctypes.data, mean.ctypes.data, *addresses
        self._to_rebuild = biased, mean, near, far


DICTIONARY, REBUILT = -2, -1  # columns of a form

_lock = threading.Lock()
_known: WeakKeyDictionary[Dictionary, Atoms] = WeakKeyDictionary()
_by_address: WeakValueDictionary[int, Atoms] = WeakValueDictionary()


def atoms_of(own: Dictionary) -> Atoms:
    """The atoms of a dictionary, made once."""
    with _lock:
        found = _known.get(own)
        if found is None:
            found = _known[own] = Atoms(own)
            _by_address[found.address] = found
        return found


def rebuilt_atoms_of(own: Dictionary) -> Atoms:
    """The same for rows that are rebuilt from their codes."""
    found = atoms_of(own)
    with _lock:
        found.prepare_rebuilding()
    return found


def atoms_at(address: int) -> Atoms:
    """Those whose address a form has."""
    return _by_address[address]


class Products:
    """Tables of products of queries with the dictionaries that their keys are coded over.

    used: for each stream the addresses of the dictionaries of the forms that strips name, 0 where a form has none or
    the stream is not scored. columns: where each stream's channels begin in a query.
    lookups: int64 (streams, forms), where kernels find the tables. `jobs` are for kernels.lookup.make_tables.
    """

    def __init__(self, used: NDArray[np.int64], columns: Iterable[int], queries: Queries, kv_heads: int) -> None:
        from kvcodec.kernels.lookup import table_bytes, work_bytes

        count, heads, _ = queries.numbers.shape
        asked, head, many = _cut_quads(count, kv_heads, heads // kv_heads)
        self.lookups = np.zeros(used.shape, np.int64)
        tables, size = [], 0
        for stream, column in enumerate(columns):
            for address in np.unique(used[stream][used[stream] != 0]).tolist():
                own = atoms_at(address)
                step = table_bytes(own.padded)
                tables.append((stream, address, column, size, step))
                size += step * len(asked)
        self._memory = take_out(None, (size,), np.uint8)
        jobs = [np.empty((0, 6), np.int64)]
        for stream, address, column, offset, step in tables:
            place = self._memory.ctypes.data + offset
            self.lookups[stream][used[stream] == address] = place
            job = np.empty((len(asked), 6), np.int64)
            job.T[:] = np.broadcast_arrays(
                place + step * np.arange(len(asked)), address, column, asked, head, many
            )  # fmt: skip
            jobs.append(job)
        self.jobs = np.concatenate(jobs)
        sizes = [work_bytes(atoms_at(a).padded, atoms_at(a).dim) for _, a, *_ in tables]
        self.work_bytes = max(sizes, default=0)


def _cut_quads(queries: int, kv_heads: int, per_head: int) -> tuple[NDArray[np.int64], ...]:
    """(query, first head, how many) of each entry's heads, as kernels count them."""
    asked, kv_head, first = (
        grid.reshape(-1)
        for grid in np.meshgrid(
            np.arange(queries), np.arange(kv_heads), np.arange(0, per_head, _QUAD), indexing="ij"
        )
    )  # fmt: skip
    return asked, kv_head * per_head + first, np.minimum(per_head - first, _QUAD)


def used_dictionaries(strips: NDArray[np.int64], forms: NDArray[np.int64], streams: int) -> NDArray[np.int64]:
    """int64 (streams, forms): addresses of the dictionaries of the forms that strips name for each stream, else 0:
    where a form has none, or rows are rebuilt.
    """
    used = np.zeros((streams, len(forms)), np.int64)
    for n in range(streams):
        own = np.unique(strips[:, place_column(n) + FORM])
        used[n, own] = forms[own, DICTIONARY] * (forms[own, REBUILT] == 0)
    return used


def bucket_room(used: NDArray[np.int64], per_head: int) -> int:
    """Bytes of buckets for the dictionaries of a stream's forms; 0 if none is one."""
    from kvcodec.kernels.buckets import bucket_bytes

    addresses: Any = np.unique(used[used != 0]).tolist()
    return max((bucket_bytes(atoms_at(a).padded, per_head) for a in addresses), default=0)
