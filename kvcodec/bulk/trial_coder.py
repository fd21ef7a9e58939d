"""How a codec on trial codes rows, and how many bytes that takes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvcodec.codecs import codec_for, decode_array, encode_array
from kvcodec.codecs.array import EncodedArray
from kvcodec.codecs.dictionary import Dictionary, DictionarySet, quantize_atoms
from kvcodec.codecs.product import Product
from kvcodec.codecs.vectors import widen
from kvcodec.dictionary import baseline
from kvcodec.errors import ShapeError, SpecError
from kvcodec.layout import DtypeId, StreamId
from kvcodec.sparse_spec import Pursuit
from kvcodec.spec import CodecSpec

if TYPE_CHECKING:
    from kvcodec.codecs.bounded import BoundedCodec
    from kvcodec.codecs.codec import Trained

ARTICLE = "article"
_CODEBOOK = "random"  # 2,048 of them


class TrialRows(NamedTuple):
    """Decoded rows, float32 (tokens, heads, dim), and the bytes that they were in between."""

    rows: NDArray[np.float32]
    nbytes: int


class Coder(Protocol):
    """A codec on trial. codec, atoms, pursuit: in words."""

    codec: str
    atoms: str
    pursuit: str

    def check(self, layer: int, *dims: int) -> None:
        """Raise SpecError, ShapeError where it cannot code K and V of so many channels."""
        ...

    def code(self, rows: NDArray[Any], layer: int, stream: StreamId, first: int) -> TrialRows:
        """Rows (tokens, heads, dim) of bfloat16, float16 or float32 from token `first` on, those of a layer's K before
        the same ones of its V. Raises NonFiniteError.
        """
        ...


class ArticleCoder:
    """The 18 bytes of kvcodec.dictionary.baseline."""

    codec, atoms, pursuit = ARTICLE, _CODEBOOK, "products"

    def check(self, layer: int, *dims: int) -> None:
        """Any will do."""

    def code(self, rows: NDArray[Any], layer: int, stream: StreamId, first: int) -> TrialRows:  # noqa: ARG002
        """See `Coder`."""
        codebook = _codebook(rows.shape[2])
        codes = baseline.encode_vectors(rows.reshape(-1, rows.shape[2]).astype(np.float32), codebook)
        return TrialRows(baseline.decode_vectors(codes, codebook).reshape(rows.shape), codes.nbytes)


class SpecCoder:
    """A codec as a log, or an array, has it, of a set of dictionaries and other codes where it takes one."""

    def __init__(self, spec: str, own: DictionarySet | None = None, atoms: str = "", pursuit: str = "") -> None:
        self._spec, self._own = CodecSpec.parse(spec), own
        self.codec, self.atoms, self.pursuit = spec, atoms, pursuit
        self._keys: dict[tuple[int, int], EncodedArray] = {}  # of one layer, by that and by first tokens

    def check(self, layer: int, *dims: int) -> None:
        """See `Coder`."""
        for stream, dim in zip((StreamId.K, StreamId.V), dims, strict=True):
            self.dictionary(layer, stream, dim)

    def dictionary(self, layer: int, stream: StreamId, dim: int) -> Trained | None:
        """Of the stream, or its product or trellis codes. Raises SpecError, ShapeError."""
        what = self._spec.trained_as
        if self._own is None:
            if self._spec.shaped is not None:
                raise SpecError(f"{self.codec} needs {what}: pass dictionary= (--dictionary)")
            return None
        found, where = self._own.find_for(self._spec, layer, stream), f"layer {layer} {stream.name}"
        if found is None:
            uses = self._own.uses()
            known = sorted({n for n, other in uses if self._own.find_for(self._spec, n, other)})
            advice = f"choose layers of {','.join(map(str, known))} (--layers)" if known else "the set has none at all"
            raise SpecError(f"{where}: no {what} for it; {advice}")
        if found.dim != dim:
            whose = "dictionary's atoms" if self._spec.sparse is not None else what
            raise ShapeError(f"{where}: {dim} channels, its {whose} have {found.dim}")
        return found

    def code(self, rows: NDArray[Any], layer: int, stream: StreamId, first: int) -> TrialRows:
        """See `Coder`."""
        dictionary = self.dictionary(layer, stream, rows.shape[2])
        given = self._take_keys(dictionary, layer, first)
        if self._spec.bounded:
            codec = codec_for(self._spec, stream, dictionary).at(first)
            return _code_bounded(cast("BoundedCodec", codec), rows)
        coded = encode_array(rows, self._spec, stream=stream, dictionary=dictionary, first=first, given=given)
        if stream == StreamId.K and coded.spec.product is not None:
            self._keys = {at: keys for at, keys in self._keys.items() if at[0] == layer} | {(layer, first): coded}
        return TrialRows(decode_array(coded).astype(np.float32), coded.nbytes)

    def _take_keys(self, trained: Trained | None, layer: int, first: int) -> EncodedArray | None:
        """The coded K that V is predicted from, if it is."""
        predicted = isinstance(trained, Product) and trained.prediction is not None
        return self._keys.pop((layer, first), None) if predicted else None


class CodebookCoder(SpecCoder):
    """A `dict` spec over the article's random codebook, rounded to int8."""

    def __init__(self, spec: str) -> None:
        super().__init__(spec, None, _CODEBOOK, Pursuit.OMP)

    def dictionary(self, layer: int, stream: StreamId, dim: int) -> Dictionary:  # noqa: ARG002
        """The same for all."""
        return _random_dictionary(dim)


@cache
def _codebook(dim: int) -> NDArray[np.float32]:
    return baseline.random_codebook(dim)


@cache
def _random_dictionary(dim: int) -> Dictionary:
    return Dictionary(quantize_atoms(_codebook(dim)), ((0, StreamId.K),))


def _code_bounded(codec: BoundedCodec, rows: NDArray[Any]) -> TrialRows:
    dtype = DtypeId.FLOAT16 if rows.dtype == np.float16 else DtypeId.BFLOAT16
    halves = np.ascontiguousarray(rows.astype(ml_dtypes.bfloat16) if rows.dtype == np.float32 else rows)
    bits, parts, nbytes = halves.view(np.uint16), [], 0
    split = len(bits) - len(bits) % codec.token_group
    for part, tokens in ((bits[:split], codec.token_group), (bits[split:], len(bits) - split)):
        for record in codec.encode_records(part, dtype, tokens) if tokens else ():
            nbytes += len(record.mixed.join())
            parts.append(widen(codec.decode_record(record, tokens, dtype), dtype))
            codec = codec.at(codec.first + tokens)
    return TrialRows(np.concatenate(parts) if parts else np.zeros(rows.shape, np.float32), nbytes)
