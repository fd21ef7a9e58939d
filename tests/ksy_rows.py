"""Every row of a log by a parser of kvlog.ksy and the rules of formats/record.md, without the reader."""

import hashlib
import struct
from io import BytesIO
from typing import NamedTuple

import ml_dtypes
import numpy as np
from kaitaistruct import KaitaiStream

from tests.ksy_trees import (
    decode_head,
    decode_row,
    parse_shaped,
    parse_vector,
    records_in_order,
    split_rows,
    streams_of,
)
from tests.rotation_twin import turn_rows

NUMPY = {1: np.dtype(ml_dtypes.bfloat16), 2: np.dtype(np.float16)}  # by DtypeId


def records(parser, log):
    """(record, layers of its sequence's model, dtype) of all records that belong to a sequence.

    layers: (streams, window) of each.
    """
    models, sequences = {}, {}
    for record in records_in_order(log):
        header, body = record.header, record.body
        if header.kind == parser.RecordKind.model:
            layers = [(streams_of(layer), layer.window) for layer in body.layers]
            models[header.fields.model_hash] = layers, NUMPY[int(header.fields.dtype)]
            continue
        if header.kind == parser.RecordKind.sequence:
            sequences[header.sequence] = models[header.fields.model_hash]
        if header.sequence in sequences:
            yield record, *sequences[header.sequence]


def dictionaries(parser, log):
    """A `Dictionary`, or what is parsed of product or trellis codes, by the hash of its set, layer and stream."""
    sets, books = {}, codebooks(parser, log)  # by hash, matrix and first atom; by hash and number
    for record in records_in_order(log):
        own = record.header.fields
        if record.header.kind == parser.RecordKind.dictionary:
            sets.setdefault(own.basis_hash, {}).setdefault(own.matrix, {})[own.first_atom] = record
    wholes = {}  # by hash: of each matrix its uses, mean, steps and atoms
    for basis, matrices in sets.items():  # parents come before what grew out of them in the logs that are read so
        any_of = next(iter(next(iter(matrices.values())).values())).header.fields
        wholes[basis] = [
            add_chunks(chunks, wholes[any_of.parent_hash][n] if any_of.is_grown else None)
            for n in range(any_of.matrices)
            for chunks in [matrices.get(n, {})]
        ]
        assert any_of.grown == (len(matrices) if any_of.is_grown else 0)
        assert any_of.codebooks == len(books.get(basis, ()))
    for basis in wholes.keys() | books.keys():
        assert hash_of(wholes.get(basis, []), books.get(basis, [])) == basis
    forms = {parser.CodebookForm.product: parser.Product, parser.CodebookForm.trellis: parser.Trellis}
    shaped = {
        (basis, use.layer, int(use.stream)): own
        for basis, of in books.items()
        for own in (forms[form](KaitaiStream(BytesIO(data))) for form, data in of)
        for use in own.uses
    }
    return shaped | {
        (basis, layer, stream): Dictionary(atoms, mean if mean.size else np.zeros(atoms.shape[1], "<f4"), steps)
        for basis, whole in wholes.items()
        for uses, mean, steps, atoms in whole
        for layer, stream in uses
    }


def codebooks(parser, log):
    """Form and bytes of the codebooks of sets, in order, by hash."""
    found = {}  # by hash, number and first byte
    for record in records_in_order(log):
        own = record.header.fields
        if record.header.kind == parser.RecordKind.codebook:
            found.setdefault(own.basis_hash, {}).setdefault(own.codebook, {})[own.first_byte] = record
    out = {}
    for basis, numbers in found.items():
        out[basis] = []
        for number, chunks in sorted(numbers.items()):
            data, any_of = b"", chunks[0].header.fields
            for first, chunk in sorted(chunks.items()):
                assert first == len(data)
                data += chunk.body
            assert (number, len(data)) == (len(out[basis]), any_of.all_bytes)
            out[basis].append((any_of.form, data))
        assert len(out[basis]) == any_of.codebooks
    return out


