"""How a sequence's streams are coded from now on, and the SEQUENCE record that keeps it (formats/record.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvcodec.errors import CorruptRecord, SpecError, UnsupportedVersion
from kvcodec.flash.image import Bytes
from kvcodec.layout import MAX_TOKEN, POLICY, SEQUENCE_HEADER, Kind, StreamId
from kvcodec.log.frame import Record, new_record
from kvcodec.spec import KNOWN_CODECS, CodecSpec
from kvcodec.store.headers import read_spec, sparse_fields

_MAX_NAME = 1024


@dataclass(frozen=True)
class StreamPolicy:
    """Codec of a stream's full groups; residual: newest tokens kept raw; sinks: first tokens kept raw for good."""

    spec: CodecSpec
    residual: int = 128
    sinks: int = 4

    def __post_init__(self) -> None:
        if not (0 <= self.residual < 1 << 31 and 0 <= self.sinks < 1 << 31):
            raise SpecError(f"residual {self.residual} and sinks {self.sinks} must be 0 or more")


@dataclass(frozen=True)
class Rule:
    """The policy of one stream over a range of layers."""

    stream: StreamId
    layers: range
    policy: StreamPolicy


@dataclass(frozen=True)
class Policy:
    """Rules that together give each stream of each layer its policy."""

    rules: tuple[Rule, ...]

    @cached_property
    def _table(self) -> dict[tuple[int, StreamId], StreamPolicy]:
        return {(n, rule.stream): rule.policy for rule in reversed(self.rules) for n in rule.layers}

    def covers(self, layer: int, stream: StreamId) -> bool:
        """Whether some rule is for this stream of this layer."""
        return (layer, stream) in self._table

    def at(self, layer: int, stream: StreamId) -> StreamPolicy:
        """The policy of a stream of a layer: of the first rule that is for it. Raises SpecError."""
        if not self.covers(layer, stream):
            raise SpecError(f"no policy for layer {layer}, stream {stream.name.lower()}")
        return self._table[layer, stream]

    def encode(self) -> bytes:
        rows = np.zeros(len(self.rules), POLICY)
        for row, rule in zip(rows, self.rules, strict=True):
            spec = rule.policy.spec
            row["stream"], row["codec"], row["axis"], row["flags"] = rule.stream, spec.codec, spec.axis, spec.flags
            row["group"], row["first_layer"], row["layers"] = spec.group, rule.layers.start, len(rule.layers)
            for name, value in sparse_fields(spec).items():
                row[name] = value
            row["residual"], row["sinks"] = rule.policy.residual, rule.policy.sinks
        return rows.tobytes()


@dataclass(frozen=True)
class SequenceInfo:
    """What a SEQUENCE record says. Id 0, without a name, is no sequence: its policy is that of those begun later.

    fork: the id of the sequence whose first tokens it begins with, and how many; 0, 0 without one.
    """

    id: int
    name: str
    model_hash: bytes
    policy: Policy
    fork: tuple[int, int] = (0, 0)

    @property
    def parent(self) -> int:
        """Id of the sequence that it was forked from, or 0."""
        return self.fork[0]

    def record(self) -> Record:
        name, body = self.name.encode(), self.policy.encode()
        return new_record(
            Kind.SEQUENCE,
            body + name,
            sequence=self.id,
            model_hash=np.void(self.model_hash),
            parent=self.fork[0],
            fork_token=self.fork[1],
            name_bytes=len(name),
            policies=len(self.policy.rules),
        )


def check_name(name: str) -> None:
    """Raises SpecError unless `name` can name a sequence."""
    if not isinstance(name, str):
        raise SpecError(f"a sequence's name is text, not {name!r}")
    size = len(name.encode(errors="surrogatepass"))
    if not 1 <= size <= _MAX_NAME or not name.isprintable():
        raise SpecError(f"a sequence's name has 1 to {_MAX_NAME} bytes of printable text, not {name[:80]!r}")


def read_sequence(header: np.void, body: Bytes, offset: int) -> SequenceInfo:
    """What a SEQUENCE record says; `offset` is its place in the file. Raises CorruptRecord."""
    policies, name_bytes = int(header["policies"]), int(header["name_bytes"])
    size = policies * POLICY.itemsize
    if body.size != size + name_bytes or header.dtype != SEQUENCE_HEADER:
        raise CorruptRecord(offset, "length of a SEQUENCE record")
    number, fork = int(header["sequence"]), (int(header["parent"]), int(header["fork_token"]))
    if fork != (0, 0) and not (0 < fork[0] < number and fork[1] <= MAX_TOKEN):
        raise CorruptRecord(offset, f"SEQUENCE record: sequence {number} forked from {fork[0]} at token {fork[1]}")
    try:
        name = bytes(body[size:]).decode()
        if name or number:
            check_name(name)
        policy = Policy(tuple(_read_rules(body[:size].view(POLICY))))
    except UnsupportedVersion as error:
        raise UnsupportedVersion(f"at byte {offset}: SEQUENCE record: {error}") from None
    except ValueError as error:
        raise CorruptRecord(offset, f"SEQUENCE record: {error}") from None
    if name and not number:
        raise CorruptRecord(offset, "SEQUENCE record: id 0 with a name")
    return SequenceInfo(number, name, header["model_hash"].tobytes(), policy, fork)


def _read_rules(rows: Iterable[np.void]) -> Iterable[Rule]:
    for row in rows:
        if int(row["reserved"]) or int(row["reserved_too"]) or any(row["reserved_sparse"].tobytes()):
            raise SpecError("a reserved field of a policy is set")
        if int(row["codec"]) not in KNOWN_CODECS:
            raise UnsupportedVersion(f"a policy of codec {int(row['codec'])}")
        first = int(row["first_layer"])
        policy = StreamPolicy(read_spec(row), int(row["residual"]), int(row["sinks"]))
        yield Rule(StreamId(int(row["stream"])), range(first, first + int(row["layers"])), policy)
