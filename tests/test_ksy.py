"""formats/kvlog.ksy describes the same bytes: a parser made from it agrees with the reader on every golden log.

`make ksy` installs the compiler; without it these tests fail.
"""

import functools
import json
import os
import re
import struct
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from kaitaistruct import KaitaiStream, KaitaiStructError, ValidationFailedError

from kvcodec import layout
from kvcodec.codecs.bitmap import CODES, INT4, RAW, pack_kinds
from kvcodec.codecs.dictionary import Dictionary
from kvcodec.codecs.planes import pack_rows
from kvcodec.codecs.pursuit import empty_codes
from kvcodec.codecs.rows import GroupedRows
from kvcodec.codecs.sparse import SparseRows
from kvcodec.flash.device import Device
from kvcodec.layout import Axis, CodecId, Kind, Lane, StreamId
from kvcodec.sparse_spec import SparseCodes
from kvcodec.spec import GROUPED_CODECS, CodecSpec
from tests.ksy_rows import coded_rows, decode_row, decode_vectors, dictionaries, read_all, records, rows_over
from tests.ksy_trees import (
    Witness,
    as_lists,
    differences,
    in_use,
    parse_body,
    parse_log,
    parse_vector,
    read_log,
    records_in_order,
    view_struct,
    walk,
)
from tools.golden import bounded, products, trellises

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "formats" / "kvlog.ksy"
MODULES = ROOT / ".ksy" / "node_modules"
GOLDEN = ROOT / "tests" / "golden"
INDEX = json.loads((GOLDEN / "index.json").read_text(encoding="utf-8"))
GOOD = [entry for entry in INDEX if "error" not in entry]
EXAMPLE = GOLDEN / "worked-example.kvlog"
SPARSE = GOLDEN / "dictionary-sets.kvlog"
BOUNDED = GOLDEN / "dictionary-max.kvlog"
CLEANED = GOLDEN / "cleaned.kvlog"
GROWN = GOLDEN / "dictionary-grown.kvlog"
PRODUCT = GOLDEN / "product-rows.kvlog"
TRELLIS = GOLDEN / "trellis.kvlog"


