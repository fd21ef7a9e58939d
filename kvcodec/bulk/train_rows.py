"""Vectors of dumps to train on: which tokens, of which layers, how they are turned, and how they are told apart."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.uses import Use
from kvcodec.dictionary.vectors import BLOCK
from kvcodec.dumps.dump import Dump
from kvcodec.dumps.extra import has_unrotated, layer_number, read_numbers, read_unrotated
from kvcodec.errors import DumpError, NonFiniteError, ShapeError, SpecError
from kvcodec.layout import StreamId

GREATEST = 1e12  # a number, so that sums of squares fit float32
_PRINTS, _PRINT_BYTES = 256, 4096  # places of a file that its fingerprint looks at, and how much of each


class Part(NamedTuple):
    """Some tokens of a dump."""

    dump: Dump
    start: int
    stop: int


class DumpVectors:
    """Vectors of some streams of parts of dumps, all heads, in blocks of 64 tokens.

    unrotate: K as it was before its rotary embedding; rope_base: for that, where neither dump nor option tells it.
    Raises ShapeError if channels differ, DumpError, SpecError if K cannot be turned back.
    """

    def __init__(
        self, parts: Sequence[Part], uses: Sequence[Use], *, unrotate: bool = False, rope_base: float | None = None
    ) -> None:
        self._unrotate = unrotate
        self._blocks: list[tuple[Part, Use, int, int]] = []
        self._turns: dict[tuple[Path, int], Rotation | None] = {}
        self.counts: list[int] = []
        self.dim = 0
        for use in uses:
            for part in parts:
                _, heads, dim = part.dump.shape(*use)
                if self.dim not in (0, dim):
                    raise ShapeError(
                        f"{part.dump.path}: layer {use[0]} {use[1].name} has {dim} channels, others {self.dim}"
                    )
                self.dim = dim
                if unrotate and not has_unrotated(part.dump, use[0]):
                    self._turns[part.dump.path, use[0]] = find_rope(part.dump, use[0], rope_base)
                for start in range(part.start, part.stop, BLOCK):
                    stop = min(start + BLOCK, part.stop)
                    self._blocks.append((part, use, start, stop))
                    self.counts.append((stop - start) * heads)

    def read(self, block: int) -> NDArray[np.float32]:
        """Vectors (tokens * heads, dim) of a block. Raises NonFiniteError, DumpError; SpecError for huge numbers."""
        part, (layer, stream), start, stop = self._blocks[block]
        if self._unrotate:
            rope = self._turns.get((part.dump.path, layer))
            if rope is None:
                rows = read_unrotated(part.dump, layer, start, stop).astype(np.float32)
            else:
                rows = rope.undo(part.dump.rows(layer, stream, start, stop), np.arange(start, stop))
        else:
            rows = part.dump.rows(layer, stream, start, stop).astype(np.float32)
        if not np.isfinite(rows).all():
            token, head, channel = (int(n) for n in np.argwhere(~np.isfinite(rows))[0])
            raise NonFiniteError(layer, stream.name, start + token, head, channel)
        if np.abs(rows).max(initial=0) > GREATEST:
            raise SpecError(f"{part.dump.path}: layer {layer} {stream.name} has numbers beyond {GREATEST:g}")
        return np.ascontiguousarray(rows.reshape(-1, self.dim))


def find_rope(dump: Dump, layer: int, base: float | None) -> Rotation:
    """How K of a layer was turned: by rope_freq.L of the dump, or by `base`, or by the dump's metadata. A token of a
    dump stands at the position that is its number. Raises DumpError, SpecError if nothing tells.
    """
    dim = dump.shape(layer, StreamId.K)[2]
    layout = dump.metadata.get("rope_layout", "halves")
    if layout != "halves":
        raise SpecError(f"{dump.path}: rope_layout is {layout!r}; only halves can be turned back")
    if base is None:
        frequencies = read_numbers(dump, f"rope_freq.{layer}", (-1,))
        if frequencies is not None and 2 * len(frequencies) <= dim:
            return Rotation.of_frequencies(frequencies)
        base = layer_number(dump, "rope_bases", layer)
    if base is None:
        raise SpecError(f"{dump.path}: nothing tells how K of layer {layer} was turned: say the base with --rope-base")
    dims, scale = (layer_number(dump, key, layer) for key in ("rope_dims", "rope_scales"))
    dims = dim if dims is None else dims
    if dims > dim or dims != int(dims):
        raise DumpError(f"{dump.path}: rope_dims of layer {layer} is {dims:g}, want an even number up to {dim}")
    return Rotation.of_base(base, int(dims), 1.0 if scale is None else scale)


def find_rotation(dumps: Sequence[Dump], uses: Sequence[Use], base: float | None) -> Rotation:
    """How K of all these layers was turned in all dumps. Raises DumpError, SpecError if nothing tells, or not alike."""
    first: tuple[Rotation, Dump, int] | None = None
    for dump in dumps:
        for layer, _ in uses:
            own = find_rope(dump, layer, base)
            first = first or (own, dump, layer)
            if own != first[0]:
                raise SpecError(
                    f"{dump.path}: K of layer {layer} is turned otherwise than that of layer {first[2]} of "
                    f"{first[1].path}: they cannot share a dictionary of keys from before rotation"
                )
    assert first is not None
    return first[0]


def query_metric(
    dumps: Sequence[Dump],
    layers: Sequence[int],
    ridge: float,
    *,
    unrotate: bool = False,
    rope_base: float | None = None,
) -> NDArray[np.float32]:
    """float32 (d, d): second moment of the queries of some layers, cov / trace(cov) * d + ridge * I.

    From q_cov.L of the dumps, or else from their q.L. unrotate: for K from before rotation, from q_cov_pre.L or from
    queries turned back: as if all keys stood where the query does, which is where most of attention goes.
    Raises DumpError if a layer has neither in any dump.
    """
    total: NDArray[np.float64] | None = None
    for layer in layers:
        found = [moment for dump in dumps if (moment := _second_moment(dump, layer, unrotate, rope_base)) is not None]
        if not found:
            raise DumpError(f"{dumps[0].path}: neither q_cov.{layer} nor q.{layer} in it or any other: no metric")
        own = sum(moment / np.trace(moment) for moment in found) / len(found)
        total = own if total is None else total + own
    assert total is not None
    dim = len(total)
    scaled = (total + total.T) / 2 / np.trace(total) * dim
    return np.asarray(scaled + ridge * np.eye(dim), np.float32)


def _second_moment(dump: Dump, layer: int, unrotate: bool, rope_base: float | None) -> NDArray[np.float64] | None:
    _, heads, dim = dump.shape(layer, StreamId.K)
    name = f"q_cov_pre.{layer}" if unrotate else f"q_cov.{layer}"
    moments = read_numbers(dump, name, (heads, dim, dim))
    queries = dump.queries(layer)
    moment = None if moments is None else np.asarray(moments.mean(axis=0), np.float64)
    if moment is None and queries is not None:
        rows = queries.q.transpose(1, 0, 2)
        if unrotate:
            rows = find_rope(dump, layer, rope_base).undo(rows, queries.positions)
        flat = rows.reshape(-1, dim).astype(np.float64)
        moment = np.asarray(flat.T @ flat / len(flat), np.float64)
    return moment if moment is not None and np.trace(moment) > 0 else None


def fingerprint_dump(path: Path) -> str:
    """16 hexadecimal digits that tell dumps apart: of the SHA-256 of a file's length and of 4 KiB at each of 256 places
    from its first byte to its last. All of a file up to 1 MiB.
    """
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        length = os.fstat(file.fileno()).st_size
        digest.update(length.to_bytes(8, "little"))
        last = max(0, length - _PRINT_BYTES)
        for place in sorted({last * n // (_PRINTS - 1) for n in range(_PRINTS)}):
            file.seek(place)
            digest.update(file.read(_PRINT_BYTES))
    return digest.hexdigest()[:16]
