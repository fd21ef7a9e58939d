"""Product codes as bytes, in a .kvdict file and in a log alike (formats/product.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.dictionary import MAX_DIM
from kvcodec.codecs.prediction import NAME_BYTES, SHAPES, Prediction
from kvcodec.codecs.product import Product
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.transform import MAX_COMPONENTS, Analysis
from kvcodec.codecs.uses import count_pairs, uses_from_bytes, uses_to_bytes
from kvcodec.errors import ShapeError, UnsupportedVersion
from kvcodec.layout import DICTIONARY_USE, PRODUCT
from kvcodec.product_spec import MAX_GROUPS
from kvcodec.shaped_spec import BUDGET_STEPS


def product_to_bytes(own: Product) -> bytes:
    """A head, and the arrays behind it in the order in which readers want them aligned: wide numbers first."""
    head = np.zeros((), PRODUCT)
    head["components"], head["head_dim"], head["groups"], head["uses"] = *own.basis.shape, own.groups, len(own.uses)
    told = own.prediction
    head["pairs"], head["predicted"] = count_pairs(own.rotation), 0 if told is None else len(told.basis)
    head["budget"] = round(own.budget * BUDGET_STEPS)
    steps = np.zeros(0, np.uint64) if own.rotation is None else own.rotation.steps
    analysis = own.analysis
    parts = [
        (steps, "<u8"), (own.mean, "<f4"), (analysis.rows, "<f4"), (analysis.units, "<f4"), (analysis.spread, "<f4"),
        (own.gains, "<u2"), (own.shapes, "<u2"), (own.ends, "<u2"), (own.basis, "<i2"),
        *([] if told is None else [(told.scales, "<u2"), (told.basis, "<i2")]), (own.books, "i1"),
    ]  # fmt: skip
    arrays = [np.ascontiguousarray(x).astype(t).tobytes() for x, t in parts]
    return b"".join([head.tobytes(), uses_to_bytes(own.uses), *arrays, b"" if told is None else told.source])


def product_from_bytes(data: NDArray[np.uint8]) -> Product:
    """The product codes of all these bytes. Raises ShapeError, SpecError, UnsupportedVersion for what is none."""
    head = _head_of(data)
    shapes = _shapes_of(head)
    sizes = [np.dtype(kind).itemsize * int(np.prod(shape)) for kind, shape in shapes]
    if len(data) != PRODUCT.itemsize + sum(sizes):
        raise ShapeError(f"product codes in {len(data)} bytes, want {PRODUCT.itemsize + sum(sizes)}")
    parts = np.split(data[PRODUCT.itemsize :], np.cumsum(sizes)[:-1])
    used, steps, mean, rows, units, spread, gains, levels, ends, basis, scales, told, books, source = (
        part.copy().view(kind).reshape(shape) for part, (kind, shape) in zip(parts, shapes, strict=True)
    )
    if not all(np.isfinite(part).all() for part in (rows, units, spread)):
        raise ShapeError("analysis: want finite numbers")
    return Product(
        basis, books, ends, gains, levels, uses_from_bytes(used), mean, Analysis(rows, units, spread),
        Rotation(steps) if len(steps) else None, int(head["budget"]) / BUDGET_STEPS,
        Prediction(told, scales, source.tobytes()) if len(source) else None,
    )  # fmt: skip


def _head_of(data: NDArray[np.uint8]) -> Any:
    if len(data) < PRODUCT.itemsize:
        raise ShapeError(f"product codes in {len(data)} bytes")
    head = data[: PRODUCT.itemsize].view(PRODUCT)[0]
    if any(head["reserved"].tobytes()):
        raise UnsupportedVersion("a reserved field of product codes is set")
    return head


def _shapes_of(head: Any) -> list[tuple[Any, tuple[int, ...]]]:
    """Types and shapes of the arrays, by what the head says."""
    components, dim, groups, uses, pairs, predicted = (
        int(head[name]) for name in ("components", "head_dim", "groups", "uses", "pairs", "predicted")
    )
    if not (1 <= components <= MAX_COMPONENTS and 1 <= dim <= MAX_DIM and 1 <= groups <= MAX_GROUPS and uses):
        raise ShapeError(f"product codes of {components} components of {dim} channels in {groups} groups")
    if predicted > MAX_COMPONENTS:
        raise ShapeError(f"product codes predicted from {predicted} components, want {MAX_COMPONENTS} at most")
    scales, name = (SHAPES, NAME_BYTES) if predicted else (0, 0)
    return [
        ("u1", (uses * DICTIONARY_USE.itemsize,)), ("<u8", (pairs,)), ("<f4", (dim,)), ("<f4", (components + 1, dim)),
        ("<f4", (components,)), ("<f4", (components,)), ("<u2", (256,)), ("<u2", (16,)), ("<u2", (groups,)),
        ("<i2", (components, dim)), ("<u2", (scales,)), ("<i2", (predicted, dim)), ("i1", (components, 256)),
        ("u1", (name,)),
    ]  # fmt: skip
