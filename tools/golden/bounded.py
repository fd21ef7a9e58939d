"""Logs in which every vector over a dictionary meets an error bound, some of them as INT4 or raw rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import kvcodec
from kvcodec.codecs.bitmap import CODES, INT4, RAW, pack_kinds, unpack_kinds
from kvcodec.layout import ALIGNMENT, StreamId
from kvcodec.log.frame import Record
from kvcodec.store.model import Model
from tools.golden.dictionaries import begin, forged_group, forged_rows, make_set
from tools.golden.forge import Forge, Forgeries
from tools.golden.forged import with_body
from tools.golden.whole import fill

CASES = Forgeries()
SPECS = {"k": "dict/s6/c6/ef/max0.08", "v": "dict/s3/c8/max0.2"}
ATOMS = 20  # rows that are one each
TOKENS = 62  # no whole byte of the bitmap
HEADS = 2
HEAD_BITMAP = 16  # bytes
SECTIONS = ALIGNMENT + ALIGNMENT  # where they begin: error figures and bitmap before them


@CASES.made("dictionary-max", "a bound on every vector: INT4 and raw rows beside codes; such records split by heads")
def _(path: Path) -> None:
    model, device = Model.uniform(1, 4, 16), "page=512,unit=64,block=8192"
    specs = {"k": "dict/s8/c6/ef/low2/max0.4", "v": "dict/s16/c8/max0.09"}
    own = make_set(model, 64, mean=True)
    with kvcodec.open(
        path, "w", model=model, device=device, capacity=1 << 20, residual=3, sinks=2, dictionary=own, **specs
    ) as store:
        fill(store.sequence("a"), 0, 6, 1)
        fill(store.sequence("a"), 6, 70, 2)


Change = Callable[[bytearray, np.ndarray], None]


def forged_body(change: Change) -> Record:
    """A GROUP record of K whose body, of which `change` is told the rows' kinds (heads, tokens) too, is changed."""
    record = forged_group(StreamId.K, SPECS, ATOMS)
    body = bytearray(bytes(record.body))
    kinds = unpack_kinds(np.frombuffer(body, np.uint8)[ALIGNMENT:SECTIONS], HEADS, TOKENS)
    assert {CODES, INT4, RAW} == set(kinds.reshape(-1).tolist())
    change(body, kinds)
    return with_body(record, bytes(body))


def bad_header(name: str, shows: str, error: str = "CorruptRecord", *, frozen: bool = False, **fields: int) -> None:
    """Register a log with a GROUP record of changed fields."""

    @CASES.bad(name, f"a GROUP record of an error bound with {shows}", error, frozen=frozen)
    def _(forge: Forge) -> None:
        begin(forge, specs=SPECS)
        forge.frame(forge.seal(forged_group(StreamId.K, SPECS, ATOMS), **fields))


def bad_body(name: str, shows: str, *, at: str = "read") -> Callable[[Change], Change]:
    """Register a log with a GROUP record of another body."""

    def register(change: Change) -> Change:
        @CASES.bad(name, f"a GROUP record of an error bound with {shows}", at=at, frozen=False)
        def _(forge: Forge) -> None:
            begin(forge, specs=SPECS)
            k, v = forged_body(change), forged_group(StreamId.V, SPECS, ATOMS)
            forge.begin_block(2)
            forge.frame(*[forge.seal(k)] if at == "open" else [forge.seal(k), forge.seal(v)])

        return change

    return register


def place_of(kinds: np.ndarray, kind: int) -> tuple[int, int, int]:
    """(head, token, byte from the end of the body's sections) of the first row of a kind."""
    at = int(np.argmax(kinds.reshape(-1) == kind))
    sizes = np.array([0, 12, 32])[kinds.reshape(-1)]
    return (*divmod(at, TOKENS), int(sizes[:at].sum()) - int(sizes.sum()))


bad_header("bound-zero", "no bound", error_bound=0)
bad_header("bitmap-of-others", "a bitmap, and no flag that says so", "UnsupportedVersion", flags=2)
bad_header("bitmap-size", "a bitmap of two tile rows", bitmap_bytes=128)
bad_header("bitmap-left-out", "rows behind its sections and no bitmap", frozen=True, bitmap_bytes=0)


@bad_body("others-none", "a bitmap and no row behind its sections", at="open")
def _(body: bytearray, kinds: np.ndarray) -> None:
    _, _, first = place_of(kinds, int(kinds.reshape(-1)[np.argmax(kinds.reshape(-1) > 0)]))
    del body[first:]


@bad_body("others-many", "more bytes behind its sections than raw rows have", at="open")
def _(body: bytearray, kinds: np.ndarray) -> None:
    _, _, first = place_of(kinds, INT4)
    body.extend(bytes(32 * kinds.size + 1 + first))


@bad_body("others-long", "a byte behind its rows")
def _(body: bytearray, _kinds: np.ndarray) -> None:
    body.append(0)


@bad_body("kind-three", "a row of kind 3")
def _(body: bytearray, _kinds: np.ndarray) -> None:
    body[ALIGNMENT + HEAD_BITMAP + 5] |= 0b1100


@bad_body("kind-changed", "a raw row that poses as INT4")
def _(body: bytearray, kinds: np.ndarray) -> None:
    changed = kinds.copy()
    head, token, _ = place_of(kinds, RAW)
    changed[head, token] = INT4
    body[ALIGNMENT:SECTIONS] = pack_kinds(changed).tobytes()


@bad_body("kinds-none", "a bitmap of rows that are all codes")
def _(body: bytearray, _kinds: np.ndarray) -> None:
    body[ALIGNMENT:SECTIONS] = bytes(ALIGNMENT)


@bad_body("kinds-behind-head", "a kind of a token behind a head's last one")
def _(body: bytearray, _kinds: np.ndarray) -> None:
    body[ALIGNMENT + HEAD_BITMAP - 1] |= 0x40


@bad_body("kinds-behind-heads", "a kind of a head behind the last one")
def _(body: bytearray, _kinds: np.ndarray) -> None:
    body[ALIGNMENT + HEADS * HEAD_BITMAP] = 1


@bad_body("codes-beside-row", "a scale of a row that is INT4")
def _(body: bytearray, kinds: np.ndarray) -> None:
    head, token, _ = place_of(kinds, INT4)
    record = forged_group(StreamId.K, SPECS, ATOMS)
    head_bytes = int(record.header["metadata_bytes"]) + int(record.header["code_bytes"])
    body[SECTIONS + head * head_bytes + 2 * token + 1] = 0x3F


@bad_body("int4-scale", "an INT4 row of an infinite scale")
def _(body: bytearray, kinds: np.ndarray) -> None:
    _, _, place = place_of(kinds, INT4)
    body[len(body) + place : len(body) + place + 2] = b"\x80\x7f"


@CASES.bad("rows-bounded", "a ROWS record of an error bound", frozen=False)
def _(forge: Forge) -> None:
    begin(forge, specs=SPECS)
    forge.frame(forge.seal(forged_rows(), flags=2 | 4, error_bound=1000))