def add_chunks(chunks, before):
    """Uses, mean, steps, atoms of a dictionary: that of the parent, if there is one, with the atoms of some records."""
    uses, mean, steps, atoms = before or (None, None, None, None)
    for first, chunk in sorted(chunks.items()):
        own, more = chunk.header.fields, np.array([a.channels for a in chunk.body.atoms], np.int8)
        if not first:
            uses, mean = [(use.layer, int(use.stream)) for use in chunk.body.uses], np.array(chunk.body.mean, "<f4")
            steps = chunk.body.steps
        assert (own.uses, own.mean, own.pairs) == (len(uses), int(mean.size > 0), len(steps))
        assert first == (0 if atoms is None else len(atoms))
        atoms = more if atoms is None else np.concatenate([atoms, more])
    assert not chunks or atoms.shape == (own.atoms, own.head_dim)
    return uses, mean, steps, atoms


def hash_of(whole, books):
    digest = hashlib.sha256()
    for uses, mean, steps, atoms in whole:
        digest.update(struct.pack("<5I", *atoms.shape, len(uses), len(steps) > 0, mean.size > 0))
        digest.update(struct.pack("<I", len(steps)) if steps else b"")
        digest.update(b"".join(struct.pack("<HBx", *use) for use in uses))
        digest.update(mean.tobytes() + struct.pack(f"<{len(steps)}Q", *steps) + atoms.tobytes())
    for form, data in books:
        digest.update({"product": b"\xff", "trellis": b"\xfe"}[form.name] + b"\xff" * 3 + data)
    return digest.digest()[:16]


class Dictionary(NamedTuple):
    """atoms: int8 (N, d). mean: float32 (d,). steps: of the rotation, none without one."""

    atoms: np.ndarray
    mean: np.ndarray
    steps: list


class Rows:
    """What a log holds of one sequence: for each layer, stream and token the row of the record with the highest lsn, or
    None where it was evicted.
    """

    def __init__(self, name, layers, parent=None, end=0):
        self.name, self.layers = name, layers
        self.keys = [(n, stream) for n, (streams, _) in enumerate(layers) for stream, _, _ in streams]
        self._rows = {key: {} for key in self.keys}  # by token: lsn, {head: bits}
        if parent:
            self._rows = {
                key: {token: row for token, row in rows.items() if token < end} for key, rows in parent._rows.items()
            }
        self._parts = {}  # of records that were split, by key, token and lsn: {head: bits}
        self._unvouched = {}  # rows of summaries, by key: lsn, first token and {token: {head: bits}}
        self._seen = (
            dict(parent._seen) if parent else {}
        )  # rows of summaries, by key, token and lsn: seen from where on

    def insert(self, lsn, own, key, head, numbers):
        for token, row in enumerate(numbers, own.first_token):
            part = self._parts.setdefault((key, token, lsn), {})
            part[own.first_head + head] = row
            if len(part) == own.all_heads and self._rows[key].get(token, (0,))[0] <= lsn:
                self._rows[key][token] = lsn, part

    def insert_summary(self, lsn, own, body, heads):
        """Rows that wait for their DROP record."""
        key = own.first_layer, int(own.stream)
        known = self._unvouched.get(key)
        rows = known[2] if known and known[0] == lsn else {}
        for head, numbers in enumerate(heads):
            for token, row in enumerate(numbers, own.first_token):
                rows.setdefault(token, {})[own.first_head + head] = row
        self._unvouched[key] = lsn, own.first_token, rows
        for token, row in enumerate(body.positions.rows, own.first_token):
            assert self._seen.setdefault((own.first_layer, token, lsn), row.visible_from) == row.visible_from

    def summarize(self, first, end, since):
        """All layers of logs that are read so have such rows."""
        self.evict(first, end, since - 1)
        for key, (lsn, begun, rows) in self._unvouched.items():
            if lsn >= since and begun == first:
                self._rows[key] |= {token: (lsn, row) for token, row in rows.items()}
        self._unvouched = {}

    def drop(self, first, lsn):
        for rows in self._rows.values():
            for token in [t for t, (old, _) in rows.items() if t >= first and old < lsn]:
                del rows[token]
        self._parts = {k: v for k, v in self._parts.items() if k[1] < first or k[2] > lsn}

    def evict(self, first, end, lsn):
        for rows in self._rows.values():
            rows.update((t, (lsn, None)) for t in range(first, end) if rows.get(t, (0,))[0] < lsn)

    def needed(self, layer, length):
        """The tokens of so long a sequence that a layer needs."""
        window = self.layers[layer][1]
        return range(max(0, length - window) if window else 0, length)

    @property
    def length(self):
        most = max((token + 1 for rows in self._rows.values() for token in rows), default=0)
        return next(
            n for n in range(most, -1, -1)
            if all(token in self._rows[key] for key in self.keys for token in self.needed(key[0], n))
        )  # fmt: skip

    def digest(self, key, tokens):
        """Of the bits of some rows, (tokens, heads, dim), without those evicted, and what is for later queries."""
        seen = [token for token in tokens
                if self._seen.get((key[0], token, self._rows[key][token][0]), 0) <= tokens.stop]  # fmt: skip
        own = [row for row in (self._rows[key][token][1] for token in seen) if row is not None]
        return hashlib.sha256(np.array([[row[h] for h in sorted(row)] for row in own], np.uint16).tobytes()).hexdigest()


