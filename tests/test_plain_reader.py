"""formats/reader.py, which shares no code with the package, reads every golden log to the same bits, or rejects it."""

import ast
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import kvcodec
from formats import reader
from kvcodec import layout
from kvcodec.errors import KvcodecError
from tools.golden.catalogue import REJECTED
from tools.golden.index import make_case

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
INDEX = json.loads((GOLDEN / "index.json").read_text(encoding="utf-8"))
GOOD = [entry["name"] for entry in INDEX if "error" not in entry]
BAD = [entry for entry in INDEX if "error" in entry]
SKIPPED = "retired-"  # names of logs whose only fault is in records that it skips
FORGED = [case for case in REJECTED if not (case.frozen or case.name.startswith(SKIPPED))]
CLEANED, EXAMPLE, TORN = (GOLDEN / f"{name}.kvlog" for name in ("cleaned", "worked-example", "torn-tail"))


def rows_of(own, layer, stream):
    """float32 numbers and bits (tokens, heads, dim) of a layer, without the tokens that were evicted, or are hidden."""
    gone = [*own.evicted(layer), *((token, token + 1) for token in own.hidden(layer))]
    tokens = [t for t in own.held(layer) if not any(first <= t < end for first, end in gone)]
    shape = len(tokens), stream.heads, stream.dim
    rows = [own.read(layer, stream.id, token) for token in tokens]
    numbers = np.array([[row.numbers for row in heads] for heads in rows], np.float64).reshape(shape)
    bits = np.array([[row.bits for row in heads] for heads in rows], np.uint16).reshape(shape)
    assert np.array_equal(numbers.astype(np.float32), numbers)
    return numbers.astype(np.float32), bits


def read_plainly(path, mode=reader.TORN_TAIL):
    """Of each sequence its length, and of each layer its tokens, those evicted, and its streams' rows as bytes."""
    out = {}
    for name, own in reader.Log(path, mode).sequences.items():
        layers = [n for n, each in enumerate(own.model.layers) if each.streams]
        out[name] = own.length, {
            n: (own.held(n), own.evicted(n), own.positions(n), [
                tuple(part.tobytes() for part in rows_of(own, n, stream)) for stream in own.model.layers[n].streams
            ]) for n in layers
        }  # fmt: skip
    return out


def positions_of(own, layer):
    """Of each token that is a row of a summary its position, and from which one it is seen."""
    told = [(one.first, one.positions.tolist(), one.visible_from.tolist()) for one in own.summaries(layer)]
    return {first + n: pair for first, *both in told for n, pair in enumerate(zip(*both, strict=True))}


def read_packaged(path, mode="torn-tail"):
    """The same by the package."""
    out = {}
    with kvcodec.open(path, recovery=mode) as store:
        for own in store:
            layers = [n for n, each in enumerate(own._index.model.layers) if each.streams]
            out[own.name] = len(own), {
                n: (own.held(n), own.evicted(n), positions_of(own, n), [
                    (wide.tobytes(), narrow.tobytes())
                    for wide, narrow in zip(own.read(n, dtype=np.float32), own.read(n), strict=True)
                ]) for n in layers
            }  # fmt: skip
    return out


@pytest.mark.parametrize("name", GOOD)
def test_it_reads_what_the_package_reads(name):
    assert read_plainly(GOLDEN / name) == read_packaged(GOLDEN / name)


@pytest.mark.parametrize("entry", BAD, ids=lambda entry: entry["name"])
def test_it_rejects_by_name_what_the_package_rejects(entry):
    with pytest.raises(reader.LogError) as raised:
        read_plainly(GOLDEN / entry["name"])
    assert type(raised.value).__name__ == entry["error"]


@pytest.mark.parametrize("case", FORGED, ids=lambda case: case.name)
def test_it_rejects_by_name_what_a_reader_must_reject(case, tmp_path):
    with pytest.raises(reader.LogError) as raised:
        read_plainly(make_case(case, tmp_path))
    assert type(raised.value).__name__ == case.error


