"""Caches for tests: rows that any process can make again from (layer, token), and small geometries."""

import functools

import ml_dtypes
import numpy as np

from kvcodec import Geometry, Layer, Model

TINY = Geometry.parse("page=512,unit=64,block=8192")
SMALL = Geometry.parse("page=2048,unit=512,block=65536")
GEOMETRIES = {name: Geometry.parse(name) for name in ("tlc", "slc", "mlc", "qlc", "nor")} | {
    "small": SMALL,
    "tiny": TINY,
}


BLOCK = 256


@functools.lru_cache(4096)
def _block(salt, layer, stream, heads, dim, block):
    random = np.random.default_rng([salt, layer, "kv".index(stream), block])
    return random.standard_normal((BLOCK, heads, dim))


def rows(layer, stream, tokens, heads=2, dim=16, dtype=ml_dtypes.bfloat16, salt=0):
    """Rows (tokens, heads, dim) for a range or array of token numbers; a row depends on its token alone."""
    tokens = np.arange(tokens) if isinstance(tokens, int) else np.asarray(tokens, int)
    out = np.empty((len(tokens), heads, dim))
    for block in np.unique(tokens // BLOCK):
        inside = tokens // BLOCK == block
        out[inside] = _block(salt, layer, stream, heads, dim, int(block))[tokens[inside] % BLOCK]
    return out.astype(dtype)


def bits(array):
    return np.ascontiguousarray(array).view(np.uint16)


def same(a, b):
    return a.shape == b.shape and np.array_equal(bits(a), bits(b))


def tiny_model(layers=2, heads=2, dim=16, dtype="bfloat16"):
    return Model((Layer.kv(heads, dim),) * layers, dtype)
