"""Trellis codes of random numbers for tests: what their codes are like does not matter."""

import ml_dtypes
import numpy as np

from kvcodec.codecs.transform import Analysis
from kvcodec.codecs.trellis import Trellis
from kvcodec.dictionary.product import gain_table
from kvcodec.layout import StreamId


def trellis(dim=8, components=6, uses=((0, StreamId.K),), rotation=None, seed=0, window=8, rates=None):
    """Rates by lot unless they are given."""
    lot = np.random.default_rng(seed)
    rates = lot.integers(1, min(8, window - 3) + 1, components) if rates is None else np.array(rates)
    shapes = (2.0 ** np.arange(-4, 4, 0.5) * 1e-6).astype(ml_dtypes.bfloat16).view(np.uint16)
    analysis = Analysis(
        lot.standard_normal((components + 1, dim)).astype(np.float32), np.full(components, 0.005, np.float32),
        np.full(components, 1 / components, np.float32),
    )  # fmt: skip
    return Trellis(
        lot.integers(-9000, 9000, (components, dim)).astype(np.int16), rates.astype(np.uint8),
        lot.integers(-900, 901, (len(set(rates.tolist())), 1 << window)).astype(np.int16), gain_table(0.1, 50.0),
        shapes, uses, (0.1 * lot.standard_normal(dim)).astype(np.float32), analysis, rotation, 98.0,
    )  # fmt: skip
