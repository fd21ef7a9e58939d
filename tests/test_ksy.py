"""formats/kvlog.ksy describes the same bytes: a parser made from it agrees with the reader on every golden log.

`make ksy` installs the compiler; without it these tests fail.
"""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kaitaistruct import KaitaiStructError, ValidationFailedError

from kvcodec import layout
from kvcodec.codecs.rows import GroupedRows
from kvcodec.flash.device import Device
from kvcodec.layout import Axis, CodecId, Kind, StreamId
from kvcodec.spec import GROUPED_CODECS, CodecSpec
from tests.ksy_rows import coded_rows, decode_row, read_all, records
from tests.ksy_trees import Witness, differences, in_use, parse_log, read_log, view_struct, walk

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "formats" / "kvlog.ksy"
MODULES = ROOT / ".ksy" / "node_modules"
GOLDEN = ROOT / "tests" / "golden"
INDEX = json.loads((GOLDEN / "index.json").read_text(encoding="utf-8"))
GOOD = [entry for entry in INDEX if "error" not in entry]
EXAMPLE = GOLDEN / "worked-example.kvlog"


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
    assert kinds >= set(layout.HEADERS) - {Kind.MODEL}  # `records` keeps MODEL to itself
    assert {(CodecId.RAW, lane, Axis.NONE, False) for lane in both} <= groups
    assert {(c, lane, a) for c in grouped for lane in both for a in (1, 2)} <= {g[:3] for g in groups}
    assert {(c, lane, s) for c in grouped for lane in both for s in both} <= {(g[0], g[1], g[3]) for g in groups}
    assert {(c, s) for c in grouped for s in both} | {(CodecId.RAW, False)} <= rows


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


# -- they disagree where a byte is another -------------------------------------------------------------------------


BODY_SHAPE = {
    "kind", "header_bytes", "body_bytes", "layers", "name_bytes", "policies", "codec", "axis", "flags", "group",
    "heads", "head_dim", "tokens", "metadata_bytes", "code_bytes",
}  # with another one the body cannot be parsed  # fmt: skip
STRUCTS = [
    "superblock-0", "superblock-1", "spare-slot", "block-header", "frame-header", "frame-trailer", "model",
    "model-layer", "sequence", "policy", "group-int4-k", "group-int4-v", "group-raw-k", "step", "drop", "sidecar",
    "sidecar-entry",
]  # fmt: skip


@functools.cache
def example_tree(bodies):
    """What the reader makes of the worked example, with or without bodies of records."""
    tree, _ = read_log(EXAMPLE)
    if bodies:
        return tree
    return tree | {"frames": [f | {"records": [r | {"body": None} for r in f["records"]]} for f in tree["frames"]]}


@functools.cache
def example_structs():
    """name: (dtype, offset, path in the tree, fields whose change is seen elsewhere) of structs of the example."""
    tree = example_tree(True)
    first_block = layout.SUPERBLOCKS * layout.SUPERBLOCK_BYTES
    base = first_block + layout.FILE_ALIGNMENT  # behind 128 slots
    chain = {"magic", "length", "number", "previous"}
    out = {
        "superblock-0": (layout.SUPERBLOCK, 0, ".superblocks.0", {"unit_bytes", "block_bytes"}),
        "superblock-1": (layout.SUPERBLOCK, layout.SUPERBLOCK_BYTES, ".superblocks.1", set()),
        "spare-slot": (layout.SPARE_SLOT, first_block + layout.SPARE_BYTES, ".blocks.0.slots.1", set()),
        "block-header": (layout.BLOCK_HEADER, base, ".blocks.0.header", set()),
        "sidecar": (layout.SIDECAR, 0, ".sidecar.header", {"records"}),
        "sidecar-entry": (layout.SIDECAR_ENTRY, layout.SIDECAR.itemsize, ".sidecar.entries.0", set()),
    }
    for i, frame in enumerate(tree["frames"]):
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
    return out


def see(parser, data, sidecar, *, bodies):
    """Differences of changed bytes to what the reader makes of the unchanged ones, or why they do not parse."""
    try:
        return differences(example_tree(bodies), parse_log(parser, bytes(data), bytes(sidecar), bodies=bodies))
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
    dtype, start, path, elsewhere = example_structs()[name]
    log, index = EXAMPLE.read_bytes(), sidecar_of(EXAMPLE)
    for field in dtype.names:
        kind, offset = dtype.fields[field][:2]
        for at in range(start + offset, start + offset + kind.itemsize):
            data, sidecar = bytearray(log), bytearray(index)
            (sidecar if name.startswith("sidecar") else data)[at] ^= 1
            assert_seen(see(parser, data, sidecar, bodies=".body" in path), path, field, elsewhere)


@pytest.mark.parametrize("name", [n for n in STRUCTS if n.startswith("group")])
def test_a_changed_byte_of_metadata_or_codes_is_seen(name, parser):
    """Every seventh byte of a GROUP record's body, up to where the padding of its tile begins."""
    log, start = EXAMPLE.read_bytes(), example_structs()[name][1]
    header = view_struct(np.frombuffer(log, np.uint8), start, layout.GROUP_HEADER)
    codes = min(int(header["code_bytes"]), 2 * layout.TILE_ROW)  # 16 tokens of 16 channels
    size = int(header["error_bytes"]) + int(header["metadata_bytes"]) + codes
    for at in range(start + 128, start + 128 + size, 7):
        changed = bytearray(log)
        changed[at] ^= 0x11
        assert see(parser, changed, sidecar_of(EXAMPLE), bodies=True), at


# -- the description itself ----------------------------------------------------------------------------------------


def test_references_resolve():
    for target in re.findall(r"formats/[\w.-]+(?:#[\w-]+)?", SOURCE.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        text = (ROOT / file).read_text(encoding="utf-8")
        headings = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)]
        assert not anchor or anchor in headings, target


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        (layout.FrameType, "FrameType"),
        (layout.Kind, "RecordKind"),
        (layout.StreamId, "StreamId"),
        (layout.CodecId, "CodecId"),
        (layout.Axis, "Axis"),
        (layout.Transform, "Transform"),
        (layout.DtypeId, "DtypeId"),
        (layout.RopeLayout, "RopeLayout"),
    ],
)
def test_enums_are_those_of_the_code(ours, name, parser):
    assert {m.name: int(m) for m in getattr(parser, name)} == {m.name.lower(): int(m) for m in ours}
