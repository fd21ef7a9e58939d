"""Importers of dumps: a mutated safetensors, npz or npy file is opened and read whole, and its model is told by it."""

from __future__ import annotations

import contextlib
import re
import struct
import tempfile
import zlib
from pathlib import Path

from kvcodec.bulk.dump_model import dump_model
from kvcodec.bulk.selection import DumpPart
from kvcodec.dumps import open_dump
from kvcodec.dumps.dump import Dump
from kvcodec.dumps.identity import fingerprint_file
from kvcodec.errors import KvcodecError
from tests.fuzz.choices import Choices
from tests.fuzz.dump_seeds import dump_seeds
from tests.fuzz.edits import change_bytes

_WORD = re.compile(rb'-?[0-9]+|"[^"]*"|[\[\]{}(),:]|True|False|true|null')
_WORDS = (
    b"0", b"1", b"-1", b"2", b"4", b"40", b"80", b"160", b"65536", b"2147483648", b"9223372036854775807",
    b"18446744073709551615", b"1e400", b"1.5", b"NaN", b"null", b"true", b"[]", b"{}", b"[0]", b'""', b'"k.0"',
    b'"v.0"', b'"q.0"', b'"q_pos"', b'"F32"', b'"BF16"', b'"F8_E4M3"', b'"I64"', b'"C64"', b'"dtype"',
    b'"__metadata__"',
    b'"0"', b'"nan"', b'"-1"', b'"1e999"', b'"\\ud800"', b'"k.0.scale"', b'"kv"', b"'<f2'", b"'>f4'", b"'|O'", b"'|V2'",
    b"(5, 2, 4)", b"()", b"True", b",", b"]", b"}",
)  # fmt: skip
_MOST_EDITS = 6
_LOCAL, _CENTRAL, _END = b"PK\3\4", b"PK\1\2", b"PK\5\6"


def mutate(data: bytes) -> tuple[str, bytes, Choices]:
    """Extension and bytes of a mutated dump, and choices that are left."""
    choices = Choices(data)
    suffix, seed = choices.pick(dump_seeds())
    content = bytearray(seed)
    flags = choices.number()
    for _ in range(_MOST_EDITS):
        _edit(content, choices)
        if not choices.left:
            break
    if flags & 3 and content[:4] == _LOCAL:
        _repair_zip(content)
    elif flags & 3 and seed[8:9] == b"{":
        end = content.rfind(b"}}", 8, 8 + 2048)
        content[:8] = struct.pack("<Q", max(0, end + 2 - 8))
    return (suffix if flags & 4 == 0 else "bin"), bytes(content), choices


def _edit(content: bytearray, choices: Choices) -> None:
    what = choices.below(8)
    if what < 4:
        words = list(_WORD.finditer(content[:4096]))
        if words:
            word = choices.pick(words)
            new = choices.pick(_WORDS) if choices.below(4) else bytes(choices.pick(words).group())
            content[slice(*word.span())] = new
    elif what < 6:
        change_bytes(content, 0, min(len(content), 400), choices)
    elif what == 6:
        change_bytes(content, 0, len(content), choices)
    else:
        at, size = choices.below(len(content)), choices.number()
        source = choices.below(len(content))
        if choices.below(2):
            del content[at : at + size]
        else:
            content[at:at] = content[source : source + size]


def _repair_zip(content: bytearray) -> None:
    """The directory's place and size, and members' checksums where their content unpacks."""
    central, end = content.find(_CENTRAL), content.rfind(_END)
    if 0 <= central < end <= len(content) - 22:
        content[end + 12 : end + 20] = struct.pack("<II", end - central, central)
    at = central
    while 0 <= at < end and len(content) >= at + 46:
        begin = int.from_bytes(content[at + 42 : at + 46], "little")
        packed, size = struct.unpack("<II", content[at + 20 : at + 28])
        names = struct.unpack("<HH", bytes(content[begin + 26 : begin + 30]).ljust(4, b"\0"))
        body = bytes(content[begin + 30 + sum(names) :][:packed])
        with contextlib.suppress(zlib.error):
            plain = zlib.decompressobj(-15).decompress(body, 1 << 20) if content[at + 10] == 8 else body
            content[at + 16 : at + 20] = struct.pack("<I", zlib.crc32(plain[:size]))
        at = content.find(_CENTRAL, at + 4)


def run(data: bytes) -> None:
    """Raises whatever is no KvcodecError."""
    suffix, content, choices = mutate(data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"fuzzed.{suffix}"
        path.write_bytes(content)
        with contextlib.suppress(KvcodecError):
            fingerprint_file(path)
        options = {"kv_heads": choices.pick((None, None, 1, 2)), "head_dim": choices.pick((None, None, 4, 8))}
        with contextlib.suppress(KvcodecError), open_dump(path, **options) as dump:
            _read(dump)


def _read(dump: Dump) -> None:
    for layer in dump.layers:
        for stream in dump.streams:
            with contextlib.suppress(KvcodecError):
                rows = dump.rows(layer, stream, 0, dump.tokens)
                assert rows.shape == dump.shape(layer, stream)
                assert rows.nbytes <= 2 * dump.path.stat().st_size * 1032 + (1 << 16), "more rows than bytes"
        with contextlib.suppress(KvcodecError):
            dump.queries(layer)
    with contextlib.suppress(KvcodecError):
        dump_model(DumpPart(dump))
