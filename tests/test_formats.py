"""What formats/ says is what the code does: tables against dtypes, examples against bytes, rules against code."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from kvcodec import errors, layout
from kvcodec.codecs import codec_for
from kvcodec.codecs.planes import unpack_rows
from kvcodec.codecs.rows import GroupedRows
from kvcodec.codecs.sections import raw_sections
from kvcodec.codecs.sizes import head_sections, step_row_bytes
from kvcodec.flash.checksum import crc32c
from kvcodec.flash.device import Device
from kvcodec.flash.superblock import Superblock
from kvcodec.layout import DtypeId, Kind, StreamId
from kvcodec.log import frame as frames
from kvcodec.log.reader import Log
from kvcodec.log.sidecar import load_sidecar
from kvcodec.sparse_spec import SparseCodes
from kvcodec.spec import CodecSpec
from kvcodec.store.index import LogIndex
from kvcodec.store.model import read_model
from kvcodec.store.policy import read_sequence
from tests.rotation_twin import turn_of
from tools.golden.example import example_model, example_records, example_rows

FORMATS = Path(__file__).resolve().parent.parent / "formats"
GOLDEN = Path(__file__).resolve().parent / "golden"
DOCUMENTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(FORMATS.glob("*.md"))}
STRUCTS = {name: value for name, value in vars(layout).items() if isinstance(value, np.dtype)}
ENUMS = [
    "FrameType", "Kind", "StreamId", "CodecId", "Axis", "GroupFlag", "Transform", "DtypeId", "RopeLayout", "KvdictFlag",
    "CodebookForm", "Lane", "DropScope", "RetireCause",
]  # fmt: skip


def rows_after(marker, text):
    """Cells of the table that follows a marker line, without its head."""
    lines = text[text.index(marker) + len(marker) :].splitlines()[1:]
    table = []
    for line in lines:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    assert len(table) > 2, marker
    return table[2:]


def find_marked(kind):
    """(name, document) of each marker of a kind."""
    return [(name, doc) for doc, text in DOCUMENTS.items() for name in re.findall(rf"<!-- {kind}: (\w+) -->", text)]


def flatten(dtype):
    """(offset, size, type, name) of each field."""
    names = {"u1": "u8", "u2": "u16", "u4": "u32", "u8": "u64", "f8": "f64"}
    out = []
    for name in dtype.names:
        field, offset = dtype.fields[name][:2]
        kind = {"S": "text", "V": "bytes"}.get(field.kind) or names[field.str[1:]]
        assert field.str[0] in "<|"
        out.append((offset, field.itemsize, kind, name))
    return out


def documented(name):
    doc = dict(find_marked("struct"))[name]
    out = []
    for offset, size, kind, field, *_ in rows_after(f"<!-- struct: {name} -->", DOCUMENTS[doc]):
        if kind == "RECORD_HEADER":
            assert (int(offset), int(size)) == (0, layout.RECORD_HEADER.itemsize)
            out += documented(kind)
        else:
            out.append((int(offset), int(size), kind, field))
    return out


# -- tables --------------------------------------------------------------------------------------------------------


def test_every_struct_is_documented_exactly_once():
    assert sorted(name for name, _ in find_marked("struct")) == sorted(STRUCTS)


@pytest.mark.parametrize("name", STRUCTS)
def test_a_table_is_the_struct_without_holes(name):
    table = documented(name)
    assert table == flatten(STRUCTS[name])
    end = 0
    for offset, size, _, field in table:
        assert offset == end, field
        end += size
    assert end == STRUCTS[name].itemsize


def test_every_enum_is_documented_exactly_once():
    assert sorted(name for name, _ in find_marked("enum")) == sorted(ENUMS)


@pytest.mark.parametrize("name", ENUMS)
def test_a_table_of_values_is_the_enum(name):
    doc = dict(find_marked("enum"))[name]
    table = [(int(row[0]), row[1]) for row in rows_after(f"<!-- enum: {name} -->", DOCUMENTS[doc])]
    assert table == [(int(m), n) for n, m in getattr(layout, name).__members__.items()]


def test_constants_in_the_prose_are_the_code():
    frame, device, sidecar = (DOCUMENTS[f"{n}.md"] for n in ("frame", "device", "sidecar"))
    assert f"0x{layout.FRAME_MAGIC:08X}" in frame
    assert "0x9E3779B1" in frame
    assert layout.frame_magic(3) == (layout.FRAME_MAGIC + 3 * 0x9E3779B1) % 2**32
    assert f"0x{layout.BLOCK_MAGIC:08X}" in device
    assert f"0x{layout.BYTE_ORDER:08X}" in device
    assert layout.SUPERBLOCK_MAGIC.hex(" ").upper() in device
    assert layout.SIDECAR_MAGIC.hex(" ").upper() in sidecar
    assert f"0x{layout.NO_FRAME:04X}" in device


def test_checksum_has_the_documented_check_value():
    text, value = re.search(r'```check crc32c\n"(\w+)" (0x\w+)\n```', DOCUMENTS["README.md"]).groups()
    assert crc32c(text.encode()) == int(value, 16)
    assert crc32c(b"b", crc32c(b"a")) == crc32c(b"ab")


def test_sizes_of_raw_heads():
    for tokens, dim, code_bytes in rows_after("<!-- sizes: raw -->", DOCUMENTS["raw.md"]):
        assert raw_sections(int(tokens), int(dim)) == (0, 0, int(code_bytes))


def test_coded_rows():
    text = DOCUMENTS["rows.md"]
    for spec, dim, size in rows_after("<!-- sizes: rows -->", text):
        assert GroupedRows(CodecSpec.parse(spec), StreamId.V).row_bytes(int(dim)) == int(size)
    rows = np.zeros((1, 1, 16), ml_dtypes.bfloat16)
    rows[0, 0, :4] = [-1, -0.2, 0.3, 1]
    codec = GroupedRows(CodecSpec.parse("int4/token/g16/sym"), StreamId.V)
    coded = codec.encode(rows.view(np.uint16), DtypeId.BFLOAT16)
    assert re.search(r"```bytes row\n(.*?)\n```", text).group(1) == coded.tobytes().hex(" ")


def test_sizes_of_rows_over_a_dictionary():
    for text, size, row in rows_after("<!-- sizes: dictionary -->", DOCUMENTS["dictionary.md"]):
        spec = CodecSpec.parse(text).bound_to(int(size), b"x" * 16)
        assert step_row_bytes(spec, 128) == int(row) == 2 + head_sections(spec, StreamId.K, 64, 128).codes // 64


def test_documented_set_is_that_of_the_codec():
    text = re.search(r"```set n=(\d+) numbers=(\S+)\n(.*?)\n```", DOCUMENTS["dictionary.md"])
    size, numbers = int(text.group(1)), [int(n) for n in text.group(2).split(",")]
    low = (size // len(numbers)).bit_length() - 1
    value = sum((n % 2**low) << (low * j) for j, n in enumerate(numbers))
    value |= sum(1 << (low * len(numbers) + (n >> low) + j) for j, n in enumerate(numbers))
    codes = SparseCodes(len(numbers), 8, sets=True, size=size)
    packed = np.frombuffer(value.to_bytes(codes.index_bytes, "little"), np.uint8)
    assert text.group(3) == packed.tobytes().hex(" ")
    row = np.concatenate([np.zeros(2, np.uint8), packed, np.ones(len(numbers), np.uint8)])[None]
    assert unpack_rows(row, codes).indices[0].tolist() == numbers


def test_documented_turn_is_that_of_the_twin():
    step, cosine, sine = re.search(
        r"```turn position=1000003 step=(\d+)\ncos=(\S+) sin=(\S+)\n```", DOCUMENTS["dictionary.md"]
    ).groups()
    assert turn_of(1000003, int(step)) == (int(cosine), int(sine))


def test_sizes_of_grouped_heads():
    for stream, tokens, dim, spec, metadata, codes in rows_after(
        "<!-- sizes: grouped -->", DOCUMENTS["grouped-integers.md"]
    ):
        sections = codec_for(spec.strip("`"), StreamId[stream.upper()]).sections(int(tokens), int(dim))
        assert (sections.metadata, sections.codes) == (int(metadata), int(codes)), (stream, tokens, dim, spec)


# -- numerics ------------------------------------------------------------------------------------------------------


def documented_code(name):
    """The functions of a code block."""
    source = re.search(rf"```python {name}\n(.*?)```", DOCUMENTS["grouped-integers.md"], re.S).group(1)
    words = {
        "f32": np.float32,
        "bits_of": lambda x: int(np.float32(x).view(np.uint32)),
        "float_of": lambda b: np.uint32(b).view(np.float32),
        "round_even": lambda x: np.rint(x).astype(np.int64),
    }
    exec(compile(source, name, "exec"), words)
    return words[name.replace("-", "_")]


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_documented_numerics_are_the_codec(symmetric, half):
    encode, decode = documented_code("encode-group"), documented_code("decode-group")
    rng = np.random.default_rng(7)
    form, dtype = (np.float16, DtypeId.FLOAT16) if half else (ml_dtypes.bfloat16, DtypeId.BFLOAT16)
    spec = "int4/token/g16" + ("/sym" if symmetric else "")
    codec = codec_for(spec, StreamId.K)
    scales = 2.0 ** rng.integers(-14, 15, (48, 1))
    x = (scales * (rng.standard_normal((48, 16)) + rng.choice([0, 0, 3, 900], (48, 1)))).astype(np.float32)
    x[:3] = [[0], [-1.5], [40000]]
    rows = np.clip(x, -60000, 60000).astype(form)
    encoded = codec.encode(rows.view(np.uint16)[:, None], dtype, 48)
    body, sections = encoded.body[0, 0], codec.sections(48, 16)
    stored = body[: sections.scales].view(np.uint16)
    zeros = body[sections.scales : sections.metadata].view(np.int16)
    decoded = codec.decode(encoded.body, 48, 16, dtype, as_float32=True)[:, 0]
    greatest = np.float32(np.finfo(np.float32).max)
    for t in range(48):
        scale, zero, codes = encode(rows[t].astype(np.float32), symmetric)
        assert int(np.float32(scale).view(np.uint32)) >> 16 == stored[t]
        assert symmetric or zero == zeros[t]
        assert codes.min() >= int(symmetric)
        assert codes.max() <= 15
        assert np.array_equal(decode(scale, zero, codes.astype(np.float32), greatest), decoded[t])
        for c, code in enumerate(codes):
            at = sections.metadata + ((t // 16 * 2 + c // 8) * 16 + t % 16) * 4 + c % 4
            assert body[at] >> (4 if c % 8 >= 4 else 0) & 15 == code


def test_documented_place_of_a_code_in_a_channel_lane_tile():
    codec = codec_for("int4/token/g16", StreamId.V)
    rows = (np.arange(80 * 48) * 37 % 101).astype(ml_dtypes.bfloat16).reshape(80, 1, 48)
    body = codec.encode(rows.view(np.uint16), DtypeId.BFLOAT16, 80).body[0, 0]
    encode = documented_code("encode-group")
    start = codec.sections(80, 48).metadata
    for t in range(80):
        codes = np.concatenate([encode(rows[t, 0, c : c + 16].astype(np.float32), False)[2] for c in (0, 16, 32)])
        for c, code in enumerate(codes):
            at = start + (((t // 64 * 3 + c // 16) * 8 + t % 64 // 8) * 16 + c % 16) * 4 + t % 4
            assert body[at] >> (4 if t % 8 >= 4 else 0) & 15 == code


# -- examples ------------------------------------------------------------------------------------------------------


def examples():
    """{name: (file, offset, bytes)} of the hex blocks of all documents."""
    out = {}
    pattern = r"```hex (\S+) file=(\S+) at=(\d+) size=(\d+)\n(.*?)\n```"
    for text in DOCUMENTS.values():
        for name, file, at, size, dump in re.findall(pattern, text, re.S):
            assert name not in out
            data, end = bytearray(int(size)), 0
            for line in dump.splitlines():
                address, digits = re.match(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  |$)", line).groups()
                piece = bytes.fromhex(digits)
                assert int(address, 16) >= end, line
                end = int(address, 16) + len(piece)
                data[int(address, 16) : end] = piece
            assert len(data) == int(size)
            out[name] = (file, int(at), bytes(data))
    return out


EXAMPLES = examples()
NAMES = [
    "superblock", "spare-slot", "block-header", "frame-step", "model", "sequence", "drop",
    "group-raw", "group-k", "group-v", "sidecar",
]  # fmt: skip


def test_every_example_is_there():
    assert sorted(EXAMPLES) == sorted(NAMES)
    assert sum(text.count("```hex") for text in DOCUMENTS.values()) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_what_the_golden_file_holds(name):
    file, at, data = EXAMPLES[name]
    assert (GOLDEN / file).read_bytes()[at : at + len(data)] == data


@pytest.fixture
def device():
    with_device = Device.open(GOLDEN / "worked-example.kvlog")
    yield with_device
    with_device.close()


def struct_of(name, dtype, at=0):
    return np.frombuffer(EXAMPLES[name][2], dtype, 1, at)[0]


def test_superblock_example(device):
    sb = Superblock(bytes(range(16)), device.geometry, device.blocks)
    assert sb.encode()[: len(EXAMPLES["superblock"][2])] == EXAMPLES["superblock"][2]
    parsed = struct_of("superblock", layout.SUPERBLOCK)
    assert (parsed["page_bytes"], parsed["unit_bytes"], parsed["block_bytes"]) == (512, 64, 8192)


def test_spare_slot_example(device):
    slot = struct_of("spare-slot", layout.SPARE_SLOT)
    unit = device.data(0, 64, 64).tobytes()
    place = bytes(range(16)) + (1).to_bytes(8, "little")
    assert slot["crc"] == crc32c(slot.tobytes()[4:], crc32c(unit, crc32c(place)))
    assert (slot["first_frame"], slot["lane"], slot["generation"]) == (0, 0, 1)
    device.check_unit(0, 1)


def test_block_header_example(device):
    header = struct_of("block-header", layout.BLOCK_HEADER)
    assert header["crc"] == crc32c(header.tobytes()[:-4])
    assert (header["magic"], header["block"], header["generation"]) == (layout.BLOCK_MAGIC, 0, 1)
    assert device.block(0).before is not None


def test_frame_example_is_parsed_and_built_again(device):
    _, at, data = EXAMPLES["frame-step"]
    offset = at - device.file_offset(0)
    whole = np.frombuffer(bytes(offset) + data, np.uint8)
    read = frames.read_frame(whole, offset, generation=1, uuid=device.uuid, base=0)
    [(place, header)] = read.records
    record = example_records()[3]
    sealed = frames.seal_record(record, int(header["lsn"]))
    assert place == offset + layout.FRAME_HEADER.itemsize
    assert header.tobytes() == sealed
    built, _, crc = frames.build_frame(
        [(sealed, bytes(record.body))], read.id, offset=offset, generation=1, uuid=device.uuid
    )
    assert bytes(built) == data
    assert crc == read.crc == struct_of("frame-step", layout.FRAME_TRAILER, len(data) - 8)["crc"]


@pytest.mark.parametrize(("name", "number"), [("group-k", 0), ("group-v", 1), ("group-raw", 2), ("drop", 4)])
def test_record_example_is_built_again(name, number):
    record = example_records()[number]
    data = EXAMPLES[name][2]
    lsn = int(struct_of(name, layout.RECORD_HEADER)["lsn"])
    assert frames.seal_record(record, lsn) + bytes(record.body) == data
    assert frames.read_record_header(np.frombuffer(data, np.uint8), 0, 0)["lsn"] == lsn


@pytest.mark.parametrize(
    ("name", "spec", "row"), [("group-k", "int4/channel/g16", 0), ("group-v", "int4/token/g16/sym", 1)]
)
def test_group_example_decodes_to_the_rows(name, spec, row):
    rows = example_rows()[row]
    data = EXAMPLES[name][2]
    header = struct_of(name, layout.GROUP_HEADER)
    codec = codec_for(spec, StreamId(int(header["stream"])))
    body = np.frombuffer(data, np.uint8)[128 + int(header["error_bytes"]) :].reshape(1, -1)
    decoded = codec.decode(body, 16, 16, DtypeId.BFLOAT16, as_float32=True)
    step = np.float32(1.1484375 if row else 1.0078125)
    x = rows.view(ml_dtypes.bfloat16).astype(np.float32)
    assert np.abs(decoded - x).max() <= step / 2 * 1.001
    figure = int.from_bytes(data[128:130], "little")
    relative = np.sqrt(((decoded - x).astype(np.float64) ** 2).sum() / (x.astype(np.float64) ** 2).sum())
    assert figure == np.rint(32768 * relative)


def test_raw_example_holds_the_rows():
    data = EXAMPLES["group-raw"][2]
    assert data[192 : 192 + 64] == example_rows()[0][:2].tobytes()


def test_model_and_sequence_examples():
    data = np.frombuffer(EXAMPLES["model"][2], np.uint8)
    header = frames.read_record_header(data, 0, 0)
    model = read_model(header, data[96:], 0)
    assert model == example_model()
    record = model.record()
    assert frames.seal_record(record, int(header["lsn"])) + bytes(record.body) == data.tobytes()
    data = np.frombuffer(EXAMPLES["sequence"][2], np.uint8)
    header = frames.read_record_header(data, 0, 0)
    info = read_sequence(header, data[96:], 0)
    assert (info.id, info.name, info.model_hash) == (1, "demo", model.hash)
    record = info.record()
    assert frames.seal_record(record, int(header["lsn"])) + bytes(record.body) == data.tobytes()


def test_sidecar_example(device):
    path = GOLDEN / "worked-example.kvlog"
    head = struct_of("sidecar", layout.SIDECAR)
    lane = struct_of("sidecar", layout.SIDECAR_LANE, layout.SIDECAR.itemsize)
    lanes = head["lanes"] * layout.SIDECAR_LANE.itemsize
    entry = struct_of("sidecar", layout.SIDECAR_ENTRY, layout.SIDECAR.itemsize + int(lanes))
    walked, resumed = Log(device), Log(device)
    records = walked.poll()
    assert head["records"] == len(records)
    assert (int(entry["generation"]), int(entry["block"]), int(entry["offset"])) == records[0].place
    located = load_sidecar(path, resumed, resume=True)
    assert [(r.place, r.header.tobytes()) for r in located] == [(r.place, r.header.tobytes()) for r in records]
    assert resumed.cursor.number == walked.cursor.number == lane["number"] == lane["durable"]
    assert resumed.poll() == []


def test_the_worked_example_has_all_kinds(device):
    log = Log(device)
    records = log.poll()
    index = LogIndex(log)
    index.enter(records)
    rare = {Kind.DICTIONARY, Kind.ROWS, Kind.CODEBOOK, Kind.FREED, Kind.RETIRED}
    assert {int(r.header["kind"]) for r in records} == set(Kind) - rare


# -- documents -----------------------------------------------------------------------------------------------------


def slug(heading):
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("name", sorted(set(DOCUMENTS) - {"errata.md"}))
def test_a_document_names_its_version_and_date(name):
    lines = DOCUMENTS[name].splitlines()
    assert re.fullmatch(r"# .*, version 1", lines[0])
    assert lines[2].startswith("Version 1, 2026-11-30.")
    assert DOCUMENTS[name].index("```") < DOCUMENTS[name].index("## Scope")
    for heading in ("## Scope", "## Change log"):
        assert heading in DOCUMENTS[name]
    if name != "README.md":
        assert "## Conformance" in DOCUMENTS[name]
        assert "## A reader MUST reject" in DOCUMENTS[name]
        assert f"({name})" in DOCUMENTS["README.md"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_resolve(name):
    prose = re.sub(r"```.*?```", "", DOCUMENTS[name], flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        file, _, anchor = target.partition("#")
        file = file or name
        assert file in DOCUMENTS, target
        headings = [slug(h) for h in re.findall(r"^#+ (.*)$", DOCUMENTS[file], re.M)]
        assert not anchor or anchor in headings, target


def test_errors_are_those_of_the_code_and_listed():
    listed = {row[0].strip("`") for row in rows_after("<!-- errors -->", DOCUMENTS["README.md"])}
    for name, text in DOCUMENTS.items():
        for word in re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)`", text):
            assert word in listed, (name, word)
    for word in listed:
        assert issubclass(getattr(errors, word), errors.FormatError)


def test_no_document_is_wider_than_the_code():
    for name, text in DOCUMENTS.items():
        for line in text.splitlines():
            assert len(line) <= 120 or line.startswith("|"), (name, line)
