"""Product codes, or trellis codes, for many streams under one budget of bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.prediction import GivenCodes
from kvcodec.codecs.product import Product
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.trellis import Trellis
from kvcodec.codecs.uses import Use
from kvcodec.codecs.vectors import SIDE_BYTES
from kvcodec.dictionary.budget import CODE_BITS, LEAST_GROUPS, count_groups, fill_rates
from kvcodec.dictionary.prediction import Pairs, find_rest, take_pairs
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
    """Streams that share codes: their vectors, those held out, the metric in which errors are measured, and the tokens
    that they hold, which say what a byte costs. source: of V, the number of the stream of K from whose codes it is to
    be predicted; their vectors belong together one by one.
    """

    uses: tuple[Use, ...]
    training: Vectors
    held_out: Vectors
    metric: NDArray[np.float32] | None = None
    rotation: Rotation | None = None
    tokens: float = 1.0
    source: int | None = None


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
        if isinstance(own, Product):
            sizes = {"groups": own.groups, "predicted": own.prediction is not None}
        else:
            sizes = {"bits": own.bits, "window": own.window}
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

    What predictions leave is known once K is coded, and how many bytes K gets hangs on what they leave: K is coded by
    half of the sample for a first budget, and anew for the one that comes of that.
    map_: runs work for each stream, perhaps in parallel; the result does not hang on it. tell: called with what was
    done. step: called with the number of a stream and the share of its work that is done; what it raises ends all.
    Raises ShapeError, SpecError.
    """
    own = _Training(streams, form_of(codec, seed), budget, sample, tell, step)
    spectra = map_(own.study, range(len(streams)))
    sizes = own.plan(spectra, alike=alike)
    first, later = ([n for n, one in enumerate(streams) if (one.source is None) is plain] for plain in (True, False))
    if later:
        rests = dict(zip(later, map_(lambda n: own.study_rest(n, spectra, sizes), later), strict=True))
        sizes = own.plan([rests.get(n, one) for n, one in enumerate(spectra)], alike=alike)
    found = dict(zip(first, map_(lambda n: own.fit(n, spectra[n], sizes[n]), first), strict=True))

    def fit_later(n: int) -> TrainedProduct:
        number = streams[n].source
        assert number is not None
        source = found[number].product
        assert isinstance(source, Product)
        return own.fit(n, spectra[n], sizes[n], source)

    found |= dict(zip(later, map_(fit_later, later), strict=True))
    return [found[n] for n in range(len(streams))]


class _Training:
    """Work for one of some streams, by its number."""

    def __init__(
        self, streams: Sequence[Stream], form: Form, budget: float, sample: int, tell: Callable[[str], None],
        step: Callable[[int, float], None],
    ) -> None:  # fmt: skip
        self._streams, self._form, self._budget, self._sample = streams, form, budget, sample
        self._tell, self._step = tell, step

    def plan(self, spectra: Sequence[Spectrum], *, alike: bool) -> list[int]:
        """Sizes of the codes of all streams."""
        tokens = [own.tokens for own in self._streams]
        return self._form.plan(spectra, self._budget, tokens, alike=alike)

    def study(self, n: int) -> Spectrum:
        """The spectrum of a stream."""
        own = self._streams[n]
        rows = take_sample(own.training, self._sample)
        self._tell(f"{_name(own)}: {len(rows)} vectors looked at")
        found = find_spectrum(rows, own.metric)
        self._step(n, _STUDY / 2 if own.source is not None else _STUDY)
        return found

    def study_rest(self, n: int, spectra: Sequence[Spectrum], sizes: Sequence[int]) -> Spectrum:
        """The spectrum of what K leaves of V, where K has so many codes."""
        own = self._streams[n]
        assert own.source is not None
        pairs, keys = self._take_pairs(own), self._streams[own.source]
        draft = self._form.fit(
            spectra[own.source], pairs.keys[::2], sizes[own.source], keys.uses,
            step=lambda share: self._step(n, _STUDY * (1 + share) / 2),
        )  # fmt: skip
        assert isinstance(draft, Product)
        return find_rest(draft, pairs, own.metric).spectrum

    def fit(self, n: int, plain: Spectrum, size: int, source: Product | None = None) -> TrainedProduct:
        """Codes of a stream; source: those of the K that it is predicted from. plain: the spectrum that errors
        are measured by.
        """
        own = self._streams[n]
        if source is None:
            rows, spectrum, told = take_sample(own.training, self._sample), plain, {}
        else:
            pairs = self._take_pairs(own)
            rows, (prediction, spectrum, given) = pairs.values, find_rest(source, pairs, own.metric)
            told = {"prediction": prediction, "given": given}
        fitted = self._form.fit(
            spectrum, rows, size, own.uses, rotation=own.rotation, **told,
            step=lambda share: self._step(n, _STUDY + (1 - _STUDY) * share),
        )  # fmt: skip
        product = replace(fitted, budget=round_budget(self._budget))
        keys = None if own.source is None else self._streams[own.source].held_out
        error, in_metric = measure_product(product, plain, own.held_out, source, keys)
        self._tell(f"{_name(own)}: {product.code_bytes + SIDE_BYTES} bytes, held-out error {error:.4f}")
        return TrainedProduct(product, error, in_metric, len(rows))

    def _take_pairs(self, own: Stream) -> Pairs:
        assert own.source is not None
        return take_pairs(self._streams[own.source].training, own.training, self._sample)


def measure_product(
    own: Product | Trellis,
    spectrum: Spectrum,
    vectors: Vectors,
    source: Product | None = None,
    keys: Vectors | None = None,
) -> tuple[float, float]:
    """Relative errors of vectors: plain, and in the metric, there against vectors without their mean, each with weight
    1 / |x|². spectrum: of the vectors. source, keys: product codes and vectors of the K that they are predicted from.
    """
    missed = total = missed_in = total_in = 0.0
    parts = read_parts(vectors, _PART)
    for rows, others in zip(parts, repeat(None) if keys is None else read_parts(keys, _PART), strict=False):
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
        used = lengths > 0
        given = None if source is None or others is None else GivenCodes(source, source.code(others[used]))
        kept = rows[used].astype(np.float64)
        wrong = kept - _recode(own, rows[used], given)
        missed, total = missed + float(np.square(wrong).sum()), total + float(np.square(kept).sum())
        centred = kept / lengths[used, None] - spectrum.mean
        wrong /= lengths[used, None]
        missed_in += float(np.square(wrong @ spectrum.analysis).sum())
        total_in += float(np.square(centred @ spectrum.analysis).sum())
    return float(np.sqrt(missed / max(total, 1e-300))), float(np.sqrt(missed_in / max(total_in, 1e-300)))


def _recode(own: Product | Trellis, rows: NDArray[np.float32], given: GivenCodes | None) -> NDArray[np.float32]:
    if isinstance(own, Product):
        return own.rebuild(own.code(rows, given), given)
    return own.rebuild(own.code(rows))


def _name(own: Stream) -> str:
    return ", ".join(f"layer {layer} {stream.name}" for layer, stream in own.uses)
