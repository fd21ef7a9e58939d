"""Dictionaries: static matrices of atoms, and the set of them that a model's streams are coded over."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.uses import Use, check_rotation, uses_to_bytes
from kvcodec.errors import ShapeError, SpecError
from kvcodec.layout import StreamId, Transform
from kvcodec.sparse_spec import HASH_BYTES, MAX_DICTIONARY, Pursuit

if TYPE_CHECKING:
    from kvcodec.codecs.codec import Trained
    from kvcodec.codecs.product import Product
    from kvcodec.codecs.trellis import Trellis
    from kvcodec.spec import CodecSpec

MAX_DIM = 1024
_PRODUCT_MARK = b"\xff" * 4  # no dictionary has so many atoms
_TRELLIS_MARK = b"\xfe" + b"\xff" * 3
_NO_NORM = np.float32(1e-30)
_GREATEST = 1e30  # of a mean: no row minus it overflows
_LARGEST = 1e6  # of a metric


@dataclass(frozen=True, eq=False)
class Dictionary:
    """N atoms of d channels: a vector is mean + scale * (sum of integer coefficients times atoms).

    atoms: int8 (N, d). mean: float32 (d,), zeros where nothing was removed. uses: whose vectors they are for.
    rotation: how these are turned by their positions, if that is what such vectors were before.
    metric: float32 (d, d), symmetric and positive definite, in which an encoder measures errors; None for the plain
    one. No decoder needs it, and the set's hash does not cover it. errors: float32, relative error on held-out vectors
    after 1, 2, … atoms, empty if unknown. pursuit: by which vectors are coded, the encoder's affair as the metric is.
    """

    atoms: NDArray[np.int8]
    uses: tuple[Use, ...]
    mean: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    rotation: Rotation | None = None
    metric: NDArray[np.float32] | None = None
    errors: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    pursuit: Pursuit = Pursuit.OMP

    def __post_init__(self) -> None:
        shape = self.atoms.shape
        if self.atoms.dtype != np.int8 or len(shape) != 2 or not (
            1 <= shape[0] <= MAX_DICTIONARY and 1 <= shape[1] <= MAX_DIM
        ):  # fmt: skip
            raise ShapeError(f"atoms: {self.atoms.dtype} {shape}, want int8 (1 to {MAX_DICTIONARY}, 1 to {MAX_DIM})")
        object.__setattr__(self, "atoms", np.ascontiguousarray(self.atoms))  # kernels take its address
        if not self.mean.size:
            object.__setattr__(self, "mean", np.zeros(self.dim, np.float32))
        if self.mean.shape != (self.dim,) or not (np.abs(self.mean) <= _GREATEST).all():
            raise ShapeError(f"mean: {self.mean.shape}, want ({self.dim},) numbers of at most {_GREATEST:g}")
        object.__setattr__(self, "mean", np.ascontiguousarray(self.mean, np.float32))
        if self.metric is not None:
            object.__setattr__(self, "metric", _check_metric(self.metric, self.dim))
        if not np.isfinite(self.errors).all():
            raise ShapeError("errors: want finite numbers")
        if not self.uses or len(set(self.uses)) != len(self.uses):
            raise SpecError("a dictionary is for one or more streams, each named once")
        check_rotation(self.rotation, self.dim, self.uses)

    @property
    def size(self) -> int:
        """N, how many atoms."""
        return int(self.atoms.shape[0])

    @property
    def dim(self) -> int:
        """d, channels of an atom."""
        return int(self.atoms.shape[1])

    @property
    def transform(self) -> Transform:
        return Transform.NONE if self.rotation is None else Transform.PRE_ROPE

    @property
    def has_mean(self) -> bool:
        return bool(self.mean.any())

    @cached_property
    def norms(self) -> NDArray[np.float32]:
        """float32 (N,): length of each atom in the metric; 1 of an atom without length."""
        lengths = np.sqrt(self.energies(self.atoms.astype(np.float32)))
        return np.where(lengths > _NO_NORM, lengths, 1).astype(np.float32)

    @cached_property
    def _seen(self) -> NDArray[np.float32]:
        """float32 (N, d): what a vector is multiplied by to have its products with the unit atoms, in the metric."""
        return self._measure((self.atoms.astype(np.float32) / self.norms[:, None]).astype(np.float32))

    def _measure(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows (n, d) times the metric. As all that codes hang on, it is computed without a BLAS, row by row alike."""
        if self.metric is None:
            return rows
        from kvcodec.kernels.projection import project

        tiles = self._metric_tiles
        out = np.empty((len(rows), tiles.shape[0] * tiles.shape[2]), np.float32)
        project(np.ascontiguousarray(rows), tiles, out)
        return np.ascontiguousarray(out[:, : self.dim])

    @cached_property
    def _metric_tiles(self) -> NDArray[np.float32]:
        from kvcodec.kernels.projection import tile_atoms

        assert self.metric is not None
        return tile_atoms(self.metric)

    @cached_property
    def tiles(self) -> NDArray[np.float32]:
        """The same for kernels/projection.py, padded with atoms of zeros."""
        from kvcodec.kernels.projection import tile_atoms

        return tile_atoms(self._seen)

    @property
    def padded_size(self) -> int:
        """Atoms with that padding."""
        return int(self.tiles.shape[0] * self.tiles.shape[2])

    @cached_property
    def gram(self) -> NDArray[np.float32]:
        """float32 (N, N) of padded atoms: products of unit atoms, in the metric; 1 on the diagonal.

        Each is computed as a projection is: an encoder's choices do not hang on a BLAS.
        """
        from kvcodec.kernels.projection import project

        gram = np.zeros((self.padded_size, self.padded_size), np.float32)
        project((self.atoms / self.norms[:, None]).astype(np.float32), self.tiles, gram[: self.size])
        lower = np.tril(gram, -1)
        whole: NDArray[np.float32] = lower + lower.T + np.eye(self.padded_size, dtype=np.float32)
        return whole

    @cached_property
    def products(self) -> NDArray[np.int32]:
        """int32 (N, N): products of the int8 atoms, exact whatever adds them up."""
        wide = self.atoms.astype(np.float64)
        return (wide @ wide.T).astype(np.int32)

    def grown(self, atoms: NDArray[np.int8]) -> Dictionary:
        """With more atoms behind its own. Raises ShapeError. What errors say stays: where it stood before it grew."""
        return replace(self, atoms=np.concatenate([self.atoms, atoms]))

    def release(self) -> None:
        """Forget what an encoder made of it, N x N numbers among that; it is made again when it is asked for."""
        for name in ("norms", "_seen", "tiles", "gram", "products"):
            self.__dict__.pop(name, None)

    def energies(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 (n,): squared lengths of vectors (n, d), in the metric."""
        products = self._measure(rows) * rows
        lengths: NDArray[np.float32] = np.maximum(np.add.reduce(products.T, axis=0), 0).astype(np.float32)
        return lengths

    def head(self) -> bytes:
        """What stands before the atoms: uses, and the mean and the steps of the rotation if there is one."""
        mean = self.mean.astype("<f4").tobytes() if self.has_mean else b""
        return (
            uses_to_bytes(self.uses)
            + mean
            + (b"" if self.rotation is None else self.rotation.steps.astype("<u8").tobytes())
        )


@dataclass(frozen=True, eq=False)
class DictionarySet:
    """The dictionaries, product and trellis codes of a model's streams, named by a hash of all that a decoder needs."""

    dictionaries: tuple[Dictionary, ...] = ()
    products: tuple[Product, ...] = ()
    trellises: tuple[Trellis, ...] = ()

    def __post_init__(self) -> None:
        uses = [use for one in (*self.dictionaries, *self.shaped) for use in one.uses]
        count = len(self.dictionaries) + len(self.shaped)
        if not uses or len(set(uses)) != len(uses) or count >= 1 << 16:
            raise SpecError("a set has one or more dictionaries or other codes, and no stream two of them")
        self._check_predictions()

    def _check_predictions(self) -> None:
        """What V is predicted from is in the set, for the K of each of its layers."""
        for own in self.products:
            if own.prediction is None:
                continue
            for layer, _ in own.uses:
                source = self.find_product(layer, StreamId.K)
                if source is None or not own.prediction.is_from(source):
                    raise SpecError(f"layer {layer} V is predicted from codes of K that are not in the set")

    @property
    def shaped(self) -> tuple[Product | Trellis, ...]:
        """Its product codes and trellis codes."""
        return (*self.products, *self.trellises)

    @cached_property
    def hash(self) -> bytes:
        """16 bytes that name this set: the first of the SHA-256 of its dictionaries, one after the other."""
        digest = hashlib.sha256()
        for one in self.dictionaries:
            shape = [one.size, one.dim, len(one.uses), one.transform, one.has_mean]
            shape += [] if one.rotation is None else [one.rotation.pairs]
            digest.update(np.array(shape, "<u4").tobytes() + one.head())
            digest.update(one.atoms.tobytes())
        for product in self.products:
            digest.update(_PRODUCT_MARK + product.to_bytes())
        for trellis in self.trellises:
            digest.update(_TRELLIS_MARK + trellis.to_bytes())
        return digest.digest()[:HASH_BYTES]

    @cached_property
    def _by_use(self) -> dict[Use, Dictionary]:
        return {use: one for one in self.dictionaries for use in one.uses}

    def with_pursuit(self, pursuit: str | Pursuit | None) -> DictionarySet:
        """This set, whose vectors are to be coded by that pursuit (omp, ormp, mp); by None as before. SpecError."""
        if pursuit is None or all(one.pursuit == Pursuit.parse(pursuit) for one in self.dictionaries):
            return self
        own = tuple(replace(one, pursuit=Pursuit.parse(pursuit)) for one in self.dictionaries)
        return DictionarySet(own, self.products, self.trellises)

    def find(self, layer: int, stream: StreamId) -> Dictionary | None:
        """The dictionary of a stream of a layer."""
        return self._by_use.get((layer, stream))

    def find_product(self, layer: int, stream: StreamId) -> Product | None:
        """The product codes of a stream of a layer."""
        return self._products.get((layer, stream))

    def find_trellis(self, layer: int, stream: StreamId) -> Trellis | None:
        """The trellis codes of a stream of a layer."""
        return self._trellises.get((layer, stream))

    def find_for(self, spec: CodecSpec, layer: int, stream: StreamId) -> Trained | None:
        """What a spec wants of them."""
        find = self.find_product if spec.product else self.find_trellis if spec.trellis else self.find
        return find(layer, stream)

    @cached_property
    def _products(self) -> dict[Use, Product]:
        return {use: one for one in self.products for use in one.uses}

    @cached_property
    def _trellises(self) -> dict[Use, Trellis]:
        return {use: one for one in self.trellises for use in one.uses}

    def uses(self) -> Sequence[Use]:
        """All streams that have a dictionary or other codes."""
        return sorted([*self._by_use, *self._products, *self._trellises])

    @property
    def nbytes(self) -> int:
        """Bytes of atoms and means, and of product and trellis codes."""
        own = sum(one.atoms.nbytes + (one.mean.nbytes if one.has_mean else 0) for one in self.dictionaries)
        return own + sum(len(one.to_bytes()) for one in self.shaped)

    def describe(self) -> str:
        """One line for an error or a report."""
        sizes = sorted({(one.size, one.dim) for one in self.dictionaries})
        shapes = ", ".join(f"{n}x{d}" for n, d in sizes)
        parts = [f"{len(self.dictionaries)} dictionaries of {shapes}"] if sizes else []
        parts += [f"{len(self.products)} product codes"] if self.products else []
        parts += [f"{len(self.trellises)} trellis codes"] if self.trellises else []
        return f"{self.hash.hex()} ({', '.join(parts)})"


def _check_metric(metric: NDArray[np.float32], dim: int) -> NDArray[np.float32]:
    """A metric as kernels take it. Raises ShapeError for one that measures nothing, or that float32 cannot bear."""
    diagonal = np.diagonal(metric) if metric.shape == (dim, dim) else np.zeros(1)
    if not (diagonal > 0).all() or not (np.abs(metric) <= _LARGEST).all() or not np.allclose(metric, metric.T):
        raise ShapeError(f"metric: {metric.shape}, want ({dim}, {dim}) symmetric, its diagonal from 0 to {_LARGEST:g}")
    return np.ascontiguousarray(metric, np.float32)


def quantize_atoms(atoms: NDArray[Any]) -> NDArray[np.int8]:
    """int8 atoms (N, d) of float ones: all times one number, such that the greatest component becomes 127."""
    most = float(np.abs(atoms).max(initial=0))
    if not np.isfinite(most) or most <= 0:
        raise ShapeError("atoms: not finite, or all zero")
    return np.rint(atoms * (127 / most)).astype(np.int8)
