"""How K and V are coded, as the user says it, and rows that went through the real codec."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs.array import EncodedArray, decode_array, encode_array
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.codecs.product import Product
from kvcodec.dictionary.artefact import read_dictionary
from kvcodec.errors import KvcodecError
from kvcodec.layout import ALIGNMENT, GROUP_HEADER, StreamId, align
from kvcodec.spec import CodecSpec
from tools.capture.failure import CaptureError

RAW = CodecSpec.parse("raw")
_STREAMS = {"k": StreamId.K, "v": StreamId.V}


class Coded(NamedTuple):
    """Rows of a stream as a reader of the cache has them: float32 (tokens, heads, dim).

    encoded: what they were decoded from. counts: vectors, that is rows times heads; bytes that these have raw, of
    16-bit rows; nbytes of codes and all side values; headers, of the records, as a log has them, with their error
    figures.
    """

    rows: NDArray[np.float32]
    encoded: EncodedArray
    counts: Counter[str]


class Coding:
    """text: as the user gave it. specs: of K and V. dictionaries: of the .kvdict file, or None."""

    def __init__(self, text: str, specs: dict[StreamId, CodecSpec], dictionaries: DictionarySet | None) -> None:
        self.text, self.specs, self.dictionaries = text, specs, dictionaries

    @classmethod
    def parse(cls, text: str) -> Coding:
        """ "int4/token/g32" for K and V, or "k=... v=...", either with "@FILE.kvdict" behind. Raises CaptureError."""
        specs: dict[StreamId, CodecSpec] = {}
        dictionaries = None
        try:
            for word in text.split():
                name, equals, spec = word.partition("=")
                if word.startswith("@") and dictionaries is None:
                    dictionaries = read_dictionary(Path(word[1:]))
                elif equals and name in _STREAMS and _STREAMS[name] not in specs:
                    specs[_STREAMS[name]] = CodecSpec.parse(spec)
                elif not equals and not word.startswith("@") and not specs:
                    specs = dict.fromkeys(_STREAMS.values(), CodecSpec.parse(word))
                else:
                    raise CaptureError(f"coding {text!r}: {word!r} is one too many, or not k=SPEC, v=SPEC or @FILE")
        except (KvcodecError, OSError) as error:
            raise CaptureError(f"coding {text!r}: {error}") from None
        if specs.keys() != set(_STREAMS.values()):
            raise CaptureError(f"coding {text!r}: want SPEC, or k=SPEC v=SPEC")
        if dictionaries is None and any(spec.is_trained for spec in specs.values()):
            raise CaptureError(f"coding {text!r}: which dictionaries? Name their file: @FILE.kvdict")
        return cls(text, specs, dictionaries)

    @property
    def name(self) -> str:
        """`text` without the folder of its file."""
        return " ".join(f"@{Path(word[1:]).name}" if word.startswith("@") else word for word in self.text.split())

    @property
    def table_bytes(self) -> int:
        """Of the dictionaries and product codes of its file."""
        return 0 if self.dictionaries is None else self.dictionaries.nbytes

    def lacks(self, layer: int, stream: StreamId) -> bool:
        """Whether this stream stays raw because the file has no dictionary for it."""
        own = self.dictionaries
        spec = self.specs[stream]
        return spec.is_trained and (own is None or own.find_for(spec, layer, stream) is None)

    def code(
        self, layer: int, stream: StreamId, rows: NDArray[np.float32], dtype: Any, sinks: int,
        keys: EncodedArray | None = None,
    ) -> Coded:  # fmt: skip
        """Codes rows (tokens, heads, dim), as `dtype` of 16 bits has them, the first one at position 0, and decodes
        them. The first `sinks` are no part of this, and come out as they were. keys: for V, the coded K of its tokens.
        Raises CaptureError.
        """
        spec, dictionary = self.specs[stream], None
        if self.lacks(layer, stream):
            spec = RAW
        elif spec.is_trained and self.dictionaries is not None:
            dictionary = self.dictionaries.find_for(spec, layer, stream)
        given = rows.copy()
        given[:sinks] = rows[min(sinks, len(rows) - 1)]  # a sink of ten times the size would be in a group's scale
        try:
            needed = keys if isinstance(dictionary, Product) and dictionary.prediction is not None else None
            encoded = encode_array(given, spec, stream=stream, dtype=dtype, dictionary=dictionary, given=needed)
            decoded = decode_array(encoded, dtype=np.float32)
        except KvcodecError as error:
            raise CaptureError(f"coding {self.text!r}, layer {layer}: {error}") from None
        decoded[:sinks] = rows[:sinks]
        tokens, heads = rows.shape[:2]
        header = GROUP_HEADER.itemsize + align(2 * heads, ALIGNMENT)
        records = len(encoded.full) + len(encoded.tail)
        counts = Counter(vectors=tokens * heads, raw=2 * rows.size, nbytes=encoded.nbytes, headers=records * header)
        return Coded(decoded, encoded, counts)
