"""MODEL and SEQUENCE records that are not what they ought to be."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from kvcodec import layout
from kvcodec.layout import RECORD_HEADER
from kvcodec.log.frame import Record
from tools.golden.forge import Forge, Forgeries
from tools.golden.forged import forged_model, forged_sequence, with_body

CASES = Forgeries()


def bad_model(name: str, shows: str, change: Callable[[Record], Record], *, frozen: bool = False) -> None:
    """Register a log with a changed MODEL record whose hash was made right, unless it is what was changed."""

    @CASES.bad(name, shows, frozen=frozen)
    def _(forge: Forge) -> None:
        forge.frame(forge.seal(change(forged_model().record())))


def model_field(rehash: bool, **fields: Any) -> Callable[[Record], Record]:
    """A change of MODEL header fields."""

    def change(record: Record) -> Record:
        for name, value in fields.items():
            record.header[name] = value
        return hashed(record) if rehash else record

    return change


def layer_field(**fields: Any) -> Callable[[Record], Record]:
    """A change of the first layer of a MODEL record."""

    def change(record: Record) -> Record:
        body = bytearray(record.body)
        row = np.frombuffer(body, layout.MODEL_LAYER, 1)[0]
        for name, value in fields.items():
            row[name] = value
        return hashed(with_body(record, bytes(body)))

    return change


def hashed(record: Record) -> Record:
    """With the hash that its fields and body ask for."""
    record.header["model_hash"] = np.void(bytes(16))
    raw = record.header.tobytes()[RECORD_HEADER.itemsize :] + bytes(record.body)
    record.header["model_hash"] = np.void(hashlib.sha256(raw).digest()[:16])
    return record


bad_model("model-hash", "a MODEL record whose hash is not its own", model_field(False, shard=0, shards=2), frozen=True)
bad_model("model-length", "a name longer than the body", model_field(True, name_bytes=9))
bad_model("model-dtype", "an unknown dtype", model_field(True, dtype=3))
bad_model("model-rope", "an unknown rope layout", model_field(True, rope_layout=3))
bad_model("model-shard", "shard 2 of 2", model_field(True, shard=2, shards=2))
bad_model("model-layer-reserved", "a reserved field of a layer is set", layer_field(reserved=1))
bad_model("model-no-heads", "a stream of no heads", layer_field(first_heads=0))
bad_model("model-no-dim", "a stream of no channels", layer_field(second_dim=0))
bad_model("model-stream", "an unknown stream", layer_field(first_stream=9))
bad_model("model-stream-twice", "one stream twice", layer_field(second_stream=1))
bad_model("model-no-streams", "no layer keeps anything", layer_field(first_stream=0, second_stream=0))


def bad_sequence(
    name: str,
    shows: str,
    change: Callable[[Record], Record] = lambda r: r,
    error: str = "CorruptRecord",
    *,
    frozen: bool = False,
    **fields: Any,
) -> None:
    """Register a log with a changed SEQUENCE record."""

    @CASES.bad(name, shows, error, frozen=frozen)
    def _(forge: Forge) -> None:
        forge.frame(forge.seal(forged_model().record()))
        forge.frame(forge.seal(change(forged_sequence().record()), **fields))


def policy_field(**fields: Any) -> Callable[[Record], Record]:
    """A change of the first policy of a SEQUENCE record."""

    def change(record: Record) -> Record:
        body = bytearray(record.body)
        row = np.frombuffer(body, layout.POLICY, 1)[0]
        for name, value in fields.items():
            row[name] = value
        return with_body(record, bytes(body))

    return change


def renamed(name: bytes) -> Callable[[Record], Record]:
    """A change of a SEQUENCE record's name."""

    def change(record: Record) -> Record:
        record.header["name_bytes"] = len(name)
        return with_body(record, bytes(record.body)[:-1] + name)

    return change


bad_sequence("sequence-model", "a SEQUENCE record that names an unknown model", model_hash=b"?" * 16, frozen=True)
bad_sequence("sequence-name", "a name that is not UTF-8", renamed(b"\xff"), frozen=True)
bad_sequence("sequence-name-empty", "a name of no bytes", renamed(b""))
bad_sequence("sequence-name-control", "a name with a line feed", renamed(b"a\nb"))
bad_sequence("sequence-name-long", "a name of 1025 bytes", renamed(b"a" * 1025))
bad_sequence("sequence-zero", "a sequence of id 0", sequence=0)
bad_sequence("sequence-parent", "a parent that is not below its id", parent=1, frozen=True)
bad_sequence("sequence-fork", "a fork token without a parent", fork_token=1)
bad_sequence("sequence-length", "a policy more than the body holds", policies=3)
bad_sequence("policy-reserved", "a reserved field of a policy is set", policy_field(reserved=1))
bad_sequence("policy-flag", "an unknown flag of a policy", policy_field(flags=2))
bad_sequence("policy-codec", "an unknown codec of a policy", policy_field(codec=9), "UnsupportedVersion")
bad_sequence("policy-group", "a group of 24", policy_field(group=24))
bad_sequence("policy-stream", "an unknown stream of a policy", policy_field(stream=0))
bad_sequence("policy-residual", "a residual of 2**31", policy_field(residual=1 << 31))
CASES.bad_record("sequence-twice", "two sequences of one name", lambda: forged_sequence(2, "a").record())
CASES.bad_record("sequence-id-twice", "one id, two names", lambda: forged_sequence(1, "b").record(), frozen=False)