def read_all(parser, data):
    """Length, and the digests of the rows that layers need, of each sequence: what tests/golden/index.json says."""
    log = parser.from_bytes(data)
    sequences, kinds, sets, keys = {}, parser.RecordKind, dictionaries(parser, log), {}  # keys: by sequence
    for record, layers, dtype in records(parser, log):
        header, body, own = record.header, record.body, record.header.fields
        if header.kind == kinds.sequence and header.sequence:
            if header.sequence not in sequences:
                sequences[header.sequence] = Rows(body.name, layers, sequences.get(own.parent), own.fork_token)
        elif header.sequence not in sequences:
            continue
        elif header.kind == kinds.drop and own.scope == parser.DropScope.sequence:
            del sequences[header.sequence]
        elif header.kind == kinds.drop and own.scope == parser.DropScope.range:
            sequences[header.sequence].evict(own.first_token, own.end_token, header.lsn)
        elif header.kind == kinds.drop and own.scope == parser.DropScope.summary:
            sequences[header.sequence].summarize(own.first_token, own.end_token, own.summary_lsn)
        elif header.kind == kinds.drop:
            sequences[header.sequence].drop(own.first_token, header.lsn)
        elif header.kind == kinds.group:
            told = keys.setdefault(header.sequence, {})
            if own.position_bytes:
                heads = spread_group(own, body, dtype, sets, told)
                sequences[header.sequence].insert_summary(header.lsn, own, body, heads)
                continue
            for head, bits in enumerate(spread_group(own, body, dtype, sets, told)):
                sequences[header.sequence].insert(header.lsn, own, (own.first_layer, int(own.stream)), head, bits)
        elif header.kind in (kinds.step, kinds.rows):
            told = keys.setdefault(header.sequence, {})
            for key, head, bits in spread_step(parser, own, body, layers, dtype, sets, told):
                sequences[header.sequence].insert(header.lsn, own, key, head, bits)
    out = {}
    for rows in sequences.values():
        length = rows.length
        digests = {
            f"{layer}.{parser.StreamId(stream).name}": rows.digest((layer, stream), rows.needed(layer, length))
            for layer, stream in rows.keys
        }
        out[rows.name] = {"tokens": length, "rows": digests}
    return out


