"""How the rows of K or V lie in a tensor of somebody else's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvcodec.dumps.names import Source, shown
from kvcodec.errors import DumpError

SIZE_MAX = 65535  # heads, and channels of a head: what the log can hold
_ACCEPTED = "(tokens, heads, dim), (tokens, heads*dim), (1, heads, tokens, dim) or (layers, 2, heads, tokens, dim)"


class Geometry(NamedTuple):
    """What the user, or else the file's metadata, says of one layer's shape; None where nothing is said."""

    kv_heads: int | None
    head_dim: int | None


ONE_ROW = Geometry(1, None)  # a token, whatever its length: of latents


class RowsPlace(NamedTuple):
    """Numbers of one (layer, stream): `first` and both strides count numbers from the tensor's start.

    A head's row of `dim` numbers is contiguous.
    """

    tokens: int
    heads: int
    dim: int
    first: int
    token_stride: int
    head_stride: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.tokens, self.heads, self.dim


def read_geometry(kv_heads: int | None, head_dim: int | None, metadata: Mapping[str, str]) -> Geometry:
    """The arguments if there are any, or else the metadata's kv_heads and head_dim. Raises DumpError."""
    if kv_heads is None and head_dim is None:
        kv_heads, head_dim = (metadata_number(metadata, key) for key in ("kv_heads", "head_dim"))
    for name, value in (("kv_heads", kv_heads), ("head_dim", head_dim)):
        if value is not None and not 0 < value <= SIZE_MAX:
            raise DumpError(f"{name} is {value}, want 1 to {SIZE_MAX}")
    return Geometry(kv_heads, head_dim)


def metadata_number(metadata: Mapping[str, str], key: str) -> int | None:
    """The natural number that metadata[key] is, None without that key. Raises DumpError."""
    text = metadata.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise DumpError(f"metadata {key} is {shown(text)}, want a number")
    return int(text)


def place_rows(source: Source, shape: tuple[int, ...], geometry: Geometry) -> RowsPlace:
    """Where the rows of `source` are in its tensor of `shape`. Raises DumpError for a shape that is none of ours."""
    what = f"tensor {shown(source.name)} of shape {list(shape)}"
    if source.stacked is not None:
        layer, stream = source.stacked
        heads, tokens, dim = shape[2:]
        first = (2 * layer + stream) * heads * tokens * dim
        place = RowsPlace(tokens, heads, dim, first, dim, tokens * dim)
    elif len(shape) == 4:
        if shape[0] != 1:
            raise DumpError(f"{what}: batch is {shape[0]}, want 1")
        _, heads, tokens, dim = shape
        place = RowsPlace(tokens, heads, dim, 0, dim, tokens * dim)
    elif len(shape) in (2, 3):
        tokens = shape[0]
        heads, dim = shape[1:] if len(shape) == 3 else _split(shape[1], geometry, what)
        place = RowsPlace(tokens, heads, dim, 0, heads * dim, dim)
    else:
        raise DumpError(f"{what}: want {_ACCEPTED}")
    _check_sizes(place, geometry, what)
    return place


def _split(width: int, geometry: Geometry, what: str) -> tuple[int, int]:
    heads, dim = geometry
    if heads is None and dim is None:
        raise DumpError(f"{what}: how many heads are {width} numbers? Give --heads or --head-dim")
    if heads is None and dim is not None and width % dim == 0:
        heads = width // dim
    if dim is None and heads is not None and width % heads == 0:
        dim = width // heads
    if heads is None or dim is None or heads * dim != width:
        said = " and ".join(f"{v} {n}" for v, n in ((heads, "heads"), (dim, "channels a head")) if v is not None)
        raise DumpError(f"{what}: {width} numbers a token are not {said}: other --heads or --head-dim?")
    return heads, dim


def _check_sizes(place: RowsPlace, geometry: Geometry, what: str) -> None:
    said = zip(("heads", "channels a head"), (place.heads, place.dim), geometry, strict=True)
    for name, size, wanted in said:
        if not 0 < size <= SIZE_MAX:
            raise DumpError(f"{what}: {size} {name}, want 1 to {SIZE_MAX}")
        if wanted is not None and size != wanted:
            raise DumpError(f"{what}: {size} {name}, want {wanted}")