@pytest.fixture(scope="session")
def parser(tmp_path_factory):
    """The class that the compiler makes of kvlog.ksy."""
    assert MODULES.is_dir(), f"{MODULES} is missing: run `make ksy`"
    directory = tmp_path_factory.mktemp("ksy")
    command = ["node", str(ROOT / "tools" / "ksy" / "compile.js"), str(directory), str(SOURCE)]
    done = subprocess.run(
        command, env={**os.environ, "NODE_PATH": str(MODULES)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    sys.path.insert(0, str(directory))
    try:
        from kvlog import Kvlog
    finally:
        sys.path.remove(str(directory))
    return Kvlog


# -- they agree ----------------------------------------------------------------------------------------------------


def sidecar_of(path):
    sidecar = path.with_name(path.name + ".idx")
    return sidecar.read_bytes() if sidecar.exists() else None


@pytest.mark.parametrize("entry", GOOD, ids=lambda e: e["name"])
def test_the_parser_agrees_with_the_reader(entry, parser):
    path = GOLDEN / entry["name"]
    ours, _ = read_log(path)
    assert ours["frames"]
    assert differences(ours, parse_log(parser, path.read_bytes(), sidecar_of(path))) == []


@pytest.mark.parametrize("entry", GOOD, ids=lambda e: e["name"])
def test_what_is_passed_over_is_zeros_or_a_flaw_that_the_reader_reports(entry, parser):
    path = GOLDEN / entry["name"]
    log = parser.from_bytes(path.read_bytes())
    ranges = read_log(path)[1]
    for block in in_use(log):
        base = 8192 + block.number * log.stride + log.spare_area
        for place in getattr(block.data, "places", []):
            if not place.is_frame and any(place.passed_over):
                at = base + place.offset
                assert any(bad.start <= at and at + len(place.passed_over) <= bad.end for bad in ranges)


@pytest.mark.parametrize("name", ["worked-example", "small-blocks", "torn-tail"])
def test_a_log_may_end_anywhere(name, parser, tmp_path):
    """Both take the frames that are whole."""
    data, path = (GOLDEN / f"{name}.kvlog").read_bytes(), tmp_path / "cut.kvlog"
    for size in [8192, 8193, *range(8200, len(data), 809)]:
        path.write_bytes(data[:size])
        device = Device.open(path)
        log = Witness(device)
        log.poll()
        ours = [frame.id.number for _, _, frame in log.frames]
        device.close()
        assert [frame.header.number for _, frame in walk(parser.from_bytes(data[:size]))] == ours


def test_golden_logs_hold_what_the_description_describes(parser):
    """Every kind of record; every codec in both tiles along both axes, in both with and without zeros, and as rows."""
    kinds, groups, rows = set(), set(), set()
    for entry in GOOD:
        for record, _, _ in records(parser, parser.from_bytes((GOLDEN / entry["name"]).read_bytes())):
            own, kind = record.header.fields, record.header.kind
            kinds.add(int(kind))
            if kind == parser.RecordKind.group:
                groups.add((int(own.codec), own.is_channel_lane, int(own.axis), own.is_symmetric))
            if kind == parser.RecordKind.step:
                rows.add((int(own.codec), own.is_symmetric))
    both, grouped = (False, True), set(GROUPED_CODECS)
    apart = {Kind.MODEL, Kind.DICTIONARY, Kind.CODEBOOK, Kind.RETIRED}  # of no sequence: `records` leaves them out
    assert kinds >= set(layout.HEADERS) - apart
    assert {(CodecId.RAW, lane, Axis.NONE, False) for lane in both} <= groups
    assert {(c, lane, a) for c in grouped for lane in both for a in (1, 2)} <= {g[:3] for g in groups}
    assert {(c, lane, s) for c in grouped for lane in both for s in both} <= {(g[0], g[1], g[3]) for g in groups}
    assert {(c, s) for c in grouped for s in both} | {(CodecId.RAW, False)} <= rows


def test_golden_logs_hold_what_the_description_describes_of_dictionaries(parser):
    """Indices of 16 bits and in sets, of one tier and of two, over dictionaries with a mean, a rotation and without
    them; records with a row bitmap and without one, and rows of each kind.
    """
    forms, bounds, rows, means, firsts, kept, grown = set(), set(), set(), set(), set(), set(), set()
    for name in {entry["name"] for entry in GOOD if entry["name"].startswith("dictionary")}:
        log = parser.from_bytes((GOLDEN / name).read_bytes())
        means |= {(bool(own.mean.any()), len(own.steps) > 0) for own in dictionaries(parser, log).values()}
        for record in records_in_order(log):
            own, kind = record.header.fields, record.header.kind
            if kind == parser.RecordKind.dictionary:
                firsts.add((own.first_atom > 0, own.uses > 1))
                grown.add((own.grown, own.matrices))
            elif kind == parser.RecordKind.rows:
                rows.add((own.layers > 1, own.streams.bit_count() > 1, own.sparse.has_sets))
            elif kind == parser.RecordKind.group and own.sparse.is_used:
                forms.add((own.sparse.has_sets, own.sparse.low_atoms > 0))
                bounds.add((own.sparse.error_bound, own.sparse.atoms))
                bitmap = own.bitmap_bytes > 0
                kinds = {int(token.kind) for head in record.body.heads for token in head.tokens}
                kept |= {(own.sparse.has_sets, own.sparse.is_bounded, bitmap, kind) for kind in kinds}
    assert forms == {(False, False), (False, True), (True, False), (True, True)}
    assert len(bounds) > len({bound for bound, _ in bounds}) > 1  # records of different atoms under one bound
    assert means == {(False, False), (True, False), (True, True)}
    assert {0, 1, 2} <= {count for count, of in grown if count < of}  # whole sets, and such as grew in part
    assert {(False, False), (True, False), (False, True)} <= firsts  # atoms that go on in another record; several uses
    assert {(False, False, False), (False, False, True), (True, True, True)} <= rows
    with_bitmap = {(True, True, kind) for kind in (CODES, INT4, RAW)}
    assert {each[1:] for each in kept} == {(False, False, CODES), (True, False, CODES), *with_bitmap}
    assert {each[0] for each in kept if each[2]} == {False, True}  # both of them with a row bitmap


# -- every row, without the reader ---------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", GOOD, ids=lambda e: e["name"])
def test_the_parser_alone_reads_every_row(entry, parser):
    assert read_all(parser, (GOLDEN / entry["name"]).read_bytes()) == entry["sequences"]


@pytest.mark.parametrize("name", ["steps", "int8", "int2"])
def test_coded_rows_are_what_the_codec_decodes(name, parser):
    """As float32: the model's dtype would hide some of it."""
    seen = 0
    for record, layers, _ in records(parser, parser.from_bytes((GOLDEN / f"{name}.kvlog").read_bytes())):
        own, at = record.header.fields, 0
        if record.header.kind != parser.RecordKind.step or own.codec == parser.CodecId.raw:
            continue
        spec = CodecSpec(CodecId(int(own.codec)), Axis.TOKEN, own.group, own.is_symmetric)
        for (_, stream), rows in coded_rows(parser, own, record.body, layers):
            codec, dim = GroupedRows(spec, StreamId(stream)), rows[0][0].dim
            size = own.tokens * own.heads * codec.row_bytes(dim)
            body = np.frombuffer(record.body.rows, np.uint8, size, at).reshape(own.tokens, own.heads, -1)
            ours = codec.decode(body, dim, layout.DtypeId.BFLOAT16, as_float32=True)
            assert np.array_equal(ours, np.array([[decode_row(row) for row in token] for token in rows]))
            at, seen = at + size, seen + 1
    assert seen


def test_rows_over_a_dictionary_are_what_the_codec_decodes(parser):
    """As float32 too."""
    log, seen = parser.from_bytes(SPARSE.read_bytes()), 0
    sets = dictionaries(parser, log)
    for record, layers, _ in records(parser, log):
        own, at = record.header.fields, 0
        if record.header.kind != parser.RecordKind.rows:
            continue
        spec = CodecSpec(CodecId.DICTIONARY, Axis.TOKEN, own.group, sparse=spec_of(own.sparse))
        for (layer, stream), rows in rows_over(parser, own, record.body, layers):
            over = sets[own.sparse.basis_hash, layer, stream]
            codec = SparseRows(spec, Dictionary(over.atoms, ((layer, StreamId(stream)),), over.mean))
            size = len(rows) * spec.sparse.row_bytes
            body = np.frombuffer(record.body.rows, np.uint8, size, at).reshape(len(rows), 1, -1)
            ours = codec.decode(body, over.atoms.shape[1], layout.DtypeId.BFLOAT16, as_float32=True)
            assert np.array_equal(ours[:, 0], decode_vectors(rows, over, range(len(rows))))
            at, seen = at + size, seen + 1
    assert seen


def spec_of(fields):
    """What the fields of dictionaries say, to the codec."""
    own = fields.atoms, fields.coefficient_bits, fields.has_sets, fields.low_atoms, fields.error_bound
    return SparseCodes(*own, fields.dictionary_atoms, fields.basis_hash)


@pytest.mark.parametrize(
    "codes",
    [
        SparseCodes(1, 4, True, size=65536), SparseCodes(8, 6, True, size=1024), SparseCodes(32, 5, True, size=31),
        SparseCodes(9, 8, True, 1, size=4095), SparseCodes(16, 6, True, 4, size=2048), SparseCodes(3, 5, True, size=1),
        SparseCodes(32, 8, False, 31, size=65536),
    ],
    ids=str,
)  # fmt: skip
def test_codes_of_all_shapes_are_what_was_packed(codes, parser):
    """Sets with as few and with as many low bits as there can be, and fields that end within bytes."""
    random, most = np.random.default_rng(codes.atoms), (1 << (codes.bits - 1)) - 1
    own, shape = empty_codes(20, codes.atoms), (20, codes.atoms)
    own.indices[:] = random.integers(0, codes.size, shape)
    own.indices[:3] = np.array([[0], [codes.size - 1], [codes.size // 2]])
    own.coefficients[:], own.counts[:] = random.integers(-most, most + 1, shape), codes.atoms
    own.scales[:] = random.integers(0, 0x7F80, 20)
    packed = pack_rows(own, codes)  # sorts sets, in `own` too
    numbers = codes.size, 0, codes.atoms, codes.low, codes.bits
    head = struct.pack("<16sIHBBB", b"\1" * 16, *numbers)
    fields = parser.SparseFields(parser.CodecId.dictionary, 2 if codes.sets else 0, KaitaiStream(BytesIO(head)))
    theirs = [parse_vector(parser.SparseRow(fields, KaitaiStream(BytesIO(row.tobytes())))) for row in packed]
    assert theirs == as_lists(own)


@pytest.mark.parametrize(("heads", "tokens"), [(2, 5), (1, 1), (3, 64), (5, 62), (17, 15)])
def test_row_bitmaps_of_all_shapes_are_what_was_packed(heads, tokens, parser):
    kinds = np.random.default_rng(heads).integers(0, 3, (heads, tokens)).astype(np.uint8)
    packed = pack_kinds(kinds).tobytes()

    def parse(data):
        bitmap = parser.RowBitmap(SimpleNamespace(heads=heads, tokens=tokens), KaitaiStream(BytesIO(data)))
        return [[int(kind) for kind in head.kinds] for head in bitmap.heads]

    assert parse(packed) == kinds.tolist()
    used = 8 * -(-tokens // 4)  # bits of a head
    behind = [
        *(h * used + b for h in range(heads) for b in range(2 * tokens, used)),
        *range(heads * used, 8 * len(packed)),
    ]
    for bit in behind[:: max(1, len(behind) // 16)]:
        changed = bytearray(packed)
        changed[bit // 8] |= 1 << bit % 8
        assert see(None, functools.partial(parse, bytes(changed)))[0].startswith("not valid"), bit
    changed = bytearray(packed)
    changed[(heads - 1) * (used // 8) + (tokens - 1) // 4] |= 3 << (tokens - 1) % 4 * 2
    assert see(None, functools.partial(parse, bytes(changed)))[0].startswith("not valid")


# -- they disagree where a byte is another -------------------------------------------------------------------------


BODY_SHAPE = {
    "kind", "header_bytes", "body_bytes", "layers", "name_bytes", "policies", "codec", "axis", "flags", "group",
    "heads", "head_dim", "tokens", "metadata_bytes", "code_bytes", "dictionary_atoms", "atoms", "low_atoms",
    "coefficient_bits", "first_atom", "chunk", "uses", "mean",
}  # with another one the body cannot be parsed  # fmt: skip
STRUCTS = [
    "superblock-0", "superblock-1", "spare-slot", "block-header", "frame-header", "frame-trailer", "model",
    "model-layer", "sequence", "policy", "group-int4-k", "group-int4-v", "group-raw-k", "step", "drop", "sidecar",
    "sidecar-fresh", "sidecar-kept", "sidecar-entry", "cleaned-sequence", "cleaned-drop", "cleaned-freed",
    "cleaned-freed-run", "sparse-dictionary", "sparse-dictionary-use", "sparse-policy", "sparse-group-dictionary-k",
    "sparse-rows", "product-codebook", "product-rows", "trellis-codebook", "trellis-rows",
]  # fmt: skip
KNOWN = dict.fromkeys(  # known up to there
    ("sparse-policy", "sparse-group-dictionary-k", "product-rows", "trellis-rows"), "basis_hash"
)
SMALL = frozenset({Kind.MODEL, Kind.SEQUENCE, Kind.DICTIONARY, Kind.FREED})  # bodies that hold structs


@functools.cache
def example_tree(log, bodies=None):
    """What the reader makes of a log, with bodies of all records, or of some kinds."""
    tree = read_log(log)[0]
    for record in (record for frame in tree["frames"] for record in frame["records"]):
        record["body"] = record["body"] if bodies is None or record["header"]["kind"] in bodies else None
    return tree


@functools.cache
def example_structs():
    """name: (log, dtype, offset, path in the tree, fields whose change is seen elsewhere) of structs of three logs."""
    first_block = layout.SUPERBLOCKS * layout.SUPERBLOCK_BYTES
    base = first_block + layout.FILE_ALIGNMENT
    lanes = [layout.SIDECAR.itemsize + n * layout.SIDECAR_LANE.itemsize for n in range(len(Lane) + 1)]
    out = {
        "superblock-0": (layout.SUPERBLOCK, 0, ".superblocks.0", {"unit_bytes", "block_bytes"}),
        "superblock-1": (layout.SUPERBLOCK, layout.SUPERBLOCK_BYTES, ".superblocks.1", set()),
        "spare-slot": (layout.SPARE_SLOT, first_block + layout.SPARE_BYTES, ".blocks.0.slots.1", set()),
        "block-header": (layout.BLOCK_HEADER, base, ".blocks.0.header", set()),
        "sidecar": (layout.SIDECAR, 0, ".sidecar.header", {"records"}),
        **{
            f"sidecar-{lane.name.lower()}": (layout.SIDECAR_LANE, lanes[lane], f".sidecar.lanes.{lane}", set())
            for lane in Lane
        },
        "sidecar-entry": (layout.SIDECAR_ENTRY, lanes[-1], ".sidecar.entries.0", set()),
        **frame_structs(example_tree(EXAMPLE), base),
    }
    out = {name: (EXAMPLE, *struct) for name, struct in out.items()}
    prefixes = {"sparse": SPARSE, "bounded": BOUNDED, "grown": GROWN, "product": PRODUCT, "trellis": TRELLIS}
    for prefix, log in prefixes.items():
        own = frame_structs(example_tree(log), base)
        out |= {f"{prefix}-{name}": (log, *struct) for name, struct in own.items()}
    for block in range(len(example_tree(CLEANED)["blocks"])):  # each of 4096 bytes, behind as many of its spare area
        own = frame_structs(example_tree(CLEANED), base + block * 2 * layout.FILE_ALIGNMENT, block)
        out |= {f"cleaned-{name}": (CLEANED, *struct) for name, struct in own.items()}
    return out


def frame_structs(tree, base, block=0):
    """Those of the frames in a block, whose data begin at `base`."""
    out, chain = {}, {"magic", "length", "number", "previous"}
    for i, frame in enumerate(tree["frames"]):
        if frame["block"] != block:
            continue
        at, end = base + frame["offset"], base + frame["offset"] + frame["header"]["length"]
        out["frame-header"] = layout.FRAME_HEADER, at, f".frames.{i}.header", chain
        out["frame-trailer"] = layout.FRAME_TRAILER, end - 8, f".frames.{i}.trailer", chain
        for j, record in enumerate(frame["records"]):
            header, path = record["header"], f".frames.{i}.records.{j}"
            kind, start = Kind(header["kind"]), base + record["offset"]
            name = kind.name.lower()
            if kind == Kind.GROUP:
                name += f"-{CodecId(header['codec']).name.lower()}-{StreamId(header['stream']).name.lower()}"
            out[name] = layout.HEADERS[kind], start, f"{path}.header", BODY_SHAPE
            body = start + header["header_bytes"]
            if kind == Kind.MODEL:
                out["model-layer"] = layout.MODEL_LAYER, body, f"{path}.body", set()
            if kind == Kind.SEQUENCE:
                out["policy"] = layout.POLICY, body, f"{path}.body.policies.0", set()
            if kind == Kind.DICTIONARY:
                out["dictionary-use"] = layout.DICTIONARY_USE, body, f"{path}.body.uses.0", set()
            if kind == Kind.FREED:
                out["freed-run"] = layout.FREED_RUN, body, f"{path}.body.runs.0", set()
    return out


def see(ours, parse):
    """Differences of what is parsed to what the reader makes of the unchanged bytes, or why it does not parse."""
    try:
        return differences(ours, parse())
    except ValidationFailedError as error:
        return [f"not valid: {error}"]
    except (KaitaiStructError, EOFError, ArithmeticError, AttributeError, IndexError, UnicodeDecodeError) as error:
        return [f"not parsed: {type(error).__name__}: {error}"]


def assert_seen(found, path, field, elsewhere):
    """A changed byte is seen, and in its own field unless the field is one that all else hangs on."""
    own = (f"{path}.{field}", f"{path}.{field}.")
    named = any(d == own[0] or d.startswith(own[1]) for d in found)
    inside = ".body" in path and any(d.startswith(path) for d in found)  # bodies bear names of their own
    refused = any(d.startswith("not valid") for d in found)
    assert found
    assert named or inside or refused or field in elsewhere, found


@pytest.mark.parametrize("name", STRUCTS)
def test_a_changed_byte_is_seen(name, parser):
    """Each byte of each struct, one after the other."""
    path, dtype, start, place, elsewhere = example_structs()[name]
    log, index, bodies = path.read_bytes(), sidecar_of(path), SMALL if ".body" in place else frozenset()
    for field in dtype.names[dtype.names.index(KNOWN.get(name, dtype.names[0])) :]:
        kind, offset = dtype.fields[field][:2]
        for at in range(start + offset, start + offset + kind.itemsize):
            data, sidecar = bytearray(log), bytearray(index or b"")
            (sidecar if name.startswith("sidecar") else data)[at] ^= 1
            found = see(
                example_tree(path, bodies),
                functools.partial(parse_log, parser, bytes(data), bytes(sidecar), bodies=bodies),
            )
            assert_seen(found, place, field, elsewhere)


@pytest.mark.parametrize(("name", "step"), [(n, 29 if "sparse" in n else 7) for n in STRUCTS if "group" in n])
def test_a_changed_byte_of_metadata_or_codes_is_seen(name, step, parser):
    """Some bytes of a GROUP record's body, of grouped integers up to where the padding of its tile begins."""
    path, _, start, place, _ = example_structs()[name]
    log, (frame, record) = path.read_bytes(), map(int, re.findall(r"\d+", place))
    ours = example_tree(path)["frames"][frame]["records"][record]
    header = view_struct(np.frombuffer(log, np.uint8), start, layout.GROUP_HEADER)
    codes, end = int(header["code_bytes"]), start + 128 + int(header["body_bytes"])
    codes = codes if "sparse" in name else min(codes, 2 * layout.TILE_ROW)  # 16 tokens of 16 channels
    size = int(header["error_bytes"]) + int(header["metadata_bytes"]) + codes

    def parse(data):
        return parse_body(parser, parser.Record(KaitaiStream(BytesIO(data))))

    assert see(ours["body"], functools.partial(parse, log[start:end])) == []
    for at in range(128, 128 + size, step):
        changed = bytearray(log[start:end])
        changed[at] ^= 0x11
        assert see(ours["body"], functools.partial(parse, bytes(changed))), at


def test_a_changed_byte_of_a_record_with_a_row_bitmap_is_seen(parser):
    """Some bytes of the bitmap, codes and rows of the record of which one row is raw and all others are INT4."""
    data = BOUNDED.read_bytes()
    log, frames = parser.from_bytes(data), example_tree(BOUNDED)["frames"]
    places = [(frame["block"], record) for frame in frames for record in frame["records"]]
    ((block, record),) = [(n, record) for n, record in places if record["body"].get("raw")]
    start = layout.SUPERBLOCKS * layout.SUPERBLOCK_BYTES + block * log.stride + log.spare_area + record["offset"]
    h = record["header"]
    bitmap = start + h["header_bytes"] + h["error_bytes"]
    sections = bitmap + h["bitmap_bytes"]
    others = sections + h["heads"] * (h["metadata_bytes"] + h["code_bytes"])
    end = start + h["header_bytes"] + h["body_bytes"]

    def parse(changed):
        return parse_body(parser, parser.Record(KaitaiStream(BytesIO(changed))))

    assert see(record["body"], functools.partial(parse, data[start:end])) == []
    for at in (*range(bitmap, sections, 13), *range(sections, others, 149), *range(others, end, 307)):
        changed = bytearray(data[start:end])
        changed[at - start] ^= 0x11
        assert see(record["body"], functools.partial(parse, bytes(changed))), at
    bare = bytearray(data[start:bitmap] + bytes(sections - bitmap) + data[sections:others])  # all rows are codes
    np.frombuffer(bare, layout.RECORD_HEADER, 1)["body_bytes"] = len(bare) - h["header_bytes"]
    assert "/types/other_rows/" in see(record["body"], functools.partial(parse, bytes(bare)))[0]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("sparse-group-dictionary-k", {
            "atoms": [0, 33], "low_atoms": [6], "coefficient_bits": [0, 3, 7, 9], "error_bound": [1 << 15],
            "dictionary_atoms": [0, 65537], "flags": [1, 3, 4, 6], "group": [0, 48, 4160], "axis": [0, 1],
            "codec": [1, 2, 6], "transform": [1], "bitmap_bytes": [64],
        }),
        ("bounded-group-dictionary-k", {
            "bitmap_bytes": [1, 128, 1 << 31], "error_bound": [0, 1 << 15], "flags": [1, 5, 7, 8, 14],
        }),
        ("bounded-policy", {"error_bound": [0], "flags": [5, 7, 8, 14]}),
        ("sparse-group-raw-k", {
            "atoms": [1], "dictionary_atoms": [1], "low_atoms": [1], "flags": [2, 4], "axis": [2], "bitmap_bytes": [64],
        }),
        ("sparse-policy", {"atoms": [0, 33], "low_atoms": [7], "flags": [1, 3, 4], "group": [48], "axis": [1]}),
        ("sparse-rows", {
            "atoms": [0, 33], "error_bound": [1 << 15], "flags": [1, 3, 4, 6], "group": [48], "codec": [1, 3],
        }),
        ("sparse-dictionary", {
            "sequence": [1], "atoms": [0, 65537], "chunk": [0, 76], "first_atom": [1], "matrix": [2], "uses": [0],
            "head_dim": [0, 1025], "transform": [1, 2], "mean": [2], "pairs": [1], "grown": [1],
            "parent_hash": [b"\1" * 16],
        }),
        ("grown-dictionary", {"first_atom": [0], "grown": [0, 4], "parent_hash": [bytes(16)], "codebooks": [1]}),
        ("product-codebook", {
            "sequence": [1], "form": [0, 3], "codebook": [1], "first_byte": [1 << 20], "basis_hash": [bytes(16)],
        }),
        ("product-rows", {
            "atoms": [1], "flags": [1, 2, 4], "group": [48], "codec": [1, 3], "dictionary_atoms": [0, 129],
        }),
        ("trellis-rows", {"atoms": [1], "flags": [1, 2, 4], "codec": [1, 8], "dictionary_atoms": [0, 513]}),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)  # fmt: skip
def test_the_parser_refuses_fields_of_dictionaries_that_are_out_of_range(name, fields, parser):
    log, dtype, start = example_structs()[name][:3]
    for field, value in ((f, value) for f, values in fields.items() for value in values):
        data = bytearray(log.read_bytes())
        np.frombuffer(data, dtype, 1, start)[field] = value
        found = see(None, functools.partial(parse_log, parser, bytes(data), bodies=frozenset()))
        assert found[0].startswith("not valid"), (field, value, found)


UNSEEN = {  # what takes other records, or a hash
    "book-long", "book-size", "book-count", "book-matrices", "book-missing", "book-gap", "book-changed", "book-head",
    "product-other-groups", "trellis-bits", "trellis-row-bits", "trellis-other-bytes", "trellis-as-product",
    "trellis-rates",
    "predicted-alone", "predicted-bounded", "predicted-name",
}  # fmt: skip


SHAPED = [case for module in (products, trellises) for case in module.CASES if case.error]


@pytest.mark.parametrize("case", [case for case in SHAPED if case.name not in UNSEEN], ids=lambda case: case.name)
def test_the_parser_refuses_product_and_trellis_codes_that_a_reader_must_reject(case, parser, tmp_path):
    path = tmp_path / "a.kvlog"
    case.make(path)
    found = see(None, functools.partial(read_all, parser, path.read_bytes()))
    assert found[0].startswith("not "), found


@pytest.mark.parametrize("name", ["sparse-no-basis", "index-beyond", "sparse-scale", "set-empty"])
def test_the_parser_refuses_rows_that_a_reader_must_reject(name, parser):
    found = see(None, functools.partial(read_all, parser, (GOLDEN / f"{name}.kvlog").read_bytes()))
    assert found[0].startswith("not "), found


@pytest.mark.parametrize("case", [case for case in bounded.CASES if case.error], ids=lambda case: case.name)
def test_the_parser_refuses_records_of_an_error_bound_that_a_reader_must_reject(case, parser, tmp_path):
    path = tmp_path / "a.kvlog"
    case.make(path)
    found = see(None, functools.partial(read_all, parser, path.read_bytes()))
    assert found[0].startswith("not "), found


# -- the description itself ----------------------------------------------------------------------------------------


def test_references_resolve():
    for target in re.findall(r"formats/[\w.-]+(?:#[\w-]+)?", SOURCE.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        text = (ROOT / file).read_text(encoding="utf-8")
        headings = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)]
        assert not anchor or anchor in headings, target


def test_kinds_of_rows_are_those_of_the_code(parser):
    assert {m.name: int(m) for m in parser.RowKind} == {"codes": CODES, "int4": INT4, "raw": RAW}


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        (layout.FrameType, "FrameType"),
        (layout.Kind, "RecordKind"),
        (layout.StreamId, "StreamId"),
        (layout.CodecId, "CodecId"),
        (layout.CodebookForm, "CodebookForm"),
        (layout.Axis, "Axis"),
        (layout.Lane, "Lane"),
        (layout.DropScope, "DropScope"),
        (layout.RetireCause, "RetireCause"),
        (layout.Transform, "Transform"),
        (layout.DtypeId, "DtypeId"),
        (layout.RopeLayout, "RopeLayout"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_enums_are_those_of_the_code(ours, name, parser):
    assert {m.name: int(m) for m in getattr(parser, name)} == {m.name.lower(): int(m) for m in ours}
