"""Rows of product codes: from vectors to codes and back, beside FAISS."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcodec.bench.peers import Peers
from kvcodec.bench.row import OURS, Contender, Entry, Row, WrongResult, require_close
from kvcodec.bench.scale import Scale
from kvcodec.codecs.product import Product
from kvcodec.codecs.vectors import SIDE_BYTES
from kvcodec.dictionary.product import fit_product
from kvcodec.dictionary.spectrum import find_spectrum
from kvcodec.layout import StreamId

DIM = 256  # channels of a head of Gemma 3
ROW_BYTES = 32
_TRAINED = 1024  # vectors, or as many as are coded
_FEW = 64  # vectors whose nearest centroids are found in float64
_DECAY = 0.97  # of the deviations of components, one after the other
_FAISS = "FAISS ProductQuantizer"


@dataclass(frozen=True)
class Problem:
    """Vectors float32 (n, DIM) and product codes for such, ROW_BYTES a vector. known: others to train on."""

    product: Product
    vectors: NDArray[np.float32]
    known: NDArray[np.float32]

    @cached_property
    def error(self) -> float:
        """Of our codes, relative."""
        back = self.product.rebuild(self.product.code(self.vectors))
        return float(np.linalg.norm(back - self.vectors) / np.linalg.norm(self.vectors))


def make_problem(vectors: int, row_bytes: int = ROW_BYTES) -> Problem:
    """Vectors whose components decay as those of keys do, of different lengths, turned at random."""
    lot = np.random.default_rng(0)
    turn, _ = np.linalg.qr(lot.standard_normal((DIM, DIM)))
    trained, spread = max(_TRAINED, vectors), _DECAY ** np.arange(DIM)
    x = (lot.standard_normal((trained + vectors, DIM)) * spread + 0.5 * spread.sum() / DIM) @ turn
    x = (x * np.exp(0.2 * lot.standard_normal((len(x), 1)))).astype(np.float32)
    known = x[:trained]
    product = fit_product(find_spectrum(known, None), known, row_bytes - SIDE_BYTES, ((0, StreamId.K),))
    return Problem(product, np.ascontiguousarray(x[trained:]), known)


def product_codec_rows(scale: Scale) -> list[Row]:
    """Coding and decoding at 32 bytes."""
    n = scale.cached_tokens
    shape = f"{n} vectors x {DIM}, {ROW_BYTES} bytes"

    def encode(peers: Peers, _: Any) -> Sequence[Entry]:
        problem = make_problem(n)
        enter = peers.enter("faiss", _FAISS, lambda library: _encode_by_faiss(library, problem))
        return [_encode(problem), enter]

    def decode(peers: Peers, _: Any) -> Sequence[Entry]:
        problem = make_problem(n)
        enter = peers.enter("faiss", _FAISS, lambda library: _decode_by_faiss(library, problem))
        return [_decode(problem), enter]

    return [
        Row("product-encode", "product codes of vectors", shape, "vector", encode),
        Row("product-decode", "vectors of product codes", shape, "vector", decode),
    ]


def _encode(problem: Problem) -> Contender:
    own, vectors = problem.product, problem.vectors

    def check() -> None:
        if not problem.error < 0.5:
            raise WrongResult(f"{OURS}: relative error of the vectors is {problem.error:.2g}")

    return Contender(OURS, lambda: own.code(vectors), len(vectors), check=check)


def _decode(problem: Problem) -> Contender:
    own = problem.product
    coded = own.code(problem.vectors)

    def check() -> None:
        ends = [0, *own.ends.tolist()]
        books = [own.books[first:end].astype(np.float64) for first, end in itertools.pairwise(ends)]
        parts = [book[:, coded.codes[:, g]] for g, book in enumerate(books)]
        sums = np.concatenate(parts).T @ own.basis.astype(np.float64)
        gains = own.gain_table[coded.gains][:, None].astype(np.float64)
        wanted = sums * own.scale_table[coded.gains, coded.shapes][:, None] + gains * own.mean
        require_close(OURS, own.rebuild(coded), wanted, 1e-5)

    return Contender(OURS, lambda: own.rebuild(coded), len(problem.vectors), check=check)


def _train_faiss(faiss: Any, problem: Problem) -> Any:
    """As many codes of 8 bits, each for as many channels, of the vectors as they are."""
    groups = 1 << int(np.log2(problem.product.groups + SIDE_BYTES))  # must divide the channels
    quantizer = faiss.ProductQuantizer(DIM, groups, 8)
    quantizer.cp.niter, quantizer.cp.min_points_per_centroid = 4, 1
    quantizer.train(problem.known)
    return quantizer


def _encode_by_faiss(faiss: Any, problem: Problem) -> Contender:
    quantizer, found = _train_faiss(faiss, problem), list[Any]([None])

    def run() -> None:
        found[0] = quantizer.compute_codes(problem.vectors)

    def check() -> None:
        books = faiss.vector_to_array(quantizer.centroids).reshape(quantizer.M, 256, -1).astype(np.float64)
        few = problem.vectors[:_FEW].reshape(-1, quantizer.M, 1, books.shape[2]).astype(np.float64)
        distances = np.square(few - books).sum(axis=3)
        least, own = distances.min(axis=2), np.take_along_axis(distances, found[0][:_FEW, :, None].astype(int), 2)
        require_close(_FAISS, own[..., 0], least, 1e-4, "distances to centroids")

    return Contender(_FAISS, run, len(problem.vectors), check=check)


def _decode_by_faiss(faiss: Any, problem: Problem) -> Contender:
    quantizer = _train_faiss(faiss, problem)
    coded, found = quantizer.compute_codes(problem.vectors), list[Any]([None])

    def run() -> None:
        found[0] = quantizer.decode(coded)

    def check() -> None:
        books = faiss.vector_to_array(quantizer.centroids).reshape(quantizer.M, 256, -1)
        wanted = books[np.arange(quantizer.M), coded].reshape(len(coded), DIM)
        require_close(_FAISS, found[0], wanted, 1e-7)

    return Contender(_FAISS, run, len(problem.vectors), check=check)
