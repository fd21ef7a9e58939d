"""Attention problems from seeds: records as attention finds them, what kernels make of them, and what twins do."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import mmap
from fractions import Fraction
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tests import attention_whole
from tests.attention_product_twin import Books, Coded, lay_product_head
from tests.attention_twin import PART_BITS, quantize_mean, quantize_queries
from tests.attention_whole import MOST, Atoms, Piece, Query, Record, Sparse, lay_head, lay_sparse_head, pack_other
from tests.rebuilt_twin import Other

SUBNORMAL, NORMAL, EXTREME = "subnormal", "normal", "extreme"


class Kind(NamedTuple):
    """How a stream is coded. bits: 16 is raw rows, of float16 with `half`. style: of scales and zeros, or of rows.

    terms: above 0 are codes over a dictionary of `atoms` atoms, whose vectors have a mean or none. turning: pairs of
    channels that are turned by their positions. mixed: some rows are kept otherwise, raw ones of float16 with `half`.
    groups: above 0 are product codes, of `components`, at least as many.
    """

    bits: int
    by_channel: bool = False
    group: int = 64
    symmetric: bool = False
    half: bool = False
    style: str = NORMAL
    terms: int = 0
    atoms: int = 0
    mean: bool = False
    sets: bool = False
    low: int = 0
    turning: int = 0
    mixed: bool = False
    groups: int = 0
    components: int = 0


def coded_kind(bits, by_channel, group, symmetric, style=NORMAL):
    """Kind, whose fields hypothesis would fill as it likes."""
    return Kind(bits, by_channel, group, symmetric, style=style)


def raw_kind(half, style):
    return Kind(16, half=half, style=style)


class Problem(NamedTuple):
    """heads: for each stream its pieces, one list a KV head; uses: (channels, scored, valued, token-lane) of each.

    q: float64 (query heads, channels of the scored streams).
    """

    heads: list[list[list[Piece]]]
    uses: list[tuple[int, bool, bool, bool]]
    ranges: list[tuple[int, int]]
    q: np.ndarray
    scale: float
    width: int
    dictionaries: dict


def pad(n, to):
    return -(-n // to) * to


def make_table(rng, shape, kind):
    """(scales, zeros): bfloat16 bits, and parts."""
    exponents = {NORMAL: (119, 126), SUBNORMAL: (1, 3), EXTREME: (1, 255)}[kind.style]
    scales = rng.integers(*exponents, shape) << 7 | rng.integers(0, 128, shape)
    if kind.style == EXTREME:
        scales = np.where(rng.random(shape) < 0.3, rng.choice([0x0080, 0x7F7F], shape), scales)
    if kind.symmetric:
        return scales, None
    middle = -(2 ** (kind.bits - 1)) << PART_BITS[kind.bits]
    zeros = rng.integers(2 * middle, -middle, shape)
    if kind.style == EXTREME:
        zeros = np.where(rng.random(shape) < 0.5, rng.choice([-32768, -32767, 32767], shape), zeros)
    return scales, zeros


def make_rows(rng, shape, kind):
    """Bits of finite 16-bit floats."""
    fraction = 10 if kind.half else 7
    if kind.style == NORMAL:
        rows = rng.standard_normal(shape).astype(np.float16 if kind.half else ml_dtypes.bfloat16).view(np.uint16)
    else:
        most = 1 << fraction if kind.style == SUBNORMAL else (31 if kind.half else 255) << fraction
        rows = (rng.integers(0, most, shape) | rng.choice([0, 0x8000], shape)).astype(np.uint16)
    return np.where(rng.random(shape) < 0.1, 0, rows).astype(np.int64)


def make_dictionary(rng, kind, dim):
    """(atoms as twins have them, mean as float32, or None)."""
    atoms = np.zeros((kind.atoms, pad(dim, 16)), np.int64)
    atoms[:, :dim] = rng.integers(-128, 128, (kind.atoms, dim))
    if kind.style == EXTREME:
        atoms[:, :dim] = rng.choice([-128, 127], (kind.atoms, dim)) * np.sign(rng.standard_normal(dim)).astype(int)
        atoms = atoms.clip(-128, 127)
    steps = draw_steps(rng, kind)
    if not kind.mean:
        return Atoms(atoms, steps=steps), None
    mean = (rng.standard_normal(dim) * 2.0 ** rng.integers(-20, 3)).astype(np.float32)
    numbers, power = quantize_mean(mean.tolist())
    return Atoms(atoms, np.array(numbers + [0] * (-dim % 16)), power, steps), mean


def draw_steps(rng, kind):
    """By which pairs turn: some anyhow, some slowly."""
    steps = [*rng.integers(0, 2**64, kind.turning // 2, np.uint64), *rng.integers(0, 2**58, kind.turning, np.uint64)]
    return tuple(int(step) for step in steps[: kind.turning])


def make_sparse_record(rng, kind, tokens, dim, dictionaries):
    """One head of a record of codes over a dictionary. dictionaries: those that were made."""
    kind = kind._replace(turning=min(kind.turning, dim // 2))
    key = kind.atoms, kind.mean, kind.style == EXTREME, dim, kind.turning
    if key not in dictionaries:
        dictionaries[key] = make_dictionary(rng, kind, dim)
    long, most = pad(tokens, 64), (1 << kind.bits - 1) - 1
    codes, indices, scales = (np.zeros(shape, np.int64) for shape in ((long, kind.terms), (long, kind.terms), long))
    indices[:tokens] = rng.integers(0, kind.atoms, (tokens, kind.terms))
    if kind.sets:
        indices = np.concatenate([np.sort(indices[:, : kind.low]), np.sort(indices[:, kind.low :])], axis=1)
    codes[:tokens] = rng.integers(-most, most + 1, (tokens, kind.terms))
    if kind.style == EXTREME and rng.random() < 0.5:
        codes[:tokens] = -most - 1
    scales[:tokens] = make_table(rng, (1, tokens), kind._replace(symmetric=True))[0][0]
    others = {}
    for t in np.flatnonzero(rng.random(tokens) < 0.4).tolist() if kind.mixed else ():
        others[t] = make_other(rng, kind, dim)
        codes[t], indices[t], scales[t] = 0, 0, 0
    return Sparse(kind.bits, codes, indices, scales, dictionaries[key][0], kind.sets, kind.low, others)


def make_product(rng, kind, dim):
    """(product codes as twins have them, what else kvcodec takes: gains, shapes and a mean)."""
    basis, most = np.zeros((kind.components, pad(dim, 16)), np.int64), 32767
    basis[:, :dim] = rng.integers(-most, most + 1, (kind.components, dim))
    books = rng.integers(-128, 128, (kind.components, 256))
    if kind.style == EXTREME:
        basis[:, :dim], books = rng.choice([-most, most], (kind.components, dim)), rng.choice([-128, 127], books.shape)
    inner = rng.choice(np.arange(1, kind.components), kind.groups - 1, replace=False)
    ends = (*sorted(inner.tolist()), kind.components)
    low, high = {NORMAL: (-3, 5), SUBNORMAL: (-110, -98), EXTREME: (-120, 70)}[kind.style]
    levels = np.unique((2.0 ** np.linspace(low, high, 400)).astype(ml_dtypes.bfloat16).astype(np.float32))[-255:]
    gains = np.concatenate([[np.float32(0)], levels]).astype(ml_dtypes.bfloat16)
    shapes = (2.0 ** rng.uniform(-24, -18, 16)).astype(ml_dtypes.bfloat16)
    exact = np.multiply.outer(gains.astype(np.float64), shapes.astype(np.float64)).astype(ml_dtypes.bfloat16)
    scales, levels = (np.where(t < 0x80, 0, t) for t in (exact.view(np.uint16), gains.view(np.uint16)))
    mean = (rng.standard_normal(dim) * 0.1 * kind.mean).astype(np.float32)
    numbers, power = quantize_mean(mean.tolist()) if kind.mean else ([], 0)
    whole = np.array(numbers + [0] * (-dim % 16)) if kind.mean else None
    own = Books(
        basis, books, ends, scales.astype(np.int64), levels.astype(np.int64), whole, power, draw_steps(rng, kind)
    )
    return own, (gains, shapes, mean)


def make_product_record(rng, kind, tokens, dim, dictionaries):
    """One head of a record of product codes."""
    kind = kind._replace(turning=min(kind.turning, dim // 2))
    key = kind.groups, kind.components, kind.style, dim, (kind.mean, kind.turning)
    if key not in dictionaries:
        dictionaries[key] = make_product(rng, kind, dim)
    long = pad(tokens, 64)
    codes, gains, shapes = np.zeros((long, kind.groups), np.int64), np.zeros(long, np.int64), np.zeros(long, np.int64)
    codes[:tokens] = rng.integers(0, 256, (tokens, kind.groups)) if rng.random() < 0.8 else 255
    gains[:tokens] = np.where(rng.random(tokens) < 0.1, 0, rng.integers(0, 256, tokens))
    shapes[:tokens] = rng.integers(0, 16, tokens)
    others = {}
    for t in np.flatnonzero(rng.random(tokens) < 0.4).tolist() if kind.mixed else ():
        others[t], codes[t], gains[t] = make_other(rng, kind, dim), 0, 0
    return Coded(codes, gains, shapes, dictionaries[key][0], others)


def make_other(rng, kind, dim):
    """A row kept otherwise, of any of the kinds."""
    if rng.random() < 0.5:
        return Other(make_rows(rng, dim, kind).tolist(), half=kind.half)
    scales, zeros = make_table(rng, -(-dim // 32), kind._replace(bits=4, symmetric=False))
    return Other(rng.integers(0, 16, dim).tolist(), scales.tolist(), zeros.tolist())


def make_record(rng, kind, tokens, dim, channel_lane, dictionaries):
    """One head of a record; what is padding is zero."""
    if kind.groups:
        return make_product_record(rng, kind, tokens, dim, dictionaries)
    if kind.terms:
        return make_sparse_record(rng, kind, tokens, dim, dictionaries)
    wide = pad(dim, 16)
    if kind.bits == 16:
        rows = np.zeros((tokens, wide), np.int64)
        rows[:, :dim] = make_rows(rng, (tokens, dim), kind)
        return Record(16, rows, half=kind.half)
    long = pad(tokens, 64 if channel_lane else 16)
    codes = np.zeros((long, wide), np.int64)
    codes[:tokens, :dim] = rng.integers(0, 1 << kind.bits, (tokens, dim))
    if kind.style == EXTREME and rng.random() < 0.5:
        codes[:tokens, :dim] = (1 << kind.bits) - 1
    shape = (-(-tokens // kind.group), wide) if kind.by_channel else (-(-dim // kind.group), long)
    scales, zeros = make_table(rng, shape, kind)
    lanes = dim if kind.by_channel else tokens
    scales[:, lanes:] = 0
    if zeros is not None:
        zeros[:, lanes:] = 0
    return Record(kind.bits, codes, kind.by_channel, kind.group, scales, zeros)


def make_pieces(rng, kinds, sizes, dim, heads, channel_lane, dictionaries, begin):
    """Pieces of a stream for each head: of sizes[n] tokens, of kind n each, from any token of a record on."""
    pieces, first = [[] for _ in range(heads)], begin
    for kind, size in zip(kinds, sizes, strict=True):
        start = int(rng.choice([0, 0, rng.integers(0, 100)]))
        tokens = start + size + int(rng.integers(0, 20))
        for own in pieces:
            record = make_record(rng, kind, tokens, dim, channel_lane, dictionaries)
            own.append(Piece(first, first + size, record, start))
        first += size
    return pieces


def widen(record):
    """Numbers of a record's head, float64."""
    if isinstance(record, Coded):
        own, sides = record.dictionary, record.sides(slice(None))
        scales, gains = ((np.array(n, np.uint32) << 16).view(np.float32).astype(np.float64) for n in sides)
        rows = own.books[np.arange(len(own.books)), record.codes[:, own.group_of]] @ own.basis * scales[:, None]
        return rows if own.mean is None else rows + gains[:, None] * np.ldexp(own.mean, own.power)
    if isinstance(record, Sparse):
        own = record.dictionary
        scales = (record.scales.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        rows = np.einsum("ts,tsd->td", record.codes, own.atoms[record.indices]) * scales[:, None]
        return rows if own.mean is None else rows + np.ldexp(own.mean, own.power)
    if record.bits == 16:
        dtype = np.float16 if record.half else ml_dtypes.bfloat16
        return record.codes.astype(np.uint16).view(dtype).astype(np.float64)
    tokens, dim = record.codes.shape
    scales = (record.scales.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    middle = -(2 ** (record.bits - 1)) << PART_BITS[record.bits]
    zeros = np.full(scales.shape, middle) if record.zeros is None else record.zeros
    spread = [np.repeat(table, record.group, axis=0) for table in (scales, zeros / 2.0 ** PART_BITS[record.bits])]
    scale, zero = (t[:tokens] if record.by_channel else t[:dim].T for t in spread)
    return scale[:tokens, :dim] * (record.codes + zero[:tokens, :dim])


def tokens_of(pieces, dim):
    """Numbers of a stream's tokens, (tokens, dim) float64."""
    return np.concatenate([widen(p.record)[p.start : p.start + p.end - p.first, :dim] for p in pieces])


def choose_scale(problem, spread):
    """A logit scale that gives logits of this standard deviation, in nats."""
    scored = [n for n, use in enumerate(problem.uses) if use[1]]
    keys = np.concatenate([tokens_of(problem.heads[n][0], problem.uses[n][0]) for n in scored], axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = float((keys @ problem.q[0]).std())
    return max(spread / deviation if np.isfinite(deviation) and deviation > 0 else spread, 1e-300)


def make_problem(
    seed, kinds, sizes, dims=(16, 16), *, kv_heads=1, per_head=1, width=16, spread=2.0, latent=False, q_style=NORMAL,
    begin=0,
):  # fmt: skip
    """kinds, sizes: of each stream its pieces. latent: the second stream is scored too, its tiles are token-lane.
    begin: position of the first token.
    """
    rng = np.random.default_rng(seed)
    uses = [(dims[0], True, False, True), (dims[1], latent, True, latent)]
    dictionaries: dict = {}
    heads = [
        make_pieces(rng, kinds[n], sizes[n], dims[n], kv_heads, not uses[n][3], dictionaries, begin)
        for n in range(len(dims))
    ]
    q = rng.standard_normal((kv_heads * per_head, sum(dims) if latent else dims[0]))
    if q_style == EXTREME:
        q[:, rng.integers(0, q.shape[1])] *= 1e6
        q[0, rng.integers(0, q.shape[1])] = 0
    tokens = sum(sizes[0])
    cuts = np.unique(rng.integers(0, tokens + 1, 4)).tolist()
    ranges = [(0, tokens)] if seed % 2 else [*zip(cuts[:-1:2], cuts[1::2], strict=False)]
    ranges = [(begin + first, begin + end) for first, end in ranges]
    problem = Problem(heads, uses, ranges, q, 1.0, width, dictionaries)
    return problem._replace(scale=choose_scale(problem, spread))


def heads_of(problem):
    """(streams, query) of each query head, as the twins have them."""
    scored = [dim for dim, scored, _, _ in problem.uses if scored]
    for h, q in enumerate(problem.q):
        streams = [stream[h * len(stream) // len(problem.q)] for stream in problem.heads]
        yield streams, Query(*quantize_queries(q, scored, problem.scale), problem.width)


def solve(problem, tiers=None):
    """[[exponent, sum, exponent], outputs] of each query head, by the twins."""
    uses = [(scored, valued) for _, scored, valued, _ in problem.uses]
    top, low = (None, MOST) if tiers is None else (choose_top(problem, *tiers), tiers[0])
    states = [
        attention_whole.attend(streams, uses, problem.ranges, query, top, low) for streams, query in heads_of(problem)
    ]
    return [[state.integers[0], state.outputs[: problem.uses[-1][0]]] for state in states]


def choose_top(problem, low, share):
    """Tokens that are read in full: those without a key over a dictionary, or with no atoms beyond the first `low`, and
    those of the share of blocks, 64 tokens of a record of the first stream, of which a query head likes a token best.
    """
    logits, blocks, top = [], {}, set()
    scored = [n for n, use in enumerate(problem.uses) if use[1]]
    for streams, query in heads_of(problem):
        own = [streams[n] for n in scored]
        logits.append(attention_whole.score_strips(own, problem.ranges, query, low))
    liked = [max(column) for column in zip(*([x - max(row) for x in row] for row in logits if row), strict=True)]
    streams, _ = next(heads_of(problem))
    tokens = [t for span in problem.ranges for t in range(*span)]
    for token, number in zip(tokens, liked, strict=True):
        pieces = [next((n, p) for n, p in enumerate(ps) if p.first <= token < p.end) for ps in streams]
        keyed = any(isinstance(pieces[n][1].record, Sparse) for n in scored)
        records = [p.record for _, p in pieces if isinstance(p.record, Sparse)]
        if keyed and any(record.codes.shape[1] > low for record in records):
            n, piece = pieces[0]
            blocks.setdefault((n, (piece.start + token - piece.first) // 64), []).append((token, number))
        else:
            top.add(token)
    order = sorted(blocks.values(), key=lambda own: -max(number for _, number in own))  # stable: the older one first
    chosen = order[: math.ceil(Fraction(str(share)) * len(order))]
    return top | {token for block in chosen for token, _ in block}


# -- the same through kvcodec ----------------------------------------------------------------------------------------


def hold(body, n):
    """An array of a record's bytes, whose address is aligned to nothing."""
    return np.frombuffer(bytearray(b"\xff" * (n % 7 + 1) + body + bytes(64)), np.uint8)[n % 7 + 1 :]


def hold_at_an_edge(body, n):
    """An array of a record's bytes between pages that cannot be read: right at the first of them, or at the last."""
    page = mmap.PAGESIZE
    size = pad(len(body), page)
    memory = mmap.mmap(-1, size + 2 * page)
    array = np.frombuffer(memory, np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for edge in (0, page + size):
        assert protect(ctypes.c_void_p(array.ctypes.data + edge), ctypes.c_size_t(page), 0) == 0
    begin = page if n % 2 else page + size - len(body)
    array[begin : begin + len(body)] = np.frombuffer(body, np.uint8)
    return array[begin : begin + len(body)]


def lay_products(records, tokens, dim, dictionaries):
    """`lay_sparse` of product codes."""
    from kvcodec.attention.kept import find_others
    from kvcodec.attention.strips import product_form
    from kvcodec.attention.trained import header_of

    mixed = [sorted(record.others.items()) for record in records]
    half = any(row.half for rows in mixed for _, row in rows)
    rebuilt = 1 + half if any(mixed) or records[0].dictionary.steps else 0
    header = header_of(dictionaries[id(records[0].dictionary)], rebuilding=bool(rebuilt))
    form = product_form(tokens, header, rebuilt)
    body = b"".join(map(lay_product_head, records))
    assert form.head_stride * len(records) == len(body)
    if not any(mixed):
        return body, form, None
    kinds = np.zeros((len(records), tokens), np.uint8)
    for head, rows in enumerate(mixed):
        for t, row in rows:
            kinds[head, t] = 1 if row.scales else 2
    others = b"".join(pack_other(row) for rows in mixed for _, row in rows)
    return body + others, form, find_others(kinds, len(body), dim)


def lay_sparse(records, tokens, dim, dictionaries):
    """Bytes of the heads of a record over a dictionary, its form, and the table of rows kept otherwise, or None."""
    from kvcodec.attention.kept import find_others
    from kvcodec.attention.strips import sparse_form
    from kvcodec.attention.trained import header_of
    from kvcodec.sparse_spec import SparseCodes

    own, one = dictionaries[id(records[0].dictionary)], records[0]
    codes = SparseCodes(one.codes.shape[1], one.bits, one.sets, one.low, size=own.size)
    mixed = [sorted(record.others.items()) for record in records]
    if not any(mixed) and own.rotation is None:
        form = sparse_form(codes, tokens, header_of(own))
    else:
        half = any(row.half for rows in mixed for _, row in rows)
        form = sparse_form(codes, tokens, header_of(own, rebuilding=True), 1 + half)
    body = b"".join(lay_sparse_head(record, tokens) for record in records)
    assert form.head_stride * len(records) == len(body)
    if not any(mixed):
        return body, form, None
    kinds = np.zeros((len(records), tokens), np.uint8)
    for head, rows in enumerate(mixed):
        for t, row in rows:
            kinds[head, t] = 1 if row.scales else 2
    start = len(body)
    return body + b"".join(pack_other(row) for rows in mixed for _, row in rows), form, find_others(kinds, start, dim)


def make_dictionaries(problem):
    """Dictionary, or Product, of kvcodec for each of a problem's, by the identity of the twins' one."""
    from kvcodec.codecs.dictionary import Dictionary
    from kvcodec.codecs.product import Product
    from kvcodec.codecs.rotation import Rotation
    from kvcodec.codecs.transform import Analysis
    from kvcodec.layout import StreamId

    made: dict[int, Any] = {}
    for (_, _, _, dim, _), (own, other) in problem.dictionaries.items():
        rotation = Rotation(np.array(own.steps, np.uint64)) if own.steps else None
        uses = ((0, StreamId.K),)
        if isinstance(own, Books):
            gains, shapes, mean = other
            basis, books = own.basis[:, :dim].astype(np.int16), own.books.astype(np.int8)
            none = Analysis(*(np.ones(0, np.float32) for _ in range(3)))
            sides = gains.view(np.uint16), shapes.view(np.uint16)
            made[id(own)] = Product(basis, books, list(own.ends), *sides, uses, mean, none, rotation)
        else:
            mean = np.zeros(0, np.float32) if other is None else other
            made[id(own)] = Dictionary(own.atoms[:, :dim].astype(np.int8), uses, mean, rotation)
    return made


def lay(pieces, use, forms, kept, hold_, dictionaries):
    """Spans of a stream, whose bytes are laid into memory."""
    from kvcodec.attention.strips import Spans, grouped_form, raw_form
    from kvcodec.layout import Axis, CodecId, DtypeId, StreamId
    from kvcodec.spec import CodecSpec

    rows = []
    for same in zip(*pieces, strict=True):
        record, (tokens, wide), others = same[0].record, same[0].record.codes.shape, None
        if record.bits == 16:
            body = np.stack([p.record.codes for p in same], axis=1).astype("<u2").tobytes()  # token by token
            form = raw_form(2 * wide, 2 * wide * len(same), DtypeId.FLOAT16 if record.half else DtypeId.BFLOAT16)
        elif isinstance(record, Coded):
            body, form, others = lay_products([p.record for p in same], tokens, use[0], dictionaries)
        elif isinstance(record, Sparse):
            body, form, others = lay_sparse([p.record for p in same], tokens, use[0], dictionaries)
        else:
            codec = {8: CodecId.INT8, 4: CodecId.INT4, 2: CodecId.INT2}[record.bits]
            axis = Axis.CHANNEL if record.by_channel else Axis.TOKEN
            spec = CodecSpec(codec, axis, record.group, record.zeros is None)
            count = record.scales.shape[0] * record.group if record.by_channel else tokens
            body = b"".join(lay_head(p.record, not use[3]) for p in same)
            form = grouped_form(spec, StreamId.K if use[3] else StreamId.V, min(count, tokens), use[0])
            assert form.head_stride * len(same) == len(body)
        kept += [others, hold_(body, len(kept) // 2)]
        forms.append(form)
        table = 0 if others is None else others.ctypes.data
        rows.append((same[0].first, same[0].end, kept[-1].ctypes.data, len(forms) - 1, same[0].start, table))
    columns = np.array(rows, np.int64).T if rows else np.empty((6, 0), np.int64)
    return Spans(*map(np.ascontiguousarray, columns))


def run(problem, threads=1, hold_=hold, tiers=None):
    """What `solve` gives, and the states, by kvcodec."""
    from kvcodec.attention.query import quantize_queries as quantize
    from kvcodec.attention.run import StreamUse, Task
    from kvcodec.attention.strips import cut_strips
    from kvcodec.attention.tiers import prepare, take_tiers

    forms: list[Any] = []
    kept: list[Any] = []
    made = make_dictionaries(problem)
    spans = [
        lay(pieces, use, forms, kept, hold_, made) for pieces, use in zip(problem.heads, problem.uses, strict=True)
    ]
    strips = cut_strips(spans, np.array(problem.ranges, np.int64).reshape(-1, 2))
    queries = quantize(problem.q[None], tuple(dim for dim, scored, _, _ in problem.uses if scored), problem.scale)
    uses = tuple(StreamUse(*use) for use in problem.uses)
    task = Task(queries, [strips], uses, forms, len(problem.heads[0]), problem.width)
    (state,) = prepare(task, tiers and take_tiers(tiers, []), threads=threads).run()
    return [[s, o] for s, o in zip(state.states.tolist(), state.outputs.tolist(), strict=True)], state


def score(problem):
    """Logits of each query head, of the first stream alone: by kvcodec and by the twin."""
    from kvcodec.attention.query import quantize_queries as quantize
    from kvcodec.attention.strips import cut_strips, form_table
    from kvcodec.attention.tables import QueryTables, used_headers
    from kvcodec.attention.turned import TurnedQueries
    from kvcodec.kernels.attend import score_strips
    from kvcodec.kernels.forms import scratch_bytes
    from kvcodec.kernels.tables import make_tables

    (dim, *_), forms, kept = problem.uses[0], [], []
    made = make_dictionaries(problem)
    spans = lay(problem.heads[0], problem.uses[0], forms, kept, hold, made)
    strips = cut_strips([spans], np.array(problem.ranges, np.int64).reshape(-1, 2))
    queries = quantize(problem.q[None, :, :dim], (dim,), problem.scale)
    tables = form_table(forms), np.array([[pad(dim, 16), 0, 1, 0, 1]], np.int64)
    per_head, widest = len(problem.q) // len(problem.heads[0]), pad(dim, 16)
    turned = TurnedQueries(strips, np.zeros(len(strips), np.int64), tables[0], queries, [(0, widest, 0)])
    products = QueryTables(used_headers(strips, tables[0], 1), [0], queries, len(problem.heads[0]))
    make_tables(products.jobs, *queries, np.empty(products.work_bytes, np.uint8))
    memory = np.empty(scratch_bytes(widest, 1), np.uint8)
    logits = np.empty((len(problem.q), strips[:, 0].sum()), np.int32)
    score_strips(strips, *tables, products.lookups, *queries, problem.width, per_head, widest, memory, logits)
    del turned
    wanted = []
    for h, q in enumerate(problem.q[:, :dim]):
        query = Query(*quantize_queries(q, [dim], problem.scale), problem.width)
        wanted.append(attention_whole.score_strips([problem.heads[0][h // per_head]], problem.ranges, query))
    return logits.tolist(), wanted


# -- a set of problems for every SIMD level --------------------------------------------------------------------------

CODED = [
    Kind(bits, by, group, sym) for bits in (8, 4, 2) for by in (True, False) for group, sym in ((16, False), (64, True))
]
RAW = [Kind(16), Kind(16, half=True), Kind(16, style=EXTREME), Kind(16, half=True, style=SUBNORMAL)]
SPARSE = [
    Kind(8, terms=3, atoms=40),
    Kind(5, terms=4, atoms=70, mean=True, sets=True, low=1),
    Kind(6, terms=2, atoms=7, sets=True, style=EXTREME),
    Kind(6, terms=11, atoms=40, mean=True, turning=8, mixed=True),
    Kind(8, terms=3, atoms=40, turning=16, mixed=True, half=True),
]
PRODUCTS = [
    Kind(0, groups=3, components=5, mean=True),
    Kind(0, groups=2, components=2, style=EXTREME),
    Kind(0, groups=4, components=9, mean=True, turning=8, mixed=True),
]


def small_problems():
    """One problem for every kind as keys, as values and as latent ones, short enough to be interpreted."""
    for n, kind in enumerate(CODED + RAW):
        other = (CODED + RAW)[(5 * n + 3) % 16]
        width, dims = (16, 8)[n % 3 == 2], [(16, 16), (40, 24), (1, 16)][n % 3]
        sizes = [[70, 9], [20, 59]]
        yield make_problem(n, [[kind, other], [other, kind]], sizes, dims, kv_heads=1 + n % 2, per_head=1, width=width)
        sparse = SPARSE[n % len(SPARSE)]
        if n % 3 == 0:
            streams, sizes = [[sparse, other], [kind, sparse]], [[25, 50], [20, 55]]
            yield make_problem(n, streams, sizes, (24, 16), per_head=1 + n // 3, width=width, latent=n % 2 == 1)
        if n % 4 == 1:
            yield make_problem(n, [[kind], [other]], [[40], [40]], (16, 32), per_head=2, width=width, latent=True)
        if n % 5 == 2:
            product, streams = PRODUCTS[n % len(PRODUCTS)], [[kind, PRODUCTS[0]], [PRODUCTS[0], other]]
            yield make_problem(n, streams, [[25, 30], [50, 5]], (16, 24), per_head=1 + n % 7, width=width)
            yield make_problem(n, [[product], [product]], [[70], [70]], (24, 16), per_head=1 + n % 3, latent=True)


def hash_problems():
    """A hash of all integers that kernels make of small_problems."""
    digest = hashlib.sha256()
    for problem in small_problems():
        digest.update(json.dumps(run(problem)[0]).encode())
    return digest.hexdigest()


def read_at_edges():
    """Solve small_problems where each record lies at the edge of what can be read."""
    for problem in small_problems():
        assert run(problem, hold_=hold_at_an_edge)[0] == run(problem)[0]
