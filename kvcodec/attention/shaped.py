"""What headers of product codes and of trellis codes have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.transform import Transformed
from kvcodec.layout import align

WIDE = 32  # channels that rebuilding sums at a time
_LEAST = 0x80  # bits of the least bfloat16 that is not subnormal


def make_sides(own: Transformed) -> NDArray[np.uint16]:
    """uint16 (256, 16, 2): bits of scale and gain of each gain and shape, those that are subnormal 0."""
    sides = np.empty((256, 16, 2), np.uint16)
    sides[..., 0], sides[..., 1] = normal_bits(own.scale_table), normal_bits(own.gain_table)[:, None]
    return sides


def pair_components(rows: NDArray[Any], multiple: int) -> NDArray[np.int16]:
    """int16 (ceil(components / 2), columns padded to that multiple, 2) of rows (components, columns), padding 0."""
    count, columns = rows.shape
    wide = np.zeros((align(count, 2), align(columns, multiple)), np.int16)
    wide[:count, :columns] = rows
    return np.ascontiguousarray(wide.reshape(-1, 2, wide.shape[1]).transpose(0, 2, 1))


def normal_bits(table: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of bfloat16 numbers, not negative, that are not subnormal; of others 0."""
    bits = (np.ascontiguousarray(table).view(np.uint32) >> 16).astype(np.uint16)
    return np.where(bits < _LEAST, np.uint16(0), bits)
