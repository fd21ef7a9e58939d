"""Rows of trellis codes: from vectors to codes and back, and attention, which rebuilds vectors strip by strip."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvcodec.attention.arrays import prepare_arrays
from kvcodec.attention.run import Prepared
from kvcodec.attention.tiers import Tiered
from kvcodec.bench.attention_data import PRODUCT_DIM, attend, make_cache
from kvcodec.bench.attention_peers import enter_attention
from kvcodec.bench.peers import Peers
from kvcodec.bench.product_codec_rows import make_problem
from kvcodec.bench.row import OURS, Contender, Entry, Row, WrongResult, require_close
from kvcodec.bench.scale import Scale
from kvcodec.codecs import EncodedArray, decode_array, encode_array
from kvcodec.codecs.trellis import Trellis, TrellisCodes
from kvcodec.codecs.trellis_rows import TrellisCodec
from kvcodec.codecs.vectors import SIDE_BYTES
from kvcodec.dictionary.spectrum import find_spectrum
from kvcodec.dictionary.trellis import fit_trellis
from kvcodec.layout import DtypeId, StreamId
from kvcodec.spec import CodecSpec

_ROW_BYTES = 98
_FEW = 64  # vectors that are rebuilt bit by bit
_Q_HEADS, _KV_HEADS = 32, 8
_INT4 = f"{OURS}, INT4"


def trellis_codec_rows(scale: Scale) -> list[Row]:
    """Coding and decoding at 98 bytes."""
    n = scale.cached_tokens // 4
    shape = f"{n} vectors x {PRODUCT_DIM}, {_ROW_BYTES} bytes"
    return [
        Row("trellis-encode", "trellis codes of vectors", shape, "vector", lambda _peers, _: [_encode(n)]),
        Row("trellis-decode", "vectors of trellis codes", shape, "vector", lambda _peers, _: [_decode(n)]),
    ]


def trellis_rows(scale: Scale) -> list[Row]:
    """Attention of heads that share KV heads."""
    tokens = scale.context
    shape = f"{_ROW_BYTES} bytes, {tokens} tokens, {_Q_HEADS} heads on {_KV_HEADS} x {PRODUCT_DIM}"
    return [
        Row("attend-tcq-32-heads", "attention on trellis codes, heads that share KV heads", shape, "token",
            lambda peers, _: _attention(peers, tokens)),
    ]  # fmt: skip


def _fit(vectors: int) -> tuple[Trellis, NDArray[np.float32]]:
    """Trellis codes, and vectors for them."""
    problem = make_problem(vectors)
    known = problem.known
    return fit_trellis(find_spectrum(known, None), known, _ROW_BYTES - SIDE_BYTES, ((0, StreamId.K),)), problem.vectors


def _encode(count: int) -> Contender:
    own, vectors = _fit(count)

    def check() -> None:
        error = float(np.linalg.norm(own.rebuild(own.code(vectors)) - vectors) / np.linalg.norm(vectors))
        if not error < 0.1:
            raise WrongResult(f"{OURS}: relative error of the vectors is {error:.2g}")

    return Contender(OURS, lambda: own.code(vectors), count, check=check)


def _decode(count: int) -> Contender:
    own, vectors = _fit(count)
    coded = own.code(vectors)

    def check() -> None:
        few = TrellisCodes(*(field[:_FEW] for field in coded))
        require_close(OURS, own.rebuild(few), _rebuild(own, few), 1e-5)

    return Contender(OURS, lambda: own.rebuild(coded), count, check=check)


def _rebuild(own: Trellis, coded: TrellisCodes) -> NDArray[np.float64]:
    """Vectors of codes, in float64, from windows cut out of whole numbers."""
    starts = np.cumsum(own.rates, dtype=np.int64) - own.rates
    numbers = [int.from_bytes(row.tobytes(), "little") for row in coded.bits]
    windows = np.array([[number >> int(start) & (1 << own.window) - 1 for start in starts] for number in numbers])
    sums = own.tables[own.places, windows].astype(np.float64) @ own.basis.astype(np.float64)
    gains = own.gain_table[coded.gains][:, None].astype(np.float64)
    out: NDArray[np.float64] = sums * own.scale_table[coded.gains, coded.shapes][:, None] + gains * own.mean
    return out


def _make_codes(own: Trellis, tokens: int, stream: StreamId) -> EncodedArray:
    """Any bits, of gains and shapes in the middle. tokens: whole records of them."""
    random = np.random.default_rng(int(stream))
    rows = random.integers(0, 256, (tokens, _KV_HEADS, own.code_bytes + SIDE_BYTES), np.uint8)
    rows[..., 0], rows[..., 1] = (random.integers(*ends, rows.shape[:2]) for ends in ((100, 200), (5, 12)))
    rows[..., -1] &= 0xFF >> -own.bits % 8
    codec = TrellisCodec(CodecSpec.parse("tcq"), own)
    body = codec.lay(rows, codec.spec.group, own.dim, alike=False).body
    errors = np.zeros(body.shape[:2], np.uint16)
    return EncodedArray(
        codec.spec, stream, DtypeId.BFLOAT16, tokens, _KV_HEADS, own.dim, body, body[:0], errors, own
    )  # fmt: skip


def _attention(peers: Peers, tokens: int) -> Sequence[Entry]:
    """Attention by trellis codes, by INT4, and the peers on as many tokens."""
    data, (own, _) = make_cache(_Q_HEADS, _KV_HEADS, tokens, PRODUCT_DIM), _fit(1)
    trellises = tuple(_make_codes(own, tokens, stream) for stream in (StreamId.K, StreamId.V))
    heads = (np.ascontiguousarray(x.transpose(1, 0, 2)) for x in (data.k, data.v))
    specs = (("int4/channel/g64", "k"), ("int4/token/g64", "v"))
    int4 = tuple(encode_array(x, spec, stream=stream) for x, (spec, stream) in zip(heads, specs, strict=True))
    entries: list[Entry] = []
    for name, (k, v) in ((OURS, trellises), (_INT4, int4)):
        prepared = prepare_arrays(data.q, k, v)
        wanted = attend(data.q, *(decode_array(one, dtype=np.float32).transpose(1, 0, 2) for one in (k, v)))

        def check(
            name: str = name, prepared: Prepared | Tiered = prepared, wanted: NDArray[np.float64] = wanted
        ) -> None:
            require_close(name, prepared.run()[0].output(), wanted, 1e-3)

        entries.append(Contender(name, prepared.run, tokens * _Q_HEADS, k.nbytes + v.nbytes, "", check))
    return [*entries, *enter_attention(peers, data, bound="")]
