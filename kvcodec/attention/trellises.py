"""Trellis codes as kernels read them: no table of products serves them, their rows are rebuilt."""

from __future__ import annotations

import numpy as np

from kvcodec.attention.headers import Header, make_turns, round_mean
from kvcodec.attention.shaped import WIDE, make_sides, pair_components
from kvcodec.codecs.trellis import Trellis
from kvcodec.layout import TILE_LANES, align


class Paths(Header):
    """Trellis codes in memory for kernels: components by twos, one of zeros behind them if they are odd, channels
    padded with zeros, the mean as integers. Scales and gains that are subnormal are 0.
    """

    def __init__(self, own: Trellis) -> None:
        from kvcodec.kernels import forms

        self.code_bytes, count = own.code_bytes, align(len(own.basis), 2)
        dim = align(own.dim, TILE_LANES)
        self._basis, self._sides = pair_components(own.basis, WIDE), make_sides(own)
        self._mean, exponent = round_mean(own.mean, dim)
        self._tables = np.ascontiguousarray(own.tables)
        self._rates, places = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._rates[: len(own.rates)], places[: len(own.rates)] = own.rates, own.places
        self._entries = self._tables.ctypes.data + self._tables.strides[0] * places
        self._turns = make_turns(own.rotation)
        near, far = self._turns
        columns = {
            forms.CHANNELS: dim, forms.MEAN: self._mean.ctypes.data if own.mean.any() else 0,
            forms.EXPONENT: exponent, forms.WIDTH: own.dim, forms.GROUPS: own.code_bytes, forms.COMPONENTS: count,
            forms.SIDES: self._sides.ctypes.data, forms.PAIRED_BASIS: self._basis.ctypes.data,
            forms.WINDOW: own.window, forms.RATES: self._rates.ctypes.data, forms.ENTRIES: self._entries.ctypes.data,
            forms.TURNING: near.shape[2], forms.NEAR: near.ctypes.data, forms.FAR: far.ctypes.data,
        }  # fmt: skip
        super().__init__(columns, own.rotation)

    def prepare_rebuilding(self) -> None:
        """See Header: all is there."""

    @property
    def work_bytes(self) -> int:
        """See Header."""
        return 0

    def table_bytes(self, per_head: int) -> int:  # noqa: ARG002
        """See Header."""
        return 0

    def bucket_bytes(self, heads: int) -> int:  # noqa: ARG002
        """See Header."""
        return 0
