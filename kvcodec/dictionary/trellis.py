"""Training trellis codes: rates under one budget, a basis as integers, tables that all streams share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.transform import MAX_COMPONENTS, Analysis
from kvcodec.codecs.trellis import Trellis
from kvcodec.codecs.uses import Use
from kvcodec.codecs.vectors import SIDE_BYTES
from kvcodec.dictionary.basis import analysis_rows, quantize_basis, weigh_squares
from kvcodec.dictionary.product import gain_table
from kvcodec.dictionary.rates import LEAST_CODE_BYTES, count_losses, share_bytes, spare_rates
from kvcodec.dictionary.spectrum import Spectrum
from kvcodec.dictionary.trellis_tables import MOST_RATE, normal_tables
from kvcodec.errors import SpecError
from kvcodec.trellis_spec import MAX_CODE_BYTES

_UNITS = 256  # of an entry, in the deviation of a component: the greatest of 7 bits are near 1,200
_GOLDEN = 0.6180339887498949
_ROOM = 0.98 * 2**31  # for sums of products before they are rounded


def plan_bytes(spectra: Sequence[Spectrum], budget: float, tokens: Sequence[float], *, alike: bool) -> list[int]:
    """Bytes of bits of each stream for `budget` bytes a vector on average, weighted by the tokens that streams hold.

    alike: each stream has the budget; else errors in the streams' metrics are compared with each other. Raises
    SpecError for a budget that leaves nothing.
    """
    codes = budget - SIDE_BYTES
    if not LEAST_CODE_BYTES <= codes <= MAX_CODE_BYTES:
        least, most = LEAST_CODE_BYTES + SIDE_BYTES, MAX_CODE_BYTES + SIDE_BYTES
        raise SpecError(f"a budget of {budget:g} bytes, want {least} to {most}")
    if alike:
        return [min(round(codes), -(-MOST_RATE * len(own.mean) // 8)) for own in spectra]
    variances = [own.variances * own.energy for own in spectra]
    return share_bytes(variances, count_losses(normal_tables().distortions), codes * len(spectra), tokens)


def fit_trellis(
    spectrum: Spectrum,
    sample: NDArray[np.float32],
    code_bytes: int,
    uses: tuple[Use, ...],
    *,
    rotation: Rotation | None = None,
    step: Callable[[float], None] = lambda _share: None,
) -> Trellis:
    """Trellis codes of so many bytes of bits for vectors like those of the sample (n, d), whose spectrum is given."""
    normal = normal_tables()
    rates = spare_rates(spectrum.variances[:MAX_COMPONENTS], count_losses(normal.distortions), code_bytes)
    order = spread_out(np.flatnonzero(rates))
    variances, rates = spectrum.variances[order], rates[order]
    tables = np.rint(normal.tables[np.unique(rates) - 1] * _UNITS).astype(np.int16)
    units = np.sqrt(variances) / _UNITS
    rows = spectrum.synthesis[:, order].T * units[:, None]
    greatest = np.abs(tables).max(axis=1)[np.unique(rates, return_inverse=True)[1]].astype(np.float64)
    sums = np.add.reduce(np.abs(rows) * greatest[:, None], axis=0)
    basis, shapes = quantize_basis(rows, max(float(np.abs(rows).max()) / 32767, float(sums.max()) / _ROOM))
    lengths = np.linalg.norm(sample.astype(np.float64), axis=1)
    step(1.0)
    return Trellis(
        basis, rates, tables, gain_table(lengths.min(), lengths.max()), shapes, uses,
        spectrum.mean.astype(np.float32),
        Analysis(analysis_rows(spectrum, order), units.astype(np.float32), weigh_squares(variances)), rotation,
    )  # fmt: skip


def spread_out(components: NDArray[np.int64]) -> NDArray[np.int64]:
    """Components, the greatest first, in an order in which those of many bits stand among those of few: a window then
    holds bits of more of them.
    """
    places = np.arange(1, len(components) + 1) * _GOLDEN % 1
    return components[np.argsort(places, kind="stable")]
