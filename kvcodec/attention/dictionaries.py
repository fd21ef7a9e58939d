"""Dictionaries as kernels read them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.headers import Header, make_turns, round_mean
from kvcodec.codecs.codec import take_out
from kvcodec.codecs.dictionary import Dictionary
from kvcodec.layout import TILE_LANES, align

_ATOMS = 64  # that kernels multiply at a time
_WIDE = 32  # channels that rebuilding sums at a time


class Atoms(Header):
    """A dictionary in memory for kernels: atoms padded with zeros to whole vectors, the mean as integers."""

    def __init__(self, own: Dictionary) -> None:
        from kvcodec.kernels import forms

        dim = align(own.dim, TILE_LANES)
        self.size, self.padded = own.size, align(own.size, _ATOMS)
        self.dim = dim
        self._atoms = take_out(None, (self.padded, dim), np.int8)
        self._atoms[...] = 0
        self._atoms[: own.size, : own.dim] = own.atoms
        self._mean, exponent = round_mean(own.mean, dim)
        columns = {
            forms.ATOMS: self._atoms.ctypes.data, forms.SIZE: own.size, forms.PADDED: self.padded, forms.CHANNELS: dim,
            forms.MEAN: self._mean.ctypes.data if own.has_mean else 0, forms.EXPONENT: exponent, forms.WIDTH: own.dim,
        }  # fmt: skip
        super().__init__(columns, own.rotation)
        self._to_rebuild: tuple[NDArray[Any], ...] = ()

    def prepare_rebuilding(self) -> None:
        """See Header: a second copy of the atoms, and turns of the nearest positions."""
        if self._to_rebuild:
            return
        from kvcodec.kernels import forms
        from kvcodec.kernels._rebuild import ATOM_ORDER, BIAS, SUM_ORDER
        from kvcodec.kernels.rebuild import MEAN_ROOM

        wide = align(self.dim, _WIDE)
        mean = np.ascontiguousarray(self._mean.reshape(-1, TILE_LANES)[:, SUM_ORDER] << np.int32(MEAN_ROOM))
        biased = take_out(None, (self.padded, wide), np.uint8)
        biased[...] = BIAS
        biased[:, : self.dim] = self._atoms.astype(np.int16) + BIAS
        biased[...] = biased.reshape(-1, wide // _WIDE, _WIDE)[:, :, ATOM_ORDER].reshape(biased.shape)
        greatest = max(int(np.abs(self._atoms.astype(np.int16)).max()), 1)
        near, far = make_turns(self.rotation)
        self.enter({
            forms.GREATEST: greatest, forms.BIASED: biased.ctypes.data, forms.SUMMED: mean.ctypes.data,
            forms.TURNING: near.shape[2], forms.NEAR: near.ctypes.data, forms.FAR: far.ctypes.data,
        })  # fmt: skip
        self._to_rebuild = biased, mean, near, far

    @property
    def work_bytes(self) -> int:
        """See Header."""
        from kvcodec.kernels.lookup import work_bytes

        return work_bytes(self.padded, self.dim)

    def table_bytes(self, per_head: int) -> int:  # noqa: ARG002
        """See Header."""
        from kvcodec.kernels.lookup import table_bytes

        return int(table_bytes(self.padded))

    def bucket_bytes(self, heads: int) -> int:
        """See Header."""
        from kvcodec.kernels.buckets import bucket_bytes

        return int(bucket_bytes(self.padded, heads))
