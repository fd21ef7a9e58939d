"""Caches and queries to attend with, and what attention over them should give, in float64."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.bench.scale import HEAD_DIM
from kvcodec.codecs import EncodedArray
from kvcodec.codecs.dictionary import Dictionary, quantize_atoms
from kvcodec.codecs.planes import lay_planes, pack_rows
from kvcodec.codecs.product import Product
from kvcodec.codecs.pursuit import empty_codes
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.transform import Analysis
from kvcodec.layout import DtypeId, StreamId
from kvcodec.spec import CodecSpec

_OFFSET = 2.0  # of K's channels, in standard deviations: what makes one scale a channel worth having
_BLOCK = 8192  # tokens; longer caches repeat them
PRODUCT_DIM = 256


class Cache(NamedTuple):
    """q: float32 (q_heads, dim). k, v: float32 (kv_heads, tokens, dim), exactly bfloat16."""

    q: NDArray[np.float32]
    k: NDArray[np.float32]
    v: NDArray[np.float32]


def make_values(
    heads: int, tokens: int, seed: int, offset: float = _OFFSET, dim: int = HEAD_DIM
) -> NDArray[np.float32]:
    """float32 (heads, tokens, dim), exactly bfloat16, of standard deviation 1.

    offset: standard deviation of what each channel is off 0.
    """
    random = np.random.default_rng(seed)
    offsets = random.standard_normal(dim).astype(np.float32) * np.float32(offset)
    block = random.standard_normal((heads, min(tokens, _BLOCK), dim), np.float32) + offsets
    block = block.astype(ml_dtypes.bfloat16).astype(np.float32)
    return np.tile(block, (1, -(-tokens // _BLOCK), 1))[:, :tokens]


def make_cache(q_heads: int, kv_heads: int, tokens: int, dim: int = HEAD_DIM) -> Cache:
    """A cache whose logits have a standard deviation of about 1. Only channels of K have offsets, as in real caches."""
    q = np.random.default_rng(0).standard_normal((q_heads, dim), np.float32)
    q = q.astype(ml_dtypes.bfloat16).astype(np.float32)
    return Cache(q, make_values(kv_heads, tokens, 1, dim=dim), make_values(kv_heads, tokens, 2, 0.0, dim))


def make_dictionary(atoms: int, dim: int = HEAD_DIM, *, turned: bool = False) -> Dictionary:
    """Random atoms of one length; turned: of keys from before their rotary embedding, with a mean, as these have."""
    random = np.random.default_rng(3)
    rows = random.standard_normal((atoms, dim))
    own, use = quantize_atoms(rows / np.linalg.norm(rows, axis=1, keepdims=True)), (0, StreamId.K)
    if not turned:
        return Dictionary(own, (use,))
    mean = random.standard_normal(dim).astype(np.float32)
    return Dictionary(own, (use,), mean, Rotation.of_base(10_000.0, dim))


@functools.lru_cache(maxsize=4)
def _choose_atoms(seed: int, rows: int, size: int, atoms: int) -> NDArray[np.int64]:
    """Different ones in each row, (rows, atoms)."""
    order = np.argsort(np.random.default_rng([seed, size]).random((rows, size), np.float32), axis=1)
    return order[:, :atoms].copy()


def make_codes(
    spec: str, dictionary: Dictionary, heads: int, tokens: int, stream: StreamId, kept: int | None = None
) -> EncodedArray:
    """Random codes over a dictionary, of vectors whose channels have a standard deviation of about 1: no pursuit.

    tokens: whole records of them. kept: atoms of a vector whose coefficients are not 0.
    """
    bound = CodecSpec.parse(spec).bound_to(dictionary.size, bytes(16))
    own, random = bound.sparse, np.random.default_rng(int(stream))
    assert own is not None
    codes, most = empty_codes(heads * tokens, own.atoms), (1 << (own.bits - 1)) - 1
    block = min(len(codes.scales), _BLOCK)
    chosen = _choose_atoms(int(stream), block, dictionary.size, own.atoms)
    codes.indices[:] = np.tile(chosen, (-(-len(codes.scales) // block), 1))[: len(codes.scales)]
    codes.coefficients[:] = random.integers(-most, most + 1, codes.coefficients.shape)
    codes.coefficients[:, own.atoms if kept is None else kept :] = 0
    length = float(np.linalg.norm(dictionary.atoms.astype(np.float64), axis=1).mean()) * most * math.sqrt(own.atoms / 3)
    scales = random.uniform(0.5, 1.5, len(codes.scales)) * math.sqrt(dictionary.dim) / length
    codes.counts[:] = own.atoms
    codes.scales[:] = scales.astype(ml_dtypes.bfloat16).view(np.uint16)
    body = lay_planes(pack_rows(codes, own).reshape(tokens, heads, -1), bound.group, own)
    shape = tokens, heads, dictionary.dim
    errors = np.zeros(body.shape[:2], np.uint16)
    return EncodedArray(bound, stream, DtypeId.BFLOAT16, *shape, body, body[:0], errors, dictionary)


def make_product(groups: int, stream: StreamId, dim: int = PRODUCT_DIM) -> Product:
    """Random product codes, five components a group, of vectors whose channels have a standard deviation of about 1."""
    random, components = np.random.default_rng([groups, int(stream)]), min(5 * groups, dim)
    basis = np.rint(random.standard_normal((components, dim)) * 3000).clip(-32767, 32767).astype(np.int16)
    books = random.integers(-127, 128, (components, 256)).astype(np.int8)
    ends = np.linspace(0, components, groups + 1).astype(np.int64)[1:]
    one = 3000 * 127 * math.sqrt(components / 3)  # deviation of a channel of sums
    gains, shapes = (np.arange(256) / 128).astype(ml_dtypes.bfloat16), (np.linspace(0.5, 1.5, 16) / one)
    mean = random.standard_normal(dim).astype(np.float32) * np.float32(0.1)
    none = Analysis(*(np.ones(0, np.float32) for _ in range(3)))
    sides = gains.view(np.uint16), shapes.astype(ml_dtypes.bfloat16).view(np.uint16)
    return Product(basis, books, ends, *sides, ((0, stream),), mean, none)


def make_product_codes(own: Product, heads: int, tokens: int) -> EncodedArray:
    """Any codes. tokens: whole records of them."""
    stream = own.uses[0][1]
    spec, random = CodecSpec.parse("pq").bound_to(own.groups, bytes(16)), np.random.default_rng(int(stream))
    body = random.integers(0, 256, (tokens // spec.group, heads, (own.groups + 2) * spec.group), np.uint8)
    body[..., : spec.group] |= 64  # gains of 0.5 and more
    body[..., spec.group : 2 * spec.group] &= 15
    errors = np.zeros(body.shape[:2], np.uint16)
    return EncodedArray(spec, stream, DtypeId.BFLOAT16, tokens, heads, own.dim, body, body[:0], errors, own)


def attend(q: NDArray[Any], k: NDArray[Any], v: NDArray[Any]) -> NDArray[np.float64]:
    """float64 (q_heads, dim): softmax(k q / sqrt(dim)) v, one KV head after the other. Shapes as in Cache."""
    per_head = len(q) // len(k)
    out = np.empty(q.shape)
    for head in range(len(k)):
        mine = slice(head * per_head, (head + 1) * per_head)
        logits = q[mine].astype(np.float64) @ k[head].astype(np.float64).T / math.sqrt(q.shape[1])
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        out[mine] = weights / weights.sum(axis=1, keepdims=True) @ v[head].astype(np.float64)
    return out
