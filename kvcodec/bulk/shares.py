"""Progress of work in several phases over a log, whose pages are let go of on the way."""

from __future__ import annotations

import time

from kvcodec.bulk.chunks import Progress
from kvcodec.flash.device import Device

_PERIOD = 0.05  # seconds between letting go of the pages that were read


class Shares:
    """Makes of one progress, in thousandths, that of each phase."""

    def __init__(self, device: Device, tell: Progress) -> None:
        self._device, self._tell, self._released = device, tell, 0.0

    def share(self, start: int, end: int) -> Progress:
        """That of a phase which takes the work from `start` to `end`, in thousandths."""

        def tell(done: int, total: int) -> None:
            if time.monotonic() > self._released + _PERIOD:
                self._device.image.release()
                self._released = time.monotonic()
            self._tell(start + (end - start) * done // max(1, total), 1000)

        return tell
