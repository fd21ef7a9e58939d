"""Looking again where a writer erased blocks under a reader: what it missed may be there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvcodec.flash.device import Device


def looks(device: Device, most: int) -> Iterator[None]:
    """Until no block was erased or begun during one, and so many at most: where a writer never rests, what is missed
    must be taken for lost in the end.
    """
    for _ in range(most):
        before = device.generations()
        yield
        if np.array_equal(before, device.generations()):
            return
