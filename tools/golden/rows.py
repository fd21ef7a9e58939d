"""GROUP, STEP and DROP records that are not what they ought to be."""

from __future__ import annotations

import numpy as np

from kvcodec import layout
from kvcodec.layout import Kind, StreamId
from kvcodec.log.frame import Record, new_record
from tools.golden.forge import Forge, Forgeries
from tools.golden.forged import forged_group, forged_step, with_body

CASES = Forgeries()


for _name, _shows, _fields in (
    ("group-sequence", "a sequence that was never begun", {"sequence": 9}),
    ("group-heads", "heads beyond the model's", {"first_head": 1}),
    ("group-layer", "a layer that the model has not", {"first_layer": 1}),
    ("group-stream", "a stream that the layer has not", {"stream": StreamId.C}),
    ("group-axis", "an unknown axis", {"axis": 3}),
    ("group-size", "a group of 24 numbers", {"group": 24}),
    ("group-sections", "section sizes that do not follow from the shape", {"code_bytes": 64}),
):
    CASES.bad_record(_name, f"a GROUP record with {_shows}", forged_group, **_fields)
CASES.bad_record("group-codec", "a GROUP record with an unknown codec", forged_group, "UnsupportedVersion", codec=9)
for _name, _shows, _fields in (
    ("group-head-dim", "a head dimension that is not the model's", {"head_dim": 32}),
    ("group-no-heads", "no heads", {"heads": 0}),
    ("group-tokens", "no tokens", {"tokens": 0, "rows": 0}),
    ("group-rows", "another number of rows than of tokens", {"rows": 15}),
    ("group-all-heads", "a number of heads that is not the model's", {"all_heads": 3}),
    ("group-layers", "two layers", {"layers": 2}),
    ("group-stream-unknown", "an unknown stream", {"stream": 9}),
    ("group-flag", "an unknown flag", {"flags": 2}),
    ("group-overflow", "tokens beyond 2**48", {"first_token": (1 << 64) - 8}),
    ("group-errors", "error figures of another size", {"error_bytes": 0}),
    ("group-zero-size", "a group of 0 numbers", {"group": 0}),
    ("group-basis", "a basis of grouped integers", {"basis_hash": b"\1" * 16}),
):
    CASES.bad_record(_name, f"a GROUP record with {_shows}", forged_group, frozen=False, **_fields)
for _name, _shows, _fields in (
    ("group-transform", "a transform", {"transform": 1}),
    ("group-bitmap", "a row bitmap", {"bitmap_bytes": 2}),
    ("group-positions", "positions", {"position_bytes": 64}),
):
    CASES.bad_record(_name, f"a GROUP record with {_shows}, which version 1 does not know", forged_group,
                     "UnsupportedVersion", frozen=False, **_fields)  # fmt: skip
CASES.bad_record("group-body", "a GROUP record with a byte too many",
                 lambda: with_body(forged_group(), bytes(forged_group().body) + b"\0"), frozen=False)  # fmt: skip
CASES.bad_record("step-body", "a STEP record whose body is not what its shape asks for",
                 lambda: with_body(forged_step(), bytes(forged_step().body)[:-2]))  # fmt: skip
for _name, _shows, _error, _fields in (
    ("step-codec", "an unknown codec", "UnsupportedVersion", {"codec": 9}),
    ("step-flags", "a flag of a codec that has none", "CorruptRecord", {"flags": 1}),
    ("step-group", "a group of 24", "CorruptRecord", {"codec": 3, "group": 24}),
    ("step-raw-group", "a group of raw rows", "CorruptRecord", {"group": 16}),
    ("step-coded", "a codec whose rows are not as long as the body's", "CorruptRecord", {"codec": 3, "group": 16}),
    ("step-no-streams", "no streams", "CorruptRecord", {"streams": 0}),
    ("step-streams", "an unknown stream", "CorruptRecord", {"streams": 0x86}),
    ("step-layers", "layers that the model has not", "CorruptRecord", {"layers": 2}),
    ("step-no-layers", "no layers", "CorruptRecord", {"layers": 0}),
    ("step-tokens", "no tokens", "CorruptRecord", {"tokens": 0}),
    ("step-heads", "heads beyond the model's", "CorruptRecord", {"first_head": 1}),
    ("step-all-heads", "a number of heads that is not the model's", "CorruptRecord", {"all_heads": 4}),
    ("step-sequence", "a sequence that was never begun", "CorruptRecord", {"sequence": 9}),
):
    CASES.bad_record(_name, f"a STEP record with {_shows}", forged_step, _error, frozen=False, **_fields)
for _name, _shows, _fields in (
    ("drop-scope", "an unknown scope", {"scope": 4}),
    ("drop-nothing", "no sequence", {"sequence": 0}),
    ("drop-end", "an end behind which it drops everything", {"end_token": 9}),
    ("drop-empty", "a range of no tokens", {"scope": 1, "first_token": 4, "end_token": 4}),
    ("drop-far", "a range beyond all tokens", {"scope": 1, "end_token": layout.MAX_TOKEN + 1}),
    ("drop-part", "a sequence that ends at a token", {"scope": 2, "first_token": 4}),
    ("drop-lsn", "rows of a summary that it makes none of", {"scope": 1, "end_token": 4, "summary_lsn": 1}),
    ("drop-summary-empty", "a summary of no tokens", {"scope": 3, "summary_lsn": 1}),
    ("drop-summary-all", "a summary of rows from the first lsn on", {"scope": 3, "end_token": 4}),
    ("drop-summary-later", "a summary of rows that come later", {"scope": 3, "end_token": 4, "summary_lsn": 1 << 40}),
):
    CASES.bad_record(_name, f"a DROP record with {_shows}", lambda: new_record(Kind.DROP, b"", sequence=1),
                     frozen=False, **_fields)  # fmt: skip


def bad_scale(name: str, shows: str, bits: int, *, frozen: bool = True) -> None:
    """Register a log with a GROUP record whose third scale has these bits."""

    def make() -> Record:
        record = forged_group()
        body = np.array(record.body)
        body[layout.ALIGNMENT : layout.ALIGNMENT + 6].view("<u2")[2] = bits
        return with_body(record, body.tobytes())

    @CASES.bad(name, shows, at="read", frozen=frozen)
    def _(forge: Forge) -> None:
        forge.begin()
        forge.frame(forge.seal(make()), forge.seal(forged_group(StreamId.V)))


bad_scale("scale-nan", "a scale that is not a number", 0x7FC0)
bad_scale("scale-negative", "a scale of -1", 0xBF80)
bad_scale("scale-infinite", "an infinite scale", 0x7F80, frozen=False)
bad_scale("scale-zero", "a scale of 0", 0x0000, frozen=False)
