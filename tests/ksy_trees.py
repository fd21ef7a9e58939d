"""A log as a tree of dicts, lists and plain values: once as the reader sees it, once as a parser of kvlog.ksy does."""

import functools
from enum import IntEnum
from io import BytesIO

import numpy as np
from kaitaistruct import KaitaiStream, KaitaiStruct

from kvcodec import layout
from kvcodec.codecs import codec_for
from kvcodec.codecs.bitmap import INT4, INT4_SPEC, RAW, take_mixed
from kvcodec.codecs.planes import take_rows, unpack_rows
from kvcodec.codecs.rows import GroupedRows
from kvcodec.codecs.sections import scale_shape, sparse_sections
from kvcodec.flash.device import Device
from kvcodec.layout import Axis, CodecId, Kind, Lane, StreamId
from kvcodec.log.reader import Log, Place
from kvcodec.log.sidecar import load_sidecar
from kvcodec.store.dictionaries import Dictionaries
from kvcodec.store.headers import read_spec
from kvcodec.store.model import read_model
from kvcodec.store.policy import read_sequence
from kvcodec.store.positions import unpack_positions

RECORD_FIELDS = layout.RECORD_HEADER.names


def plain(value):
    """An attribute of a parsed struct, or a field of a NumPy one."""
    if isinstance(value, KaitaiStruct):
        return value.zeros
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else value.item() if isinstance(value, np.generic) else value


def parsed_struct(struct, names):
    """The fields of a parsed struct, among them those that it has in a struct of their own (`sparse_fields`)."""
    out = {name: plain(getattr(struct if hasattr(struct, name) else struct.sparse, name)) for name in names}
    return {name: int(value) if isinstance(value, IntEnum) else value for name, value in out.items()}


def numpy_struct(struct, *texts):
    """texts: fields that are text, with zero bytes behind it."""
    out = {}
    for name in struct.dtype.names:
        value = struct[name]
        kind = struct.dtype.fields[name][0].kind
        raw = value.ljust(struct.dtype.fields[name][0].itemsize, b"\0") if kind == "S" else value
        out[name] = raw.rstrip(b"\0") if name in texts else raw.tobytes() if kind == "V" else plain(raw)
    return out


def view_struct(data, at, dtype):
    return data[at : at + dtype.itemsize].view(dtype)[0]


def differences(ours, theirs, at=""):
    """Paths, such as `frames.2.header.number`, of what two trees do not agree on."""
    if type(ours) is type(theirs) and ours == theirs:
        return []
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = ours.keys() | theirs.keys()
        return [d for k in sorted(keys, key=str) for d in differences(ours.get(k), theirs.get(k), f"{at}.{k}")]
    if isinstance(ours, list) and isinstance(theirs, list):
        pairs = enumerate(zip(ours, theirs, strict=False))
        out = [at] if len(ours) != len(theirs) else []
        return out + [d for i, (a, b) in pairs for d in differences(a, b, f"{at}.{i}")]
    return [at]


