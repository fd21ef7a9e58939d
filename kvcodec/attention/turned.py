"""Queries for keys from before their rotary embedding: turned back, so that keys need be turned by little alone.

The product of a query with a key that is turned by p + r is that of the query turned back by p with the key turned by
r. Kernels turn keys by 0 to 127 positions, and a query back by multiples of 64; here it is by multiples of 4,096.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.columns import DICTIONARY, FORM, POSITION, REBUILT, TURNED, place_column
from kvcodec.attention.headers import TURNED_AT_ONCE
from kvcodec.attention.query import Queries
from kvcodec.attention.trained import header_at

_UNIT = 30  # bits behind the point of a cosine


class TurnedQueries:
    """Numbers of queries, turned: (heads, channels of a stream) for each query and 4,096 positions of its strips.

    Their addresses are entered in the strips (n, columns), of which `asked` (n,) are the queries. streams: of each that
    is scored its number, its channels and where they begin in a query.
    """

    def __init__(
        self,
        strips: NDArray[np.int64],
        asked: NDArray[np.int64],
        forms: NDArray[np.int64],
        queries: Queries,
        streams: Iterable[tuple[int, int, int]],
    ) -> None:
        self._kept: list[NDArray[np.int32]] = []
        for stream, dim, column in streams:
            form = strips[:, place_column(stream) + FORM]
            address = forms[form, DICTIONARY] * (forms[form, REBUILT] > 0)
            blocks = strips[:, POSITION] // TURNED_AT_ONCE
            own = np.flatnonzero(address)
            keys, which = np.unique(np.stack([asked, address, blocks])[:, own], axis=1, return_inverse=True)
            places = [
                self._turn(queries.numbers[query, :, column : column + dim], at, block) for query, at, block in keys.T
            ]
            strips[own, place_column(stream) + TURNED] = np.array(places, np.int64)[which.reshape(-1)]

    def _turn(self, numbers: NDArray[np.int32], address: int, block: int) -> int:
        """Address of numbers (heads, channels) turned back by a block's first position; 0 where nothing turns."""
        rotation = header_at(int(address)).rotation
        if rotation is None:
            return 0
        turned, pairs = numbers.copy(), rotation.pairs
        cosine, sine = rotation.turns(np.array([block * TURNED_AT_ONCE]))[0].astype(np.int64)
        one, two = (numbers[:, n : n + pairs].astype(np.int64) for n in (0, pairs))
        half = 1 << (_UNIT - 1)
        turned[:, :pairs] = (one * cosine + two * sine + half) >> _UNIT
        turned[:, pairs : 2 * pairs] = (two * cosine - one * sine + half) >> _UNIT
        self._kept.append(turned)
        return turned.ctypes.data
