"""Product codes as kernels read them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.headers import Header, make_turns, round_mean
from kvcodec.attention.shaped import WIDE, make_sides, normal_bits, pair_components
from kvcodec.codecs.codec import take_out
from kvcodec.codecs.product import Product
from kvcodec.codecs.transform import multiply_gains
from kvcodec.layout import TILE_LANES, align

_CENTROIDS = 256


class Books(Header):
    """Product codes in memory for kernels: components padded with zeros so that each group has an even number, channels
    to whole vectors, the mean as integers. Scales and gains that are subnormal are 0.
    """

    def __init__(self, own: Product) -> None:
        from kvcodec.kernels import forms

        sizes = np.diff(own.ends, prepend=0)
        self._ends = np.cumsum(sizes + (sizes & 1)).astype(np.int64)
        self.groups, self.components, self.dim = own.groups, int(self._ends[-1]), align(own.dim, TILE_LANES)
        where = np.arange(len(own.basis)) + np.repeat(self._ends - (sizes & 1) - own.ends, sizes)
        self._basis = take_out(None, (self.components, self.dim), np.int16)
        self._books = take_out(None, (self.components, _CENTROIDS), np.int8)
        self._basis[...], self._books[...] = 0, 0
        self._basis[where, : own.dim], self._books[where] = own.basis, own.books
        self._mean, exponent = round_mean(own.mean, self.dim)
        self._sides = make_sides(own)
        self._own_components, self._where, self.name = len(own.basis), where, own.name
        self.prediction = own.prediction
        if own.prediction is not None:
            self._told = normal_bits(multiply_gains(own.gain_table, own.prediction.scale_table))
        self._predicted: NDArray[np.int16] | None = None
        columns = {
            forms.CHANNELS: self.dim, forms.MEAN: self._mean.ctypes.data if own.mean.any() else 0,
            forms.EXPONENT: exponent, forms.WIDTH: own.dim, forms.GROUPS: own.groups,
            forms.COMPONENTS: self.components, forms.ENDS: self._ends.ctypes.data, forms.BASIS: self._basis.ctypes.data,
            forms.BOOKS: self._books.ctypes.data, forms.SIDES: self._sides.ctypes.data,
        }  # fmt: skip
        super().__init__(columns, own.rotation)
        self._to_rebuild: tuple[NDArray[Any], ...] = ()

    def prepare_rebuilding(self) -> None:
        """See Header: components by twos, and turns of the nearest positions."""
        if self._to_rebuild:
            return
        from kvcodec.kernels import forms

        pairs = pair_components(self._basis, WIDE), pair_components(self._books, _CENTROIDS)
        near, far = make_turns(self.rotation)
        self.enter({
            forms.PAIRED_BASIS: pairs[0].ctypes.data, forms.PAIRED_BOOKS: pairs[1].ctypes.data,
            forms.TURNING: near.shape[2], forms.NEAR: near.ctypes.data, forms.FAR: far.ctypes.data,
        })  # fmt: skip
        self._to_rebuild = (*pairs, near, far)

    def prepare_prediction(self, source: Header | None) -> bool:
        """Make what kernels take that rebuild V predicted from codes of K, once. source: K's header. Whether it can be
        predicted from that; anything can that is not predicted at all.
        """
        if self.prediction is None:
            return True
        if not isinstance(source, Books) or not self.prediction.is_of(source.name, source._own_components):
            return False
        source.prepare_rebuilding()
        if self._predicted is None:
            from kvcodec.kernels import forms

            wide = np.zeros((source.components, self.prediction.basis.shape[1]), np.int16)
            wide[source._where] = self.prediction.basis
            self._predicted = pair_components(wide, WIDE)
            self.enter({forms.TOLD: self._told.ctypes.data, forms.PREDICTED: self._predicted.ctypes.data})
        return True

    @property
    def work_bytes(self) -> int:
        """See Header."""
        from kvcodec.kernels.product_tables import product_work_bytes

        return product_work_bytes(self.components)

    def table_bytes(self, per_head: int) -> int:
        """See Header."""
        from kvcodec.kernels.product_tables import product_table_bytes

        return int(product_table_bytes(self.groups, per_head))

    def bucket_bytes(self, heads: int) -> int:
        """See Header."""
        from kvcodec.kernels.product_buckets import product_bucket_bytes

        return int(product_bucket_bytes(self.groups, heads))
