"""CRC32C (Castagnoli), the only checksum of the format. A checksum finds accidents; it proves no author."""

from __future__ import annotations

import google_crc32c
import numpy as np
import numpy.typing as npt

Buffer = bytes | npt.NDArray[np.uint8]


def crc32c(data: Buffer, seed: int = 0) -> int:
    """CRC32C of `data`, continued from `seed`: crc32c(b, crc32c(a)) is crc32c(a + b)."""
    return int(google_crc32c.extend(seed, data))