@pytest.mark.parametrize("mode", [reader.ABSOLUTE, reader.POINT_IN_TIME])
@pytest.mark.parametrize("entry", [entry for entry in INDEX if "modes" in entry], ids=lambda entry: entry["name"])
def test_recovery_modes_do_as_recorded(entry, mode):
    try:
        found = {name: own.length for name, own in reader.Log(GOLDEN / entry["name"], mode).sequences.items()}
    except reader.LogError as error:
        found = type(error).__name__
    assert found == entry["modes"][mode]


def outcome(read, path, errors):
    try:
        return read(path)
    except errors as error:
        return type(error).__name__


@pytest.mark.parametrize("path", [CLEANED, TORN], ids=lambda path: path.stem)
def test_of_damaged_logs_it_makes_what_the_package_makes(path, tmp_path):
    """Of a log that ends somewhere, one of which a bit in the data is another, and one of which units are lost."""
    data, damaged = path.read_bytes(), tmp_path / "a.kvlog"
    device = reader.Device(path)
    blocks = [block for lane in (reader.FRESH, reader.KEPT) for block in device.blocks(lane)]
    used = [at for block in blocks for at in range(block.at, block.at + len(block.data)) if data[at]]
    changes = [data[:size] for size in range(8192, len(data), len(data) // 12)]
    for at in used[:: len(used) // 24]:
        unit = at - at % device.unit
        changes += [
            data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :],
            data[:unit] + bytes(device.unit) + data[unit + device.unit :],
        ]
    seen = set()
    for changed in changes:
        damaged.write_bytes(changed)
        plain = outcome(read_plainly, damaged, reader.LogError)
        assert plain == outcome(read_packaged, damaged, KvcodecError)
        seen.add(plain if isinstance(plain, str) else len(plain))
    assert len(seen) > 1


def test_it_stands_on_the_standard_library_alone():
    tree = ast.parse(Path(reader.__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert {module.split(".")[0] for module in modules} <= sys.stdlib_module_names


LAYOUTS = {
    "SUPERBLOCK": reader.SUPERBLOCK, "SPARE_SLOT": reader.SPARE_SLOT, "BLOCK_HEADER": reader.BLOCK_HEADER,
    "FRAME_HEADER": reader.FRAME_HEADER, "FRAME_TRAILER": reader.FRAME_TRAILER, "MODEL_LAYER": reader.MODEL_LAYER,
    "POLICY": reader.POLICY, "FREED_RUN": reader.FREED_RUN,
    "RETIRED_BLOCK": reader.RETIRED_BLOCK, "POSITION": reader.POSITION, "SIDECAR": reader.SIDECAR,
    "SIDECAR_LANE": reader.SIDECAR_LANE, "PRODUCT": reader.Product.HEAD, "TRELLIS": reader.Trellis.HEAD,
}  # fmt: skip


def test_structs_are_those_of_the_code():
    """Names and sizes of fields: where they have to be is what the other tests show."""
    pairs = [(getattr(layout, name), own) for name, own in LAYOUTS.items()]
    pairs += [(dtype, reader.HEADERS[int(kind)]) for kind, dtype in layout.HEADERS.items()]
    for dtype, own in pairs:
        assert (list(dtype.names), dtype.itemsize) == (own.names, own.size)


def test_the_command_line_lists_sequences_and_prints_rows(capsys):
    assert reader.main([str(CLEANED)]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        "first: 40 tokens, 1 layers, bfloat16",
        "fourth: 80 tokens, 1 layers, bfloat16",
        "  layer 0: tokens 10 to 59 were evicted",
    ]
    assert reader.main([str(EXAMPLE), "--sequence", "demo", "--tokens", "1:2"]) == 0
    keys, values = (line.split() for line in capsys.readouterr().out.splitlines())
    assert (keys[:3], values[:3]) == (["1", "k", "0"], ["1", "v", "0"])
    with kvcodec.open(EXAMPLE) as store:
        k, v = store.sequence("demo").read(0, [1], dtype=np.float32)
    assert np.array_equal(np.array(keys[3:], np.float32), k[0, 0])
    assert np.array_equal(np.array(values[3:], np.float32), v[0, 0])
    assert reader.main([str(GOLDEN / "wrong-magic.kvlog")]) == 1
    assert capsys.readouterr().err.startswith("BadMagic: ")
