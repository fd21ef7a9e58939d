"""How attention kernels are told what to read, and the memory they work in.

Tables are int64, a row a thing, with the columns named here. Within kernels everything is an address and some numbers:
a record may lie anywhere in the map, and no array is counted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kvcodec.kernels._jit import inline
from kvcodec.kernels._simd import (
    load_long,
)

# Columns of `streams`. DIM: channels, padded to 16. QUERY: where its channels begin in a query. SCORED, VALUED: whether
# it is multiplied by the query, and by the weights. TOKEN_LANE: its tiles' lanes are tokens.
DIM, QUERY, SCORED, VALUED, TOKEN_LANE = range(0, 40, 8)  # bytes
STREAM_BYTES = 40
# Columns of `strips`: TOKENS, the POSITION of the first one in its sequence, then for each stream the address of the
# record's first head, its FORM, the strip's first token in the record, START, the address of the table of rows KEPT
# otherwise, or 0, and of the query's numbers as TURNED for these keys, (heads, channels), or 0.
# A table of rows kept otherwise has for each head and block of 64 tokens the byte, from the first head on, of the first
# such row, and two sets of bits, one a token: those kept as INT4, and raw.
TOKENS, POSITION, PLACES = range(0, 24, 8)  # bytes
FORM, START, KEPT, TURNED = range(8, 40, 8)  # bytes behind the address
PLACE_BYTES = 40
KEPT_BYTES = 24
# Columns of `items`: strips FIRST to LAST and KV heads HEAD to END, for the query number ASKED, to the state SLOT.
FIRST, LAST, HEAD, END, ASKED, SLOT = range(6)
# Columns of a state: exponent of the weights, their sum, exponent of the outputs.
TOP, TOTAL, SCALE = range(0, 24, 8)  # bytes
STATE_BYTES = 24
RAW_BITS = 16
# A dictionary, as the address of int64: address of the ATOMS, int8, whose channels are padded to 16 and their number
# too; their number SIZE, and with that PADDED; address of the MEAN, int32 of at most 2**22, or 0; a mean is
# number * 2**EXPONENT.
# To rebuild rows: WIDTH, the channels that are none of padding; GREATEST, that of an atom; address of the BIASED atoms,
# see _rebuild.py, padded to 32 channels; SUMMED, of the mean * 2**7 in the order of sums, or of zeros. TURNING, pairs
# of channels that are turned, or 0; addresses of cosines and sines, (positions, 2, pairs): NEAR, int16, Q15, of
# positions 0 to 127; FAR, int32, Q30, of the multiples of 64 below 4,096.
ATOMS, SIZE, PADDED, CHANNELS, MEAN, EXPONENT, WIDTH, GREATEST, BIASED, SUMMED, TURNING, NEAR, FAR = range(0, 104, 8)
# Product codes have such a table, too: of the columns above CHANNELS, MEAN, EXPONENT, WIDTH, TURNING, NEAR and FAR, and
# behind them GROUPS, how many, which is 0 of a dictionary. COMPONENTS: each group's are padded to an even number, with
# zeros; ENDS: address of int64, where each group ends in them. BASIS: (components, channels) int16; BOOKS: (components,
# 256) int8. SIDES: of gain * 16 + shape two bfloat16, scale and gain.
# To rebuild rows: PAIRED_BASIS, PAIRED_BOOKS, int16 of two components each: (components / 2, channels padded to 32, 2)
# and (components / 2, 256, 2).
# Trellis codes, whose rows are always rebuilt, have of these GROUPS, which is bytes of bits, COMPONENTS, SIDES and
# PAIRED_BASIS; and WINDOW, bits, 0 of product codes; RATES: address of int64, bits of each component; ENTRIES: of int64
# too, the address of each component's table, int16 (2**window,).
# V that is predicted from the codes of its K is always rebuilt, too, and is the stream behind that K. PREDICTED: the
# basis of K's components, as PAIRED_BASIS is that of its own, or 0; TOLD: of its gain * 16 + K's shape a bfloat16, by
# which the sums of these are multiplied.
(
    GROUPS, COMPONENTS, ENDS, BASIS, BOOKS, SIDES, PAIRED_BASIS, PAIRED_BOOKS, WINDOW, RATES, ENTRIES, PREDICTED, TOLD,
) = range(104, 208, 8)  # fmt: skip
HEADER_COLUMNS = 26


class Form(NamedTuple):
    """How to read a record: a row of the table of forms.

    bits: of a code, 16 of raw rows. by_channel: one scale a channel. group: numbers that share a scale. zeros: bytes
    from a head's scales to its zeros, 0 if it has none (symmetric). codes: bytes from its scales to its codes. columns:
    of its array of scales. head_stride, row_stride: bytes from one head to the next, and from one raw row. half: raw
    rows are float16, else bfloat16.
    Codes over a dictionary have `terms` atoms a row, else 0; bits are those of a coefficient, columns the bytes of the
    indices of a row and row_stride those of all of it but the scale. sets: indices are sets, of which the first `low`
    atoms are one; read: bytes of the indices of these terms, where a row has more; dictionary: its address. rebuilt:
    above 0 no table of products serves the codes, and raw rows among them are of bfloat16, or of float16, which is 2.
    Product and trellis codes are `terms` bytes a row, whose bits are 0, for they have no coefficients.
    """

    bits: Any
    by_channel: Any
    group: Any
    zeros: Any
    codes: Any
    columns: Any
    head_stride: Any
    row_stride: Any
    half: Any
    terms: Any
    sets: Any
    low: Any
    read: Any
    dictionary: Any
    rebuilt: Any


FORM_BYTES = 8 * len(Form._fields)


class Query(NamedTuple):
    """One query head as integers: a logit is (numbers . key) * factor * 2**(shift - 32) in log2 units.

    head: its number. numbers: int32 of at most 2**22, all streams one behind the other; width: bits, 8 or 16, of the
    weights that they are rounded to. quad, lane: number of its entries in the tables of products, counted over all
    queries and KV heads, and its place in them.
    """

    head: Any
    numbers: Any
    shift: Any
    factor: Any
    width: Any
    quad: Any
    lane: Any


class Weights(NamedTuple):
    """What codes are multiplied by: 256 int16, and their bytes: 256 high ones, then the low ones, to be multiplied as
    high * 256 + low; of weights of 8 bits the high ones alone.
    """

    halves: Any
    bytes: Any


class Scratch(NamedTuple):
    """What one thread works in, as addresses: int32 all but the weights.

    scaled: 256. folded: int64, exponent and zero of up to 16 groups. sums, others: the channels, and what add_logits
    may touch. logits, shares: a strip's tokens in the softmax. rows: numbers of 64 raw rows and their exponents, for
    each stream, `area` bytes apart, and once more for the values; of a stream whose codes are over a dictionary their
    indices, coefficients and sums of products. tokens: weights of 4 heads and 64 tokens. coded: 32 x 64 bytes. counts:
    for kernels.elias_fano. To rebuild rows: codes of 64 of them; passes, sums of atoms as int16; wide: two rows;
    turned: a row, or a query.
    """

    scaled: Any
    weights: Weights
    logits: Any
    shares: Any
    folded: Any
    sums: Any
    others: Any
    rows: Any
    area: Any
    tokens: Any
    coded: Any
    counts: Any
    codes: Any
    passes: Any
    wide: Any
    turned: Any


STRIP_BYTES = 4 * 112  # 64 tokens, and room for whole vectors behind them
_SCALED, _HALVES, _BYTES, _FOLDED = 4 * 256, 2 * 256, 2 * 256, 16 * 16
MAX_TERMS = 32
# Of a block of 64 tokens: indices, uint16; behind PAIRS coefficients as kernels look them up, behind WIDE for values;
# behind LOOKED sums of products of 4 heads, int32.
PAIRS, WIDE, LOOKED = 128 * MAX_TERMS, 256 * MAX_TERMS, 512 * MAX_TERMS
_QUADS, _CODED, _COUNTS = 4 * 4 * 64, 64 * MAX_TERMS, 64 * 112
_CODES = LOOKED + _QUADS
# To rebuild rows of as many: indices, uint16; behind PAIRED pairs of int8 of each of two digits, DIGIT bytes apart;
# behind STARTS int16, one a pass.
MAX_PASSES = 6
PAIRED, DIGIT = 128 * MAX_TERMS + 128, 64 * MAX_TERMS
STARTS = PAIRED + 2 * DIGIT
_WOVEN = STARTS + 128 * MAX_PASSES


def _sums_bytes(dim: Any) -> Any:
    return max(4 * dim + 128, STRIP_BYTES)


def _area_bytes(dim: Any) -> Any:
    """64 rows of int16, and an exponent for each 256 channels of a row; or the codes of 64 rows."""
    return max(128 * dim + 256 * ((dim + 255) // 256), _CODES)


def _passes_bytes(dim: Any) -> Any:
    return 2 * MAX_PASSES * (dim + 16)


def scratch_bytes(dim: int, streams: int) -> int:
    """Bytes of the memory that a thread works in, for as many streams of up to `dim` channels."""
    fixed = _SCALED + _HALVES + _BYTES + _FOLDED + 2 * STRIP_BYTES + _QUADS + _CODED + _COUNTS + _WOVEN
    return int(fixed + 5 * _sums_bytes(dim) + _passes_bytes(dim) + (streams + 1) * _area_bytes(dim))


_count_sums, _count_area, _count_passes = inline(_sums_bytes), inline(_area_bytes), inline(_passes_bytes)


@inline
def cut_scratch(memory: Any, dim: Any) -> Any:
    """Scratch in memory, for streams of up to `dim` channels."""
    weights = Weights(memory + _SCALED, memory + _SCALED + _HALVES)
    folded = memory + _SCALED + _HALVES + _BYTES
    logits = folded + _FOLDED
    sums = logits + 2 * STRIP_BYTES
    others = sums + _count_sums(dim)
    tokens = others + _count_sums(dim)
    coded = tokens + _QUADS
    counts = coded + _CODED
    codes = counts + _COUNTS
    passes = codes + _WOVEN
    wide = passes + _count_passes(dim)
    turned = wide + 2 * _count_sums(dim)
    rows, area = turned + _count_sums(dim), _count_area(dim)
    shares = logits + STRIP_BYTES
    return Scratch(
        memory, weights, logits, shares, folded, sums, others, rows, area, tokens, coded, counts, codes, passes, wide,
        turned,
    )  # fmt: skip


@inline
def has_rows(form: Any) -> Any:
    """Whether a strip's rows become int16 numbers in scratch.rows."""
    return (form.bits == RAW_BITS) | (form.rebuilt != 0)


@inline
def has_codes(form: Any) -> Any:
    """Whether tables of products serve a record."""
    return (form.terms != 0) & (form.rebuilt == 0)


@inline
def has_groups(form: Any) -> Any:
    """Whether they are product codes, or trellis codes."""
    return (form.terms != 0) & (form.bits == 0)


@inline
def read_form(forms: Any, n: Any) -> Any:
    """Row n of the table of forms."""
    at = forms + FORM_BYTES * n
    return Form(
        load_long(at),
        load_long(at + 8),
        load_long(at + 16),
        load_long(at + 24),
        load_long(at + 32),
        load_long(at + 40),
        load_long(at + 48),
        load_long(at + 56),
        load_long(at + 64),
        load_long(at + 72),
        load_long(at + 80),
        load_long(at + 88),
        load_long(at + 96),
        load_long(at + 104),
        load_long(at + 112),
    )
