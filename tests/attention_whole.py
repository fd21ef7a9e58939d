"""Attention of one query head on plain records, from the naive twins of its parts. Nothing here imports kvcodec."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tests.attention_product_twin import Books, Centroids, Coded, empty_products, fill_products, score_products
from tests.attention_twin import (
    BIAS,
    PART_BITS,
    Buckets,
    State,
    add_logit,
    add_logits,
    add_outputs,
    add_weights,
    count_shares,
    dot_tiles,
    empty_buckets,
    fill_buckets,
    fold_numbers,
    fold_scales,
    look_up,
    mantissa,
    merge_state,
    multiply_atoms,
    raise_outputs,
    read_zeros,
    scale_by_rows,
    scale_logit,
    scale_total,
    score_mean,
    score_rows,
    shift_left,
    weigh_logits,
    weigh_rows,
    weigh_tokens,
)
from tests.rebuilt_twin import Other, rebuild_row, score_rebuilt, value_rebuilt

SEGMENT = 256  # channels of a stream that are scored together
CHUNK = 64  # strips whose state is merged as one
MOST = 32  # atoms of a row


class Record(NamedTuple):
    """One head of a record in plain numbers; channels padded to 16, tokens to the codec's tiles.

    codes (tokens, dim); scales: bfloat16 bits, a table (groups, lanes); zeros: alike, in parts, None if symmetric. Of
    raw rows: bits 16, and codes are the bits of bfloat16 numbers, or with `half` of float16.
    """

    bits: int
    codes: np.ndarray
    by_channel: bool = False
    group: int = 0
    scales: np.ndarray | None = None
    zeros: np.ndarray | None = None
    half: bool = False


class Atoms(NamedTuple):
    """A dictionary in plain numbers: int (N, dim) and a mean of integers times 2**power, or None; channels padded to
    16. steps: by which the pairs of its keys turn, in 2**-64 turns.
    """

    atoms: np.ndarray
    mean: np.ndarray | None = None
    power: int = 0
    steps: tuple[int, ...] = ()


class Sparse(NamedTuple):
    """One head of a record of codes over a dictionary; tokens padded to 64.

    codes: coefficients (tokens, terms), of `bits` bits. scales: bfloat16 bits of each token. sets, low: how the indices
    are kept. others: rows by token that are kept otherwise.
    """

    bits: int
    codes: np.ndarray
    indices: np.ndarray
    scales: np.ndarray
    dictionary: Atoms
    sets: bool = False
    low: int = 0
    others: dict[int, Other] = {}  # noqa: RUF012

    @property
    def rebuilt(self):
        return bool(self.others or self.dictionary.steps)

    @property
    def channels(self):
        return self.dictionary.atoms.shape[1]

    def rebuild(self, token, turned):
        """(numbers, exponent) of a row of codes, turned by so many positions."""
        own = self.dictionary
        return rebuild_row(self.indices[token], self.codes[token], int(self.scales[token]), own, own.steps, turned)


def channels_of(record):
    return record.channels if isinstance(record, Sparse | Coded) else record.codes.shape[1]


class Piece(NamedTuple):
    """Tokens first … end - 1 of a sequence are the tokens of a record from `start` on."""

    first: int
    end: int
    record: Record | Sparse | Coded
    start: int = 0


class Query(NamedTuple):
    """A logit is (numbers . key) * factor * 2**(shift - 32), in log2 units."""

    numbers: list[int]
    shift: int
    factor: int
    width: int


# -- strips ----------------------------------------------------------------------------------------------------------


def score_by_channel(record, start, tokens, at, count, query, logits):
    position = start
    while position < start + tokens:
        end = min((position // record.group + 1) * record.group, start + tokens)
        row, span = position // record.group, slice(at, at + count)
        weights, exponent = fold_scales(query.numbers[span], record.scales[row, span].tolist(), query.width)
        zero = read_zeros(record.bits, weights, None if record.zeros is None else record.zeros[row, span])
        sums = dot_tiles(record.codes[position:end, span], weights)
        here = slice(position - start, end - start)
        shift = query.shift + exponent - 134 + 48
        logits[here] = add_logits(sums, zero, record.bits + 24, shift, query.factor, logits[here])
        position = end


def score_by_token(record, start, tokens, at, count, query, logits):
    channel = at
    while channel < at + count:
        end = min((channel // record.group + 1) * record.group, at + count)
        weights, exponent = fold_numbers(query.numbers[channel:end], query.width)
        total, row = add_weights(weights), channel // record.group
        sums = dot_tiles(record.codes[start : start + tokens, channel:end], weights)
        for t in range(tokens):
            zero = -total << record.bits - 1
            if record.zeros is not None:
                zero = total * int(record.zeros[row, start + t]) >> PART_BITS[record.bits]
            scale = int(record.scales[row, start + t])
            shift = query.shift + exponent + (scale >> 7) - 134 + 48
            logits[t] = add_logit(logits[t], scale_logit((sums[t] + zero) * mantissa(scale), shift, query.factor))
        channel = end


def score_codes(record, span, query, logits):
    own = record.dictionary
    products, exponent = multiply_atoms(query.numbers, own.atoms)
    mean = 0
    if own.mean is not None:
        mean = score_mean(query.numbers, own.mean, query.shift + own.power + 48, query.factor)
    totals = look_up(products, record.indices[span], record.codes[span])
    for t, scale in enumerate(record.scales[span].tolist()):
        part = scale_total(totals[t], scale, query.shift + exponent - 134 + 48 + 8, query.factor)
        logits[t] = add_logit(add_logit(logits[t], mean), part)


def score_strip(record, start, tokens, query, logits, position):
    """Add a stream's part of the logits, 256 channels after the other; of codes over a dictionary all at once.
    position: of the first token.
    """
    dim = channels_of(record)
    if isinstance(record, Sparse | Coded) and record.rebuilt:
        score_rebuilt(record, start, tokens, position, query, logits)
        return
    if isinstance(record, Coded):
        score_products(record, slice(start, start + tokens), query, logits)
        return
    if isinstance(record, Sparse):
        score_codes(record, slice(start, start + tokens), query._replace(numbers=query.numbers[:dim]), logits)
        return
    for at in range(0, dim, SEGMENT):
        count = min(SEGMENT, dim - at)
        if record.bits == 16:
            weights, exponent = fold_numbers(query.numbers[at : at + count], query.width)
            rows, shift = record.codes[start : start + tokens, at : at + count], query.shift + exponent + 48
            more = score_rows(rows, record.half, weights, shift, query.factor)
            logits[:] = [add_logit(one, two) for one, two in zip(logits, more, strict=True)]
        elif record.by_channel:
            score_by_channel(record, start, tokens, at, count, query, logits)
        else:
            score_by_token(record, start, tokens, at, count, query, logits)


def value_by_token(record, begin, end, shares, exponent, state):
    dim = record.codes.shape[1]
    for channel in range(0, dim, record.group):
        last = min(channel + record.group, dim)
        row, span = channel // record.group, slice(begin, end)
        weights, power = fold_scales(shares, record.scales[row, span].tolist(), 16)
        zero = read_zeros(record.bits, weights, None if record.zeros is None else record.zeros[row, span])
        sums = weigh_tokens(record.codes[span, channel:last], weights)
        add_outputs(state, channel, sums, zero, record.bits + 21, exponent + power - 134 - 16)


def value_by_channel(record, begin, end, shares, exponent, state):
    position = begin
    while position < end:
        last = min((position // record.group + 1) * record.group, end)
        weights, power = fold_numbers(shares[position - begin : last - begin], 16)
        if total := add_weights(weights):
            row = position // record.group
            sums = weigh_tokens(record.codes[position:last], weights)
            zeros = None if record.zeros is None else record.zeros[row]
            scale_outputs(record, record.scales[row].tolist(), zeros, total, sums, exponent + power - 134 - 16, state)
        position = last


def scale_outputs(record, scales, zeros, total, sums, unit, state):
    numbers = []
    for c, scale in enumerate(scales):
        zero = -total << record.bits - 1 if zeros is None else total * int(zeros[c]) >> PART_BITS[record.bits]
        numbers.append(((sums[c] + zero) * mantissa(scale), scale >> 7))
    top = max([0] + [power for number, power in numbers if number])
    bits = max(number.bit_length() for number, _ in numbers)
    raise_outputs(state, unit + top + bits)
    for c, (number, power) in enumerate(numbers):
        state.outputs[c] += shift_left(number, max(47 - state.scale + unit + power, -63)) if number else 0


def value_rows(record, start, tokens, shares, exponent, state):
    rows = record.codes[start : start + tokens]
    scaled, exponents, top = scale_by_rows(rows, record.half, shares)
    weights, power = fold_numbers(scaled, 16)
    sums = weigh_rows(rows, record.half, weights, exponents)
    add_outputs(state, 0, sums, 0, 37, exponent + top + power - BIAS[record.half] - 7 - 16)


def value_strip(record, start, tokens, shares, exponent, state):
    if record.bits == 16:
        value_rows(record, start, tokens, shares, exponent, state)
        return
    begin, end = start // 16 * 16, -(-(start + tokens) // 16) * 16
    padded = [0] * (start - begin) + shares + [0] * (end - start - tokens)
    take = value_by_channel if record.by_channel else value_by_token
    take(record, begin, end, padded, exponent, state)


def attend_strip(tokens, position, places, query, state, held):
    """places: a (record, start, scored, valued, first number of the query) for each stream. held: a dictionary and the
    buckets of its atoms, or None; those after the strip are returned.
    """
    logits = [0] * tokens
    for record, start, scored, valued, at in places:
        if scored:
            score_strip(record, start, tokens, query._replace(numbers=query.numbers[at:]), logits, position)
        if valued:
            exponent, shares = weigh_logits(logits)
            count_shares(state, exponent, sum(shares))
            if isinstance(record, Sparse | Coded) and record.rebuilt:
                value_rebuilt(record, start, tokens, position, shares, exponent, state)
            elif isinstance(record, Sparse | Coded):
                held = hold_codes(record, slice(start, start + tokens), shares, exponent, state, held)
            else:
                value_strip(record, start, tokens, shares, exponent, state)
    return held


def hold_codes(record, span, shares, exponent, state, held):
    own = record.dictionary
    if held is None or held[0] is not own:
        empty_held(held, state)
        held = own, Centroids(own) if isinstance(own, Books) else Buckets(len(own.atoms))
    if isinstance(own, Books):
        fill_products(held[1], record, span, shares, exponent)
    else:
        scales = record.scales[span].tolist()
        fill_buckets(held[1], record.indices[span], record.codes[span], scales, shares, exponent)
    return held


def empty_held(held, state):
    if held is None:
        return
    own, buckets = held
    if isinstance(own, Books):
        empty_products(buckets, own, state)
    else:
        empty_buckets(buckets, own.atoms, own.mean, own.power, state)


# -- a whole attention -----------------------------------------------------------------------------------------------


def find_block(pieces, token):
    """Where a token is: number of a piece, and of a block of 64 tokens in its record."""
    n = next(n for n, p in enumerate(pieces) if p.first <= token < p.end)
    return n, (pieces[n].start + token - pieces[n].first) // 64


def cut_strips(streams, tokens):
    """Runs of ascending tokens that lie in one block of 64 tokens of one piece of each stream, first and end."""
    strips, last = [], None
    for t in tokens:
        blocks = [
            next((n, (p.start + t - p.first) // 64) for n, p in enumerate(ps) if p.first <= t < p.end) for ps in streams
        ]
        if strips and (t, blocks) == (strips[-1][1], last):
            strips[-1][1] += 1
        else:
            strips.append([t, t + 1])
        last = blocks
    return strips


def cut_ranges(streams, ranges):
    """`cut_strips` of ranges of tokens that stay apart."""
    return [strip for first, end in ranges for strip in cut_strips(streams, range(first, end))]


def take_first(record, low):
    """A record without all but the first `low` atoms of its rows, if it has atoms."""
    if not isinstance(record, Sparse):
        return record
    return record._replace(indices=record.indices[:, :low], codes=record.codes[:, :low])


def find_places(streams, uses, token, low=MOST):
    """Where a token lies, as attend_strip wants it, and the first `low` atoms of what is there."""
    places, at = [], 0
    for pieces, (scored, valued) in zip(streams, uses, strict=True):
        piece = next(p for p in pieces if p.first <= token < p.end)
        places.append((take_first(piece.record, low), piece.start + token - piece.first, scored, valued, at))
        at += channels_of(piece.record) if scored else 0
    return places


def attend(streams, uses, ranges, query, top=None, low=MOST):
    """State of one query head. streams: the pieces of each; uses: (scored, valued) of each, the valued one last.

    top: tokens that are read in full; of all others the first `low` atoms are. None: all are read in full.
    """
    width = channels_of(streams[-1][0].record) if streams[-1] else 0
    top = {t for span in ranges for t in range(*span)} if top is None else top
    state, strips = State(width), cut_ranges(streams, ranges)
    for n in range(0, len(strips), CHUNK):
        chunk, held = State(width), None
        for first, end in strips[n : n + CHUNK]:
            places = find_places(streams, uses, first, MOST if first in top else low)
            held = attend_strip(end - first, first, places, query, chunk, held)
        empty_held(held, chunk)
        merge_state(state, chunk)
    return state


def score_strips(streams, ranges, query, low=MOST):
    """Logits of one query head, all streams scored, of the first `low` atoms."""
    logits = []
    for first, end in cut_ranges(streams, ranges):
        own = [0] * (end - first)
        for record, start, _, _, at in find_places(streams, [(True, False)] * len(streams), first, low):
            score_strip(record, start, end - first, query._replace(numbers=query.numbers[at:]), own, first)
        logits += own
    return logits


# -- records ---------------------------------------------------------------------------------------------------------


def pack_tiles(codes, bits, channel_lane):
    """Bytes of the tiles of codes (tokens, dim), both padded."""
    per_row, (tokens, dim) = 32 // bits, codes.shape
    if channel_lane:  # blocks of 64 tokens, tiles of 16 channels, rows, lanes, planes, bytes
        rows = codes.reshape(tokens // 64, 64 // per_row, 8 // bits, 4, dim // 16, 16).transpose(0, 4, 1, 5, 2, 3)
    else:
        rows = codes.reshape(tokens // 16, 16, dim // per_row, 8 // bits, 4).transpose(0, 2, 1, 3, 4)
    planes = rows.astype(np.uint8) << (np.arange(8 // bits, dtype=np.uint8) * bits)[:, None]
    return np.bitwise_or.reduce(planes, axis=-2).astype(np.uint8).tobytes()


def lay_head(record, channel_lane):
    """Bytes of one head of a GROUP record of grouped integers."""
    tables = [record.scales.astype("<u2")] + ([] if record.zeros is None else [record.zeros.astype("<i2")])
    body = b"".join(table.tobytes() + bytes(-table.nbytes % 64) for table in tables)
    return body + pack_tiles(record.codes, record.bits, channel_lane)


def pack_set(numbers, size):
    """Bytes of the code of numbers that do not descend: formats/dictionary.md."""
    low = max(size // len(numbers), 1).bit_length() - 1
    bits = sum((n & (1 << low) - 1) << low * j for j, n in enumerate(numbers))
    bits |= sum(1 << len(numbers) * low + (n >> low) + j for j, n in enumerate(numbers))
    length = len(numbers) * (low + 1) + (size - 1 >> low)
    return bits.to_bytes(-(-length // 8), "little")


def pack_row(record, token):
    """Bytes of a row's indices and coefficients."""
    indices, codes = record.indices[token].tolist(), record.codes[token].tolist()
    size, mask = len(record.dictionary.atoms), (1 << record.bits) - 1
    packed = b"".join(n.to_bytes(2, "little") for n in indices)
    if record.sets:
        packed = b"".join(pack_set(tier, size) for tier in (indices[: record.low], indices[record.low :]) if tier)
    bits = sum((c & mask) << record.bits * j for j, c in enumerate(codes))
    return packed, bits.to_bytes(-(-len(codes) * record.bits // 8), "little")


def pack_other(row):
    """Bytes of a row kept otherwise."""
    if not row.scales:
        return np.array(row.codes, "<u2").tobytes()
    codes = np.array(row.codes + [0] * (-len(row.codes) % 16))
    packed = (codes[::2] | codes[1::2] << 4).astype(np.uint8)
    return np.array(row.scales, "<u2").tobytes() + np.array(row.zeros, "<i2").tobytes() + packed.tobytes()


def lay_sparse_head(record, tokens):
    """Bytes of one head of a GROUP record of codes over a dictionary; rows behind `tokens` are zeros."""
    body = record.scales.astype("<u2").tobytes()
    rows = [pack_row(record, t) for t in range(tokens)]
    width = len(rows[0][0]), len(rows[0][1])
    rows += [tuple(bytes(n) for n in width)] * (len(record.codes) - tokens)
    for first in range(0, len(rows), 64):
        indices, codes = (np.array([list(row[k]) for row in rows[first : first + 64]], np.uint8) for k in range(2))
        body += (indices.T if record.sets else indices.view("<u2").T).tobytes() + codes.T.tobytes()
    return body