def spread_group(own, body, dtype, sets, keys):
    """Rows' bits (tokens, dim) of each head of a GROUP record. keys: see decode_products."""
    for number, head in enumerate(body.heads):
        if own.codec.name == "raw":
            yield np.array([row.numbers for row in head.rows], np.uint16)
        elif own.codec.name == "dictionary":
            dictionary = sets[own.sparse.basis_hash, own.first_layer, int(own.stream)]
            positions = own.first_token + np.arange(own.tokens)
            bits = round_rows(decode_vectors(head.tokens, dictionary, positions), dtype)
            if own.bitmap_bytes:
                lay_others(bits, head.tokens, body.others.heads[number].rows, dtype)
            yield bits
        elif own.codec.name in ("product", "trellis"):
            codes = sets[own.sparse.basis_hash, own.first_layer, int(own.stream)]
            positions = own.first_token + np.arange(own.tokens)
            places = [(own.first_layer, token, own.first_head + number) for token in positions.tolist()]
            yield round_rows(decode_shaped(head.tokens, codes, positions, places, keys), dtype)
        else:
            yield decode_head(head, range(own.tokens), range(own.head_dim)).astype(dtype).view(np.uint16)


def lay_others(bits, codes, rows, dtype):
    """Put those rows of a head that are not codes in the places of what their codes, all zeros, give."""
    for token, row in enumerate(rows):
        assert isinstance(codes[token].unused, list)  # looked at, for what must not be there
        if row.kind.name == "int4":
            bits[token] = round_rows(decode_row(row.int4), dtype)
        elif row.kind.name == "raw":
            bits[token] = row.raw


def spread_step(parser, own, body, layers, dtype, sets, keys):
    """((layer, stream), head of the part, its rows' bits) of a STEP or ROWS record."""
    if own.is_rows:
        for key, rows in rows_over(parser, own, body, layers):
            positions = own.first_token + np.arange(len(rows)) // own.heads
            trained = sets[own.sparse.basis_hash, *key]
            places = [(key[0], token, own.first_head + n % own.heads) for n, token in enumerate(positions.tolist())]
            if own.sparse.is_shaped:
                bits = round_rows(decode_shaped(rows, trained, positions, places, keys), dtype)
            else:
                bits = round_rows(decode_vectors(rows, trained, positions), dtype)
            yield from ((key, h, bits[h :: own.heads]) for h in range(own.heads))
        return
    if own.codec.name != "raw":
        for key, rows in coded_rows(parser, own, body, layers):
            bits = np.array([[decode_row(row) for row in token] for token in rows]).astype(dtype).view(np.uint16)
            yield from ((key, h, bits[:, h]) for h in range(own.heads))
        return
    numbers, at = np.array(body.rows.numbers, np.uint16), 0
    for key, dim in streams_in_step(own, layers):
        size = own.tokens * own.heads * dim
        rows = numbers[at : at + size].reshape(own.tokens, own.heads, dim)
        at += size
        yield from ((key, h, rows[:, h]) for h in range(own.heads))
    assert at == len(numbers)


def streams_in_step(own, layers):
    """((layer, stream), dim) of a STEP or ROWS record, in the order in which their rows stand."""
    for layer in range(own.first_layer, own.first_layer + own.layers):
        for stream, _, dim in sorted(layers[layer][0]):
            if own.streams >> stream & 1:
                yield (layer, stream), dim


def coded_rows(parser, own, body, layers):
    """((layer, stream), coded rows by token and head) of a STEP record whose rows are coded."""
    stream = KaitaiStream(BytesIO(body.rows))
    for key, dim in streams_in_step(own, layers):
        shape = own.codec, own.group, own.is_symmetric, dim
        yield key, [[parser.CodedRow(*shape, stream) for _ in range(own.heads)] for _ in range(own.tokens)]
    assert stream.is_eof()


