"""A dump, whatever its format: K and V of every layer, or its latents, read slice by slice."""

from __future__ import annotations

import abc
import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.dumps.fp8 import FP8, find_scale, widening_table
from kvcodec.dumps.names import Sources, locate, shown
from kvcodec.dumps.queries import Queries, check_queries, read_scale, read_window
from kvcodec.dumps.regular_file import open_regular
from kvcodec.dumps.rows import ONE_ROW, RowsPlace, place_rows, read_geometry
from kvcodec.dumps.tensors import Contents, Entry
from kvcodec.errors import DtypeError, DumpError, ShapeError
from kvcodec.layout import DtypeId, StreamId

_DTYPES = {"BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype(np.float16), "F32": np.dtype(np.float32)}
_STORED = _DTYPES | {FP8: np.dtype(np.uint8)}
_WANTED = f"BF16, F16, F32 or {FP8}"
_DTYPE_IDS = {"BF16": DtypeId.BFLOAT16, "F16": DtypeId.FLOAT16, FP8: DtypeId.BFLOAT16}


class Dump(abc.ABC):
    """K and V of a model's layers in one file, or their latents C and position keys KR, one row a token.

    A context manager; safe to use from many threads. Of each format there is a class that knows how to read its header;
    get one from kvcodec.dumps.open_dump.

    Attributes: path; metadata (texts by name); layers (their numbers, ascending); dtype (numpy's: bfloat16,
    float16 or float32, of all rows; 8-bit floats are bfloat16 here, see kvcodec.dumps.fp8); dtype_id (the log's,
    None for float32).

    mapping: patterns such as "k=model.{layer}.key" for names that kvcodec.dumps.names does not know. kv_heads,
    head_dim: needed for (tokens, heads*dim) tensors unless the metadata have them; all shapes are checked against them.
    Shapes: (tokens, heads, dim), (tokens, heads*dim), (1, heads, tokens, dim), or one tensor
    (layers, 2, heads, tokens, dim).
    Raises DumpError for a file that cannot be read or understood, DtypeError for K or V of another dtype, or several.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mapping: Sequence[str] = (),
        kv_heads: int | None = None,
        head_dim: int | None = None,
    ) -> None:
        self.path = Path(path)
        self._file = open_regular(self.path)
        try:
            self._load(mapping, kv_heads, head_dim)
        except (DumpError, DtypeError) as error:
            self.close()
            raise type(error)(str(error) if self._names_itself(error) else f"{self.path}: {error}") from None
        except BaseException:
            self.close()
            raise

    @abc.abstractmethod
    def _read_contents(self, file: FileIO) -> Contents:
        """What the file holds, checked against its size. Raises DumpError, DtypeError."""

    def _names_itself(self, error: Exception) -> bool:
        return str(error).startswith(f"{self.path}: ")

    def _load(self, mapping: Sequence[str], kv_heads: int | None, head_dim: int | None) -> None:
        try:
            self._tensors, self.metadata = self._read_contents(self._file)
        except OSError as error:
            raise DumpError(f"cannot read: {error.strerror}") from None
        shapes = {name: entry.shape for name, entry in self._tensors.items()}
        floating = [name for name, entry in self._tensors.items() if entry.floating]
        self._sources = locate(shapes, floating, mapping)
        self.layers = tuple(sorted({layer for layer, _ in self._sources}))
        self._code = _one_dtype(self._sources, self._tensors)
        self._places: dict[tuple[int, StreamId], RowsPlace] = {}
        geometry = read_geometry(kv_heads, head_dim, self.metadata)
        for key, source in sorted(self._sources.items()):
            own = ONE_ROW if key[1] in (StreamId.C, StreamId.KR) else geometry
            self._places[key] = place_rows(source, shapes[source.name], own)
        _check_tokens(self._sources, self._places)
        self._tables: dict[tuple[int, StreamId], NDArray[np.uint16]] = {}
        if self._code == FP8:
            for (layer, stream), source in self._sources.items():
                scale = find_scale(source, layer, stream, self._tensors, self.metadata, self._number)
                self._tables[layer, stream] = widening_table(scale)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = _DTYPES["BF16" if self._code == FP8 else self._code]
        return dtype

    @property
    def dtype_id(self) -> DtypeId | None:
        return _DTYPE_IDS.get(self._code)

    @property
    def tokens(self) -> int:
        """Of every layer."""
        return next(iter(self._places.values())).tokens

    @property
    def streams(self) -> tuple[StreamId, StreamId]:
        """Of every layer: K and V, or the latent C and the position key KR."""
        first, second = sorted({stream for _, stream in self._places})
        return first, second

    def shape(self, layer: int, stream: StreamId) -> tuple[int, int, int]:
        """(tokens, heads, dim). Raises DumpError for a layer or stream that the file has not."""
        return self._place(layer, stream).shape

    def rows(
        self, layer: int, stream: StreamId, start: int, stop: int, room: NDArray[np.uint16] | None = None
    ) -> NDArray[Any]:
        """Rows of the tokens start <= t < stop: (tokens, heads, dim) of `dtype`, an array of the caller's own.

        room: contiguous and of that shape, holds the rows of a 16-bit dump then, and what is returned is a view of it.
        Reads no more than these from the disk. Raises ShapeError unless 0 <= start <= stop <= tokens; DumpError
        for a layer or stream that the file has not, a file that shrank, and after close().
        """
        place = self._place(layer, stream)
        if not 0 <= start <= stop <= place.tokens:
            what = f"layer {layer} {stream.name}: tokens {start}:{stop}"
            raise ShapeError(f"{self.path}: {what}, want a range in 0:{place.tokens}")
        rows = self._stored_rows(self._sources[layer, stream].name, place, start, stop, room)
        if self._code == FP8:
            rows = self._tables[layer, stream][rows].view(self.dtype)
        return rows

    def _stored_rows(
        self, name: str, place: RowsPlace, start: int, stop: int, room: NDArray[np.uint16] | None
    ) -> NDArray[Any]:
        stored, shape = _STORED[self._code], (stop - start, place.heads, place.dim)
        fits = room is not None and room.shape == shape and stored.itemsize == room.itemsize
        rows = room.view(stored) if room is not None and fits else np.empty(shape, stored)
        if place.head_stride == place.dim:
            self._read(name, place.first + start * place.token_stride, rows)
            return rows
        heads = np.empty((place.heads, stop - start, place.dim), stored)
        for head in range(place.heads):
            self._read(name, place.first + head * place.head_stride + start * place.token_stride, heads[head])
        rows[...] = heads.transpose(1, 0, 2)
        return rows

    def find(self, name: str) -> Entry | None:
        """What the file says of the tensor of that name, None if it has none."""
        return self._tensors.get(name)

    def find_rows(self, layer: int, stream: StreamId) -> Entry | None:
        """Of the tensor that holds the rows of a stream alone, None if it holds those of others too."""
        self._place(layer, stream)
        source = self._sources[layer, stream]
        return self._tensors[source.name] if source.stacked is None else None

    def rows_like(self, name: str, layer: int, stream: StreamId, start: int, stop: int) -> NDArray[Any]:
        """Rows of another tensor, of the shape and dtype of the one that `find_rows` found, as stored."""
        return self._stored_rows(name, self._place(layer, stream), start, stop, None)

    def numbers(self, name: str) -> NDArray[Any]:
        """All of a tensor that `find` found, in the dtype that is stored. Raises DtypeError for one of others."""
        entry = self._tensors[name]
        if entry.dtype is None:
            raise DtypeError(f"{self.path}: tensor {shown(name)} is {entry.code}")
        numbers = np.empty(entry.shape, entry.dtype)
        self._read(name, 0, numbers)
        return numbers

    def queries(self, layer: int) -> Queries | None:
        """The queries of `layer`, None if the file has none. Raises DumpError, DtypeError if they are malformed."""
        name = f"q.{layer}"
        if not {name, "q_pos"} <= self._tensors.keys() or StreamId.K not in self.streams:
            return None
        _, kv_heads, dim = self.shape(layer, StreamId.K)
        entry, positions = self._tensors[name], self._tensors["q_pos"]
        if entry.code not in _DTYPES or entry.flaw:
            raise DtypeError(f"{self.path}: tensor {name!r} is {entry.flaw or entry.code}, want BF16, F16 or F32")
        if positions.code not in ("I32", "I64") or len(positions.shape) != 1 or positions.flaw:
            raise DumpError(f"{self.path}: tensor 'q_pos' is {positions.code} {list(positions.shape)}, want I32 (n,)")
        try:
            check_queries(name, entry.shape, positions.shape[0], kv_heads, dim)
            scale, window = read_scale(self.metadata), read_window(self.metadata, layer)
        except DumpError as error:
            raise DumpError(f"{self.path}: {error}") from None
        q, at = self.numbers(name), self.numbers("q_pos")
        return Queries(q.astype(np.float32), at.astype(np.int64), scale, window)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _place(self, layer: int, stream: StreamId) -> RowsPlace:
        try:
            return self._places[layer, stream]
        except KeyError:
            raise DumpError(f"{self.path}: no layer {layer} {stream.name}") from None

    def _bytes_of(self, name: str) -> tuple[int, int]:
        """The descriptor, and the byte in it, where the tensor's numbers begin."""
        return self._file.fileno(), self._tensors[name].begin

    def _number(self, name: str) -> float:
        number = np.empty(1, _DTYPES[self._tensors[name].code])
        self._read(name, 0, number)
        return float(number[0])

    def _read(self, name: str, first: int, into: NDArray[Any]) -> None:
        """Fills the contiguous `into` with the tensor's numbers from `first` on."""
        if self._file.closed:
            raise DumpError(f"{self.path}: the dump was closed")
        view = into.reshape(-1).view(np.uint8).data
        file, begin = self._bytes_of(name)
        at = begin + first * into.itemsize
        while view:
            try:
                got = os.preadv(file, [view], at)
            except OSError as error:
                raise DumpError(f"{self.path}: cannot read byte {at}: {error.strerror}") from None
            if got == 0:
                raise DumpError(f"{self.path}: tensor {shown(name)} ends at byte {at}: the file shrank")
            view, at = view[got:], at + got


def _one_dtype(sources: Sources, tensors: dict[str, Entry]) -> str:
    """The format's name of the dtype that all K and V have."""
    first = next(iter(sources.values())).name
    for source in sources.values():
        code, flaw = tensors[source.name].code, tensors[source.name].flaw
        if flaw:
            raise DtypeError(f"tensor {shown(source.name)} is {flaw}")
        if code not in _STORED:
            raise DtypeError(f"tensor {shown(source.name)} is {code}, want {_WANTED}")
        if code != tensors[first].code:
            both = f"{shown(first)} is {tensors[first].code} and {shown(source.name)} is {code}"
            raise DtypeError(f"{both}, want one dtype for all K and V")
    return tensors[first].code


def _check_tokens(sources: Sources, places: dict[tuple[int, StreamId], RowsPlace]) -> None:
    first = next(iter(places))
    for key, place in places.items():
        if place.tokens != places[first].tokens:
            one = f"layer {first[0]} {first[1].name} ({shown(sources[first].name)}) has {places[first].tokens} tokens"
            other = f"layer {key[0]} {key[1].name} ({shown(sources[key].name)}) has {place.tokens}"
            raise DumpError(f"{one}, {other}")
