"""Product codes, or trellis codes, for many streams under one budget of bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.product import Product
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.trellis import Trellis
from kvcodec.codecs.uses import Use
from kvcodec.codecs.vectors import SIDE_BYTES
from kvcodec.dictionary.budget import CODE_BITS, LEAST_GROUPS, count_groups, fill_rates
from kvcodec.dictionary.product import fit_product
from kvcodec.dictionary.spectrum import Spectrum, find_spectrum, take_sample
from kvcodec.dictionary.trellis import fit_trellis, plan_bytes
from kvcodec.dictionary.vectors import Vectors, read_parts
from kvcodec.errors import SpecError
from kvcodec.kernels._centroids import CENTROIDS
from kvcodec.product_spec import MAX_GROUPS
from kvcodec.shaped_spec import round_budget

SAMPLE, LEAST_SAMPLE = 32_768, CENTROIDS
_STUDY = 0.2  # of the work for a stream
_PART = 4096  # vectors that are coded at once


Map = Callable[[Callable[[int], Any], Sequence[int]], Sequence[Any]]


def _one_by_one(work: Callable[[int], Any], keys: Sequence[int]) -> list[Any]:
    return [work(key) for key in keys]


@dataclass(frozen=True)
class Stream:
    """Streams that share codes: their vectors, those held out, the metric in which errors are measured, and
    the tokens that they hold, which say what a byte costs.
    """

    uses: tuple[Use, ...]
    training: Vectors
    held_out: Vectors
    metric: NDArray[np.float32] | None = None
    rotation: Rotation | None = None
    tokens: float = 1.0


@dataclass(frozen=True)
class TrainedProduct:
    """error: relative, of held-out vectors; in_metric: of the metric, relative to the vectors without their mean."""

    product: Product | Trellis
    error: float
    in_metric: float
    vectors: int

    def as_dict(self) -> dict[str, Any]:
        """JSON-able, for the artefact."""
        own = self.product
        sizes = {"groups": own.groups} if isinstance(own, Product) else {"bits": own.bits, "window": own.window}
        return sizes | {
            "bytes": own.code_bytes + SIDE_BYTES, "components": len(own.basis),
            "error": round(self.error, 6), "in_metric": round(self.in_metric, 6), "vectors": self.vectors,
        }  # fmt: skip


def plan_groups(spectra: Sequence[Spectrum], budget: float, tokens: Sequence[float], *, alike: bool) -> list[int]:
    """Codes of each stream for `budget` bytes a vector on average, weighted by the tokens that streams hold.

    alike: each stream has the budget; else errors in the streams' metrics are compared with each other, which is right
    where they say what a whole model loses. Raises SpecError for a budget that leaves nothing.
    """
    codes = budget - SIDE_BYTES
    if not LEAST_GROUPS <= codes <= MAX_GROUPS:
        raise SpecError(f"a budget of {budget:g} bytes, want {LEAST_GROUPS + SIDE_BYTES} to {MAX_GROUPS + SIDE_BYTES}")
    most = [min(MAX_GROUPS, len(own.mean)) for own in spectra]  # no group is empty
    if alike:
        return [min(round(codes), limit) for limit in most]
    variances = [own.variances * own.energy for own in spectra]
    rates = fill_rates(variances, CODE_BITS * codes, tokens)
    return count_groups(rates, codes * len(spectra), tokens, most)


class Form(NamedTuple):
    """How codes of a kind are made. plan: as plan_groups, sizes of the streams' codes. fit: as fit_product, codes of
    such a size for vectors.
    """

    plan: Callable[..., list[int]]
    fit: Callable[..., Product | Trellis]


def form_of(codec: str, seed: int) -> Form:
    """Of the codec pq or tcq."""
    if codec == "tcq":
        return Form(plan_bytes, fit_trellis)
    return Form(plan_groups, partial(fit_product, seed=seed))


def train_products(
    streams: Sequence[Stream],
    budget: float,
    *,
    alike: bool,
    codec: str = "pq",
    sample: int = SAMPLE,
    seed: int = 0,
    map_: Map = _one_by_one,
    tell: Callable[[str], None] = lambda _line: None,
    step: Callable[[int, float], None] = lambda _stream, _share: None,
) -> list[TrainedProduct]:
    """Product codes, or those of codec tcq, of streams with a budget of bytes a vector. sample: vectors of a stream
    that are looked at, most.

    map_: runs work for each stream, perhaps in parallel; the result does not hang on it. tell: called with what was
    done. step: called with the number of a stream and the share of its work that is done; what it raises ends all.
    Raises SpecError.
    """

    def study(n: int) -> Spectrum:
        own = streams[n]
        rows = take_sample(own.training, sample)
        tell(f"{_name(own)}: {len(rows)} vectors looked at")
        found = find_spectrum(rows, own.metric)
        step(n, _STUDY)
        return found

    form = form_of(codec, seed)
    spectra = map_(study, range(len(streams)))
    sizes = form.plan(spectra, budget, [own.tokens for own in streams], alike=alike)

    def fit(n: int) -> TrainedProduct:
        own = streams[n]
        rows = take_sample(own.training, sample)
        fitted = form.fit(
            spectra[n], rows, sizes[n], own.uses, rotation=own.rotation,
            step=lambda share: step(n, _STUDY + (1 - _STUDY) * share),
        )  # fmt: skip
        product = replace(fitted, budget=round_budget(budget))
        error, in_metric = measure_product(product, spectra[n], own.held_out)
        tell(f"{_name(own)}: {product.code_bytes + SIDE_BYTES} bytes, held-out error {error:.4f}")
        return TrainedProduct(product, error, in_metric, len(rows))

    return list(map_(fit, range(len(streams))))


def measure_product(own: Product | Trellis, spectrum: Spectrum, vectors: Vectors) -> tuple[float, float]:
    """Relative errors of vectors: plain, and in the metric, there against vectors without their mean, each with weight
    1 / |x|².
    """
    missed = total = missed_in = total_in = 0.0
    for rows in read_parts(vectors, _PART):
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
        used = lengths > 0
        wrong = rows[used].astype(np.float64) - own.rebuild(own.code(rows[used]))  # type: ignore[arg-type]
        kept = rows[used].astype(np.float64)
        missed, total = missed + float(np.square(wrong).sum()), total + float(np.square(kept).sum())
        centred = kept / lengths[used, None] - spectrum.mean
        wrong /= lengths[used, None]
        missed_in += float(np.square(wrong @ spectrum.analysis).sum())
        total_in += float(np.square(centred @ spectrum.analysis).sum())
    return float(np.sqrt(missed / max(total, 1e-300))), float(np.sqrt(missed_in / max(total_in, 1e-300)))


def _name(own: Stream) -> str:
    return ", ".join(f"layer {layer} {stream.name}" for layer, stream in own.uses)
