"""Parsers of text: codec specs, geometries, spec files and the options that are words."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvcodec.bulk.dump_model import Identity
from kvcodec.bulk.selection import pick_layers, pick_tokens
from kvcodec.bulk.train_checkpoint import Checkpoint
from kvcodec.bulk.train_options import parse_streams
from kvcodec.dumps.identity import parse_fingerprint
from kvcodec.dumps.names import parse_mapping, recognise
from kvcodec.errors import KvcodecError
from kvcodec.flash.geometry import Geometry
from kvcodec.layout import StreamId
from kvcodec.log.recover import Recovery
from kvcodec.sparse_spec import Pursuit
from kvcodec.spec import CodecSpec
from kvcodec.store.coding import read_spec_file
from kvcodec.store.model import Model
from tests.fuzz.choices import Choices

_MODEL = Model.uniform(2, 2, 64)
WORDS = (
    "raw", "int8", "int4", "int2", "dict", "pq", "tcq", "/", "channel", "token", "g", "64", "g128", "sym", "s8", "c6",
    "ef", "u16", "low2", "e0.1", "max0.3", "max", "B32", "B", "nan", "inf", "1e", "-", "0", "999999", "page=4096", ",",
    "unit=512", "block=65536", "cycles=1000", "page=0", "tlc", "=", "k", "v", "c", "kr", "\nk = \"int4/channel/g64\"\n",
    "\n[[layer]]\n", "layers = \"0-3,17\"\n", "residual = { k = 128 }\n", "sinks = 4\n", "[", "]", "{", "}", "\"", "'",
    "\n", " ", "#", "0x", "f" * 64, "9" * 64, "[" * 64, "k=model.{layer}.key", "v=model.{layer}.value", "{layer}",
    "0/8", "torn-tail", "omp", ":", "128:512", "layers.0.self_attn.k", ".", "_", "٣", "\0", "\ud800", "é",
    "true", "1.5",
)  # fmt: skip


def text_of(choices: Choices) -> str:
    """Words and single characters, some of them many times."""
    out = ""
    while choices.left:
        what = choices.number()
        if what < 160:
            out += choices.pick(WORDS)
        elif what < 250:
            out += chr(choices.number())
        else:
            out += choices.pick(WORDS) * (choices.number() + 1)
    return out


def run(data: bytes) -> None:
    """Raises whatever is no KvcodecError, and AssertionError for a spec that does not name itself."""
    choices = Choices(data)
    parser = choices.pick(PARSERS)
    with contextlib.suppress(KvcodecError):
        parser(text_of(choices))


def _parse_spec(text: str) -> None:
    spec = CodecSpec.parse(text)
    assert CodecSpec.parse(str(spec)) == spec, str(spec)


def _parse_geometry(text: str) -> None:
    geometry = Geometry.parse(text)
    assert geometry.units_per_block >= 2
    assert geometry.stride > geometry.block_bytes


def _parse_spec_file(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.toml"
        path.write_bytes(text.encode(errors="surrogatepass"))
        read_spec_file(path).policy(_MODEL, None, None)


def _resume(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.kvdict"
        checkpoint = Checkpoint(out, {"codec": "pq"}, resume=False, overwrite=False)
        checkpoint.path.mkdir()
        (checkpoint.path / "job.json").write_bytes(text.encode(errors="surrogatepass"))
        Checkpoint(out, {"codec": "pq"}, resume=True, overwrite=False)


def _recognise(text: str) -> None:
    for pair in ((StreamId.K, StreamId.V), (StreamId.C, StreamId.KR)):
        recognise(text, pair)


PARSERS: list[Callable[[str], Any]] = [
    _parse_spec, _parse_geometry, _parse_spec_file, parse_streams, Recovery.parse, Pursuit.parse, parse_fingerprint,
    lambda text: parse_mapping(text.split("\n")), lambda text: pick_layers(text, (0, 1, 5), "layers"),
    lambda text: pick_tokens(text, 100, "tokens"), lambda text: Identity.of(None, text), _resume, _recognise,
]  # fmt: skip