def rows_over(parser, own, body, layers):
    """((layer, stream), rows) of a ROWS record, those of one token next to each other."""
    rows = list(split_rows(parser, own, body))
    keys = [key for key, _ in streams_in_step(own, layers)]
    assert len(rows) == len(keys) * own.tokens * own.heads
    for n, key in enumerate(keys):
        yield key, rows[n * own.tokens * own.heads :][: own.tokens * own.heads]


def decode_vectors(rows, own, positions):
    """float32 (rows, dim) of rows over a dictionary: mean + scale * (sum of coefficients times atoms), turned."""
    scales, indices, coefficients = map(np.array, zip(*map(parse_vector, rows), strict=True))
    sums = np.einsum("nj,njd->nd", coefficients, own.atoms[indices].astype(np.int64))
    flat = sums.astype(np.float32) * (scales.astype(np.uint32) << 16).view(np.float32)[:, None] + own.mean
    return turn_rows(flat, positions, own.steps)


def decode_shaped(rows, own, positions, places, keys):
    """float32 (rows, dim) of rows by product or trellis codes: scale * (sum of basis rows) + gain * mean, turned.

    places: layer, token and head of each. keys: by these of K product codes, shape and codes; those of K join them, and
    V that is predicted stands on them.
    """
    gains, shapes, codes = map(np.array, zip(*map(parse_shaped, rows), strict=True))
    of_books = hasattr(own, "books")
    numbers = numbers_of_books(codes, own) if of_books else numbers_of_windows(codes, own)
    table = widen(own.gains)[gains]
    flat = sum_rows(numbers, own.basis) * round_scales(table, widen(own.shapes)[shapes])
    flat += table[:, None] * np.array(own.mean, np.float32)
    if of_books and own.uses[0].stream.name == "k":
        keys.update(zip(places, zip([own] * len(rows), shapes, codes, strict=True), strict=True))
    if of_books and own.predicted:
        sources, of_keys, given = zip(*(keys[place] for place in places), strict=True)
        factors = round_scales(table, widen(own.scales)[list(of_keys)])
        flat += sum_rows(numbers_of_books(np.array(given), sources[0]), own.prediction) * factors
    return turn_rows(flat, positions, own.steps)


def sum_rows(numbers, rows):
    """float32 (n, dim): exact sums of rows, each times a component's number, of numbers (n, components)."""
    return (numbers @ np.array([row.channels for row in rows], np.int64)).astype(np.float32)


def round_scales(gains, scales):
    """float32 (n, 1): products, rounded to bfloat16."""
    return (gains * scales).astype(ml_dtypes.bfloat16).astype(np.float32)[:, None]


def widen(bits):
    """float32 of bfloat16 bits."""
    return (np.array(bits, np.uint32) << 16).view(np.float32)


def numbers_of_books(codes, own):
    """int64 (rows, components): what the centroids of product codes (rows, groups) have in each component."""
    books = np.array([book.centroids for book in own.books], np.int64)
    group = np.searchsorted(own.ends, np.arange(own.components), side="right")
    return np.stack([books[c, codes[:, g]] for c, g in enumerate(group)], axis=1)


def numbers_of_windows(codes, own):
    """int64 (rows, components): entries of tables that the windows of rows' bits, bytes (rows, n), look into."""
    whole, places = [int.from_bytes(bytes(row), "little") for row in codes.astype(np.uint8)], sorted(set(own.rates))
    assert all(bits >> sum(own.rates) == 0 for bits in whole)
    tables = [own.tables[places.index(rate)].entries for rate in own.rates]
    starts, mask = np.cumsum([0, *own.rates[:-1]]).tolist(), (1 << own.window) - 1
    return np.array([[t[bits >> at & mask] for at, t in zip(starts, tables, strict=True)] for bits in whole])


def round_rows(rows, dtype):
    """Bits of rows, none beyond the greatest finite number of the dtype."""
    most = np.float32(ml_dtypes.finfo(dtype).max)
    return np.clip(rows, -most, most).astype(dtype).view(np.uint16)
