"""V that is predicted from the codes of its K: kernels find those in the stream before it, of the same strip."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.columns import FORM, KEPT, place_column
from kvcodec.attention.headers import Header
from kvcodec.attention.products import Books
from kvcodec.attention.strips import Form
from kvcodec.attention.trained import header_at, lock
from kvcodec.errors import SpecError


def pair_predictions(strips: NDArray[np.int64], forms: list[Form], streams: int) -> None:
    """Have V's headers ready for the codes of K that strips have. Raises SpecError where those are none of its K."""
    headers = [header_at(form.dictionary) if form.terms else None for form in forms]
    for number, own in enumerate(headers):
        if not isinstance(own, Books) or own.prediction is None:
            continue
        for stream in range(streams):
            of_it = strips[strips[:, place_column(stream) + FORM] == number]
            if len(of_it):
                keys = of_it[:, place_column(stream - 1) :] if stream else None
                _pair(own, keys, headers)


def _pair(own: Books, keys: NDArray[np.int64] | None, headers: Sequence[Header | None]) -> None:
    """keys: columns of the stream before, of all strips that `own` is for, or None if there is none."""
    if keys is not None and not keys[:, KEPT].any():
        sources = [headers[number] for number in np.unique(keys[:, FORM]).tolist()]
        with lock:
            if all(own.prepare_prediction(source) for source in sources):
                return
    raise SpecError("v is predicted from the codes of its K, and k is not in those")
