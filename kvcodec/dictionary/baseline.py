"""The plainest coder of vectors over a codebook, to compare others with: 18 bytes a vector.

A codebook of 2,048 random unit atoms; of each vector the 6 atoms with the greatest products, each as a u16 index and
that product, rounded to an int8, without a scale and without a refit. Vectors are taken as they are: products beyond
±127 are cut off, small ones become 0. It is not a codec of the log.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.errors import CorruptRecord, ShapeError
from kvcodec.kernels.projection import project, tile_atoms
from kvcodec.kernels.pursuit import top_dots

CODEBOOK_ATOMS = 2048
TAKEN = 6
CODE = np.dtype([("atom", "<u2", (TAKEN,)), ("coefficient", "i1", (TAKEN,))])
CODE_BYTES = CODE.itemsize
_MOST = 127
_BLOCK = 256  # vectors whose products are held at once


def random_codebook(dim: int, seed: int = 0) -> NDArray[np.float32]:
    """float32 (2048, dim) atoms of unit length, of random directions. Raises ShapeError for a dim below 1."""
    if dim < 1:
        raise ShapeError(f"dim is {dim}, want 1 channel at least")
    atoms = np.random.default_rng(seed).standard_normal((CODEBOOK_ATOMS, dim))
    return np.asarray(atoms / np.linalg.norm(atoms, axis=1, keepdims=True), np.float32)


def encode_vectors(vectors: NDArray[Any], codebook: NDArray[np.float32]) -> NDArray[np.uint8]:
    """uint8 (n, 18) codes of finite vectors (n, d). Raises ShapeError."""
    if vectors.ndim != 2 or codebook.ndim != 2 or vectors.shape[1] != codebook.shape[1] or len(codebook) < TAKEN:
        raise ShapeError(f"vectors {vectors.shape}, codebook {codebook.shape}: want (n, d) and ({TAKEN} or more, d)")
    tiles = tile_atoms(codebook)
    products = np.empty((_BLOCK, tiles.shape[0] * tiles.shape[2]), np.float32)
    codes = np.zeros(len(vectors), CODE)
    indices = np.empty((_BLOCK, TAKEN), np.uint16)
    taken, counts = np.empty((_BLOCK, TAKEN), np.float32), np.empty(_BLOCK, np.int64)
    for start in range(0, len(vectors), _BLOCK):
        rows = np.ascontiguousarray(vectors[start : start + _BLOCK], np.float32)
        n, own = len(rows), codes[start : start + _BLOCK]
        project(rows, tiles, products[:n])
        top_dots(products[:n], indices[:n], taken[:n], counts[:n])
        own["atom"] = indices[:n]
        own["coefficient"] = np.rint(np.clip(taken[:n], -_MOST, _MOST))
    return codes.view(np.uint8).reshape(len(vectors), CODE_BYTES)


def decode_vectors(codes: NDArray[np.uint8], codebook: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 (n, d) from codes (n, 18). Raises ShapeError; CorruptRecord for an atom that the codebook has not."""
    if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != CODE_BYTES:
        raise ShapeError(f"codes: {codes.dtype} {codes.shape}, want uint8 (n, {CODE_BYTES})")
    own = np.ascontiguousarray(codes).reshape(-1).view(CODE)
    beyond = np.argwhere(own["atom"] >= len(codebook))
    if len(beyond):
        raise CorruptRecord(CODE_BYTES * int(beyond[0, 0]), f"an atom beyond the {len(codebook)} of the codebook")
    out = np.zeros((len(own), codebook.shape[1]), np.float32)
    for place in range(TAKEN):
        out += own["coefficient"][:, place, None].astype(np.float32) * codebook[own["atom"][:, place]]
    return out
