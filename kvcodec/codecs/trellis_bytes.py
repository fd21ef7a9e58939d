"""Trellis codes as bytes, in a .kvdict file and in a log alike (formats/trellis.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.dictionary import MAX_DIM
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.transform import MAX_COMPONENTS, Analysis
from kvcodec.codecs.trellis import MAX_RATE, WINDOWS, Trellis
from kvcodec.codecs.uses import count_pairs, uses_from_bytes, uses_to_bytes
from kvcodec.errors import ShapeError, UnsupportedVersion
from kvcodec.layout import DICTIONARY_USE, TRELLIS
from kvcodec.shaped_spec import BUDGET_STEPS


def trellis_to_bytes(own: Trellis) -> bytes:
    """A head, and the arrays behind it in the order in which readers want them aligned: wide numbers first."""
    head = np.zeros((), TRELLIS)
    head["components"], head["head_dim"], head["uses"] = *own.basis.shape, len(own.uses)
    head["pairs"], head["budget"] = count_pairs(own.rotation), round(own.budget * BUDGET_STEPS)
    head["window"], head["tables"] = own.window, len(own.tables)
    steps = np.zeros(0, np.uint64) if own.rotation is None else own.rotation.steps
    analysis = own.analysis
    parts = [
        (steps, "<u8"), (own.mean, "<f4"), (analysis.rows, "<f4"), (analysis.units, "<f4"), (analysis.spread, "<f4"),
        (own.gains, "<u2"), (own.shapes, "<u2"), (own.basis, "<i2"), (own.tables, "<i2"), (own.rates, "u1"),
    ]  # fmt: skip
    return b"".join(
        [head.tobytes(), uses_to_bytes(own.uses), *(np.ascontiguousarray(x).astype(t).tobytes() for x, t in parts)]
    )


def trellis_from_bytes(data: NDArray[np.uint8]) -> Trellis:
    """The trellis codes of all these bytes. Raises ShapeError, SpecError, UnsupportedVersion for what is none."""
    if len(data) < TRELLIS.itemsize:
        raise ShapeError(f"trellis codes in {len(data)} bytes")
    head = data[: TRELLIS.itemsize].view(TRELLIS)[0]
    if any(head["reserved"].tobytes()):
        raise UnsupportedVersion("a reserved field of trellis codes is set")
    components, dim, uses, pairs, window, tables = (
        int(head[name]) for name in ("components", "head_dim", "uses", "pairs", "window", "tables")
    )
    if not (1 <= components <= MAX_COMPONENTS and 1 <= dim <= MAX_DIM and uses):
        raise ShapeError(f"trellis codes of {components} components of {dim} channels")
    if window not in WINDOWS or not 1 <= tables <= MAX_RATE:
        raise ShapeError(f"trellis codes of {tables} tables for a window of {window} bits")
    shapes: list[tuple[Any, tuple[int, ...]]] = [
        ("u1", (uses * DICTIONARY_USE.itemsize,)), ("<u8", (pairs,)), ("<f4", (dim,)), ("<f4", (components + 1, dim)),
        ("<f4", (components,)), ("<f4", (components,)), ("<u2", (256,)), ("<u2", (16,)), ("<i2", (components, dim)),
        ("<i2", (tables, 1 << window)), ("u1", (components,)),
    ]  # fmt: skip
    sizes = [np.dtype(kind).itemsize * int(np.prod(shape)) for kind, shape in shapes]
    if len(data) != TRELLIS.itemsize + sum(sizes):
        raise ShapeError(f"trellis codes in {len(data)} bytes, want {TRELLIS.itemsize + sum(sizes)}")
    parts = np.split(data[TRELLIS.itemsize :], np.cumsum(sizes)[:-1])
    used, steps, mean, rows, units, spread, gains, levels, basis, entries, rates = (
        part.copy().view(kind).reshape(shape) for part, (kind, shape) in zip(parts, shapes, strict=True)
    )
    if not all(np.isfinite(part).all() for part in (rows, units, spread)):
        raise ShapeError("analysis: want finite numbers")
    if (units <= 0).any():
        raise ShapeError("units: want positive ones")
    return Trellis(
        basis, rates, entries, gains, levels, uses_from_bytes(used), mean, Analysis(rows, units, spread),
        Rotation(steps) if pairs else None, int(head["budget"]) / BUDGET_STEPS,
    )  # fmt: skip