def pick(count):
    """Some of `count` tokens or channels: the ends of lanes, tile rows, tiles and groups."""
    if count <= 16:
        return list(range(count))
    near = {0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 63, 64, 65, 127, 128, count // 2, count - 2, count - 1}
    return sorted(i for i in near if 0 <= i < count)


# -- the reader's word ---------------------------------------------------------------------------------------------


class Witness(Log):
    """A log that remembers where each of its frames began, lane KEPT first, and its sets."""

    def __init__(self, device):
        super().__init__(device)
        self.frames, self.dictionaries = [], Dictionaries(self)
        for walk in self.walks:
            walk._count = functools.partial(self._note, walk, walk._count)

    def _note(self, walk, count, frame):
        self.frames.append((walk.cursor.block.number, walk.cursor.offset, frame))
        count(frame)


def read_log(path):
    """What the reader makes of a log, and the bad ranges that its walk passed over."""
    device = Device.open(path)
    try:
        log = Witness(device)
        located = log.poll()
        for one in located:
            if int(one.header["kind"]) in (Kind.DICTIONARY, Kind.CODEBOOK):
                log.dictionaries.enter(one)
        data = np.frombuffer(path.read_bytes(), np.uint8)
        copies = [data[4096 * i : 4096 * (i + 1)] for i in range(2)]
        fields = ("page_bytes", "unit_bytes", "block_bytes", "rated_cycles", "read_ns", "program_ns", "erase_ns")
        tree = {
            "superblocks": [numpy_struct(view_struct(c, 0, layout.SUPERBLOCK), "name") for c in copies],
            "geometry": {
                **{f: getattr(device.geometry, f) for f in fields},
                "name": device.geometry.name.encode(), "uuid": device.uuid, "blocks": device.blocks,
            },
            "blocks": [read_block(device, n) for n in range(device.present_blocks())],
            "frames": [read_frame(log, *frame) for frame in log.frames],
            "sidecar": read_sidecar(path, device),
        }  # fmt: skip
        assert {record["header"]["lsn"] for frame in tree["frames"] for record in frame["records"]} == {
            int(one.header["lsn"]) for one in located
        }
        return tree, [*log.report.gaps, *filter(None, [log.report.torn])]
    finally:
        device.close()


def read_block(device, number):
    block = device.block(number)
    return {
        "generation": block.generation if block else 0,
        "lane": int(block.lane) if block else 0,
        "header": numpy_struct(view_struct(device.data(number, 0, 64), 0, layout.BLOCK_HEADER)),
        "slots": {u: numpy_struct(slot) for u, slot in enumerate(device.slots(number)) if any(slot.tobytes())},
        "programmed": device.programmed(number).tolist(),
    }


def read_frame(log, number, offset, frame):
    data = log.device.data(number, 0, frame.end)
    generation = log.device.block(number).generation
    return {
        "block": number,
        "offset": offset,
        "header": numpy_struct(view_struct(data, offset, layout.FRAME_HEADER)),
        "trailer": numpy_struct(view_struct(data, frame.end - 8, layout.FRAME_TRAILER)),
        "records": [
            {"offset": at, "header": numpy_struct(header), "body": read_body(log, header, (generation, number, at))}
            for at, header in frame.records
        ],
    }


def read_body(log, header, place):
    kind, (_, body) = int(header["kind"]), log.load(Place(*place))
    if kind == Kind.MODEL:
        model = read_model(header, body, 0)
        streams = [[[int(s.id), s.heads, s.dim] for s in layer.streams] for layer in model.layers]
        rest = [[layer.window, layer.rope_base, layer.rope_scale] for layer in model.layers]
        return {"name": model.name, "streams": streams, "rest": rest}
    if kind == Kind.SEQUENCE:
        info = read_sequence(header, body, 0)
        return {"name": info.name, "policies": [read_rule(rule) for rule in info.policy.rules]}
    if kind == Kind.GROUP:
        return read_group(header, body)
    if kind == Kind.ROWS:
        spec = read_spec(header, Axis.TOKEN)
        if spec.shaped:
            return {"rows": split_shaped(body.reshape(-1, spec.shaped.row_bytes))}
        return {"rows": read_codes(body.reshape(-1, spec.sparse.row_bytes), spec.sparse)}
    if kind == Kind.DICTIONARY:
        return read_chunk(log, header)
    if kind == Kind.FREED:
        return {"runs": [numpy_struct(run) for run in body.view(layout.FREED_RUN)]}
    if kind == Kind.RETIRED:
        return {"blocks": [numpy_struct(block) for block in body.view(layout.RETIRED_BLOCK)]}
    return {"bytes": body.tobytes()}


def read_chunk(log, header):
    first, count = int(header["first_atom"]), int(header["chunk"])
    own = log.dictionaries.find(header["basis_hash"].tobytes()).dictionaries[int(header["matrix"])]
    return {
        "uses": [[layer, int(stream)] for layer, stream in own.uses if not first],
        "mean": own.mean.tolist() if own.has_mean and not first else [],
        "atoms": own.atoms[first : first + count].tolist(),
    }


def read_codes(rows, spec):
    """Scale, indices and coefficients of rows over a dictionary (n, row bytes)."""
    return as_lists(unpack_rows(rows, spec))


def as_lists(codes):
    columns = codes.scales, codes.indices, codes.coefficients
    return [list(row) for row in zip(*(x.tolist() for x in columns), strict=True)]


def split_shaped(rows):
    """Gain, shape and codes of rows by product or trellis codes (n, row bytes)."""
    return [[int(row[0]), int(row[1]), row[2:].tolist()] for row in rows]


def read_rule(rule):
    spec, policy = rule.policy.spec, rule.policy
    own = [rule.stream, spec.codec, spec.axis, spec.flags, spec.group, rule.layers.start, len(rule.layers)]
    sparse = [bytes(16), 0, 0, 0, 0, 0]
    if spec.shaped:
        sparse[:2] = [spec.basis, spec.size]
    if codes := spec.sparse:
        sparse = [codes.basis, codes.size, codes.error, codes.atoms, codes.low, codes.bits]
    return [*map(int, own), policy.residual, policy.sinks, *sparse]


def read_group(header, body):
    heads, tokens, dim = (int(header[f]) for f in ("heads", "tokens", "head_dim"))
    spec = read_spec(header)
    figures, kept = body[: 2 * heads].view("<u2"), int(header["position_bytes"])
    placed, rest = np.split(body[int(header["error_bytes"]) :], [kept])
    if spec.sparse:
        sections, bitmap, others = sparse_sections(tokens, spec.sparse.code_bytes), int(header["bitmap_bytes"]), {}
        if bitmap:
            mixed = take_mixed(rest, bitmap, heads, tokens, sections.total, dim)
            rest, others = mixed.sections, read_others(mixed, dim)
        rows = take_rows(rest.reshape(1, heads, -1), tokens, spec.sparse).swapaxes(0, 1)
        codes = [read_codes(own, spec.sparse) for own in rows]
        return group_tree(sections, figures) | {"heads": codes} | others
    rest = rest.reshape(heads, -1)
    if spec.shaped:
        sections = sparse_sections(tokens, spec.size)
        sides, codes = rest[:, : sections.metadata], rest[:, sections.metadata :]
        parts = [own.reshape(heads, -(-tokens // 64), -1, 64) for own in (sides, codes)]
        rows = np.concatenate(parts, axis=2).swapaxes(2, 3).reshape(heads, -1, 2 + spec.size)[:, :tokens]
        return group_tree(sections, figures) | {"heads": [split_shaped(own) for own in rows]}
    codec = codec_for(spec, StreamId(int(header["stream"])))
    sections = codec.sections(tokens, dim)
    out = group_tree(sections, figures)
    rows = codec.decode(rest, tokens, dim, layout.DtypeId.BFLOAT16, as_float32=spec.codec != CodecId.RAW)
    if spec.codec == CodecId.RAW:
        placed = {"positions": unpack_positions(placed, tokens).tolist()} if kept else {}
        return out | {"heads": [rows[:, h].tolist() for h in range(heads)]} | placed
    table = int(np.prod(scale_shape(tokens, dim, spec.axis, spec.group, codec.channel_lane)))
    return out | {
        "scales": rest[:, : 2 * table].copy().view("<u2").tolist(),
        "zeros": [] if spec.symmetric else rest[:, sections.scales :][:, : 2 * table].copy().view("<i2").tolist(),
        "heads": [rows[np.ix_(pick(tokens), [h], pick(dim))][:, 0].tolist() for h in range(heads)],
    }


def read_others(mixed, dim):
    """What each row is kept as, and those that are not codes, in the order in which they stand."""
    codec, raw = GroupedRows(INT4_SPEC, StreamId.K), mixed.rows(RAW, dim)
    int4 = codec.decode(mixed.rows(INT4, dim)[:, None], dim, layout.DtypeId.BFLOAT16, as_float32=True)[:, 0]
    return {"kinds": mixed.kinds.tolist(), "int4": int4.tolist(), "raw": np.ascontiguousarray(raw).view("<u2").tolist()}


def group_tree(sections, figures):
    sizes = {"metadata_bytes": sections.metadata, "code_bytes": sections.codes}
    return {"sizes": sizes, "errors": figures.tolist()}


def read_sidecar(path, device):
    sidecar = path.with_name(path.name + ".idx")
    if not sidecar.exists():
        return None
    log = Log(device)
    entries = [
        dict(zip(("generation", "block", "offset"), one.place, strict=True)) | {"header": numpy_struct(one.header)}
        for one in load_sidecar(path, log, resume=True)
    ]
    data = np.frombuffer(sidecar.read_bytes(), np.uint8)
    lanes = data[layout.SIDECAR.itemsize :][: len(Lane) * layout.SIDECAR_LANE.itemsize].view(layout.SIDECAR_LANE)
    for walk in log.walks:
        assert (walk.cursor.number, walk.cursor.offset) == tuple(lanes[walk.lane][["number", "offset"]])
    header = numpy_struct(view_struct(data, 0, layout.SIDECAR))
    return {"header": header, "lanes": [numpy_struct(lane) for lane in lanes], "entries": entries}


# -- the parser's word ---------------------------------------------------------------------------------------------


def parse_log(parser, data, sidecar=None, *, bodies=None):
    """The same tree as read_log, from nothing but bytes and the description. bodies: of records of some kinds alone."""
    log = parser.from_bytes(data)
    fields = ("page_bytes", "unit_bytes", "block_bytes", "rated_cycles", "read_ns", "program_ns", "erase_ns")
    return {
        "superblocks": [parsed_struct(copy, layout.SUPERBLOCK.names) for copy in log.superblocks],
        "geometry": parsed_struct(log.geometry, (*fields, "name", "uuid", "blocks")),
        "blocks": [parse_block(log, block) for block in log.blocks],
        "frames": [parse_frame(parser, block, frame, bodies) for block, frame in walk(log)],
        "sidecar": parse_sidecar(parser, sidecar) if sidecar else None,
    }


def held_units(log, block):
    held = min(block.held_data, log.geometry.block_bytes) // log.geometry.unit_bytes
    return [u < held and slot.is_programmed for u, slot in enumerate(block.slots)]


def parse_block(log, block):
    names = layout.SPARE_SLOT.names
    return {
        "generation": block.data.generation,
        "lane": int(block.data.lane),
        "header": parsed_struct(block.data.header, layout.BLOCK_HEADER.names),
        "slots": {u: parsed_struct(slot, names) for u, slot in enumerate(block.slots) if slot.is_programmed},
        "programmed": held_units(log, block),
    }


def in_use(log, lane=None):
    """Blocks in use, of one lane or all, in the order in which the log filled them."""
    found = [block for block in log.blocks if block.held_data >= 64 and block.data.generation]
    return sorted((b for b in found if lane in (None, b.data.lane)), key=lambda b: b.data.generation)


def walk(log):
    """(block, frame) of the frames that continue the chain of their lane, or come behind what is gone on purpose."""
    gone = freed(frame for _, frame in frames_of(log, Lane.KEPT))
    yield from walk_lane(log, Lane.KEPT, gone)
    yield from walk_lane(log, Lane.FRESH, gone)


def freed(frames):
    """(lane, numbers) of the frames that FREED records name."""
    places = (place for frame in frames if frame.records for place in frame.records.places)
    records = (place.record for place in places if place.record.header.kind.name == "freed")
    runs = (run for record in records for run in record.body.runs)
    return [(run.lane, range(run.first_frame, run.first_frame + run.frames)) for run in runs]


def walk_lane(log, lane, gone):
    number, crc = 0, 0
    for block, frame in frames_of(log, lane):
        header = frame.header
        own = [run for of, run in gone if of == lane]
        missing = range(number + 1, header.number)
        passed = len(missing) > 0 and all(any(n in run for run in own) for n in missing)
        if passed or (header.number, header.previous) == (number + 1, crc):
            number, crc = header.number, frame.trailer.crc
            yield block, frame


def frames_of(log, lane):
    """(block, frame) of all that may be frames of a lane, and all of whose units are programmed."""
    unit = log.geometry.unit_bytes
    for block in in_use(log, lane):
        programmed = held_units(log, block)
        for place in getattr(block.data, "places", []):  # none behind a header alone
            if place.is_frame and all(programmed[place.offset // unit : (place.frame.end - 1) // unit + 1]):
                yield block, place.frame


def records_in_order(log):
    """Records of both lanes by lsn, of copies the one in lane KEPT, there the last."""
    found, frames = {}, sorted(walk(log), key=lambda one: one[0].data.lane)
    for record in (place.record for _, frame in frames if frame.records for place in frame.records.places):
        found[record.header.lsn, getattr(record.header.fields, "first_head", 0)] = record
    return [found[part] for part in sorted(found)]


def parse_frame(parser, block, frame, bodies):
    records = frame.records.places if frame.records else []

    def wanted(record):
        return bodies is None or record.header.kind in bodies

    return {
        "block": block.number,
        "offset": frame.offset,
        "header": parsed_struct(frame.header, layout.FRAME_HEADER.names),
        "trailer": parsed_struct(frame.trailer, layout.FRAME_TRAILER.names),
        "records": [
            {
                "offset": place.offset,
                "header": parse_record_header(place.record.header),
                "body": parse_body(parser, place.record) if wanted(place.record) else None,
            }
            for place in records
        ],
    }


def parse_record_header(header):
    out = parsed_struct(header, RECORD_FIELDS)
    own = layout.HEADERS.get(int(header.kind), layout.RECORD_HEADER).names[len(RECORD_FIELDS) :]
    return out | (parsed_struct(header.fields, own) if own else {})


def parse_body(parser, record):
    kinds, body = parser.RecordKind, record.body
    if record.header.kind == kinds.model:
        return {
            "name": body.name,
            "streams": [[list(stream) for stream in streams_of(layer)] for layer in body.layers],
            "rest": [[layer.window, layer.rope_base, layer.rope_scale] for layer in body.layers],
        }
    if record.header.kind == kinds.sequence:
        names = [name for name in layout.POLICY.names if not name.startswith("reserved")]
        return {"name": body.name, "policies": [list(parsed_struct(p, names).values()) for p in body.policies]}
    if record.header.kind == kinds.group:
        return parse_group(parser, record.header.fields, body)
    if record.header.kind == kinds.rows:
        parse = parse_shaped if record.header.fields.sparse.is_shaped else parse_vector
        return {"rows": [parse(row) for row in split_rows(parser, record.header.fields, body)]}
    if record.header.kind == kinds.dictionary:
        return {
            "uses": [[use.layer, int(use.stream)] for use in body.uses],
            "mean": body.mean,
            "atoms": [atom.channels for atom in body.atoms],
        }
    if record.header.kind == kinds.freed:
        return {"runs": [parsed_struct(run, layout.FREED_RUN.names) for run in body.runs]}
    if record.header.kind == kinds.retired:
        return {"blocks": [parsed_struct(block, layout.RETIRED_BLOCK.names) for block in body.blocks]}
    if record.header.kind == kinds.step:
        coded = isinstance(body.rows, bytes)
        return {"bytes": body.rows if coded else np.array(body.rows.numbers, "<u2").tobytes()}
    return {"bytes": body}


def streams_of(layer):
    """(stream, heads, dim) of a parsed layer."""
    both = (layer.first_stream, layer.first_heads, layer.first_dim), (
        layer.second_stream, layer.second_heads, layer.second_dim)  # fmt: skip
    return [(int(stream), heads, dim) for stream, heads, dim in both if stream]


def parse_group(parser, fields, body):
    out = {
        "sizes": {"metadata_bytes": fields.metadata_bytes, "code_bytes": fields.code_bytes},
        "errors": body.errors,
    }
    if fields.codec == parser.CodecId.raw:
        placed = [(row.position, row.visible_from) for row in body.positions.rows] if fields.position_bytes else None
        heads = {"heads": [[row.numbers for row in head.rows] for head in body.heads]}
        return out | heads | ({"positions": placed} if placed else {})
    if fields.codec == parser.CodecId.dictionary:
        others = parse_others(body) if fields.bitmap_bytes else {}
        return out | {"heads": [[parse_vector(token) for token in head.tokens] for head in body.heads]} | others
    if fields.codec in (parser.CodecId.product, parser.CodecId.trellis):
        return out | {"heads": [[parse_shaped(token) for token in head.tokens] for head in body.heads]}
    return out | {
        "scales": [head.scales.numbers for head in body.heads],
        "zeros": [] if fields.is_symmetric else [head.zeros.numbers for head in body.heads],
        "heads": [
            decode_head(head, pick(fields.tokens), pick(fields.head_dim)).tolist() for head in body.heads
        ],
    }  # fmt: skip


def parse_others(body):
    rows = [row for head in body.others.heads for row in head.rows]
    for token in (token for head in body.heads for token in head.tokens):
        assert isinstance(token.unused, list)  # looked at, for what must not be there
    return {
        "kinds": [[int(token.kind) for token in head.tokens] for head in body.heads],
        "int4": [decode_row(row.int4).tolist() for row in rows if row.kind.name == "int4"],
        "raw": [row.raw for row in rows if row.kind.name == "raw"],
    }


def split_rows(parser, fields, body):
    """Rows of a ROWS record, one after the other."""
    stream = KaitaiStream(BytesIO(body.rows))
    row = parser.ShapedRow if fields.sparse.is_shaped else parser.SparseRow
    while not stream.is_eof():
        yield row(fields.sparse, stream)


def parse_vector(row):
    """Scale, indices and coefficients of a row over a dictionary."""
    vector = row.vector
    for one in (vector.low_set, vector.high_set) if vector.codes.has_sets else ():
        assert isinstance(one.rest, list)  # looked at, for what must not be there
    return [row.scale, [term.index for term in vector.terms], [term.coefficient for term in vector.terms]]


def parse_shaped(row):
    """Gain, shape and codes of a row by product or trellis codes, of a record or by itself."""
    return [row.gain, row.shape, [code if isinstance(code, int) else code.number for code in row.codes]]


def decode_head(head, tokens, channels):
    """float32 (tokens, channels) of a grouped head."""
    return decode_numbers([[head.tokens[t].channels[c] for c in channels] for t in tokens], head.parts)


def decode_row(row):
    """float32 (dim,) of a coded row."""
    return decode_numbers([row.channels], row.parts)[0]


def decode_numbers(table, parts):
    """float32 of a table of numbers: scale * (code + zero / parts)."""
    scale = np.array([[n.scale << 16 for n in row] for row in table], np.uint32).view(np.float32)
    zero = np.array([[n.zero for n in row] for row in table], np.float32)
    code = np.array([[n.code for n in row] for row in table], np.float32)
    return scale * (code + zero / np.float32(parts))


def parse_sidecar(parser, data):
    sidecar = parser.Sidecar(KaitaiStream(BytesIO(data)))
    assert len(data) == 64 + 80 * len(sidecar.lanes) + 144 * len(sidecar.entries)
    return {
        "header": parsed_struct(sidecar.header, layout.SIDECAR.names),
        "lanes": [parsed_struct(lane, layout.SIDECAR_LANE.names) for lane in sidecar.lanes],
        "entries": [
            parsed_struct(entry, ("generation", "block", "offset")) | {"header": parse_record_header(entry.header)}
            for entry in sidecar.entries
        ],
    }
