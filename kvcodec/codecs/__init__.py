"""Codecs: rows of keys or values to a record's body and back.

Importing this package does not import numba; the first grouped codec, or the first search for NaN, does.
"""

from kvcodec.codecs.array import EncodedArray, decode_array, encode_array
from kvcodec.codecs.codec import Codec, Encoded, codec_for, find_nonfinite

__all__ = [
    "Codec",
    "Encoded",
    "EncodedArray",
    "codec_for",
    "decode_array",
    "encode_array",
    "find_nonfinite",
]
