"""What a log holds and costs: bytes by kind, ratios against 16-bit, wear."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcodec.errors import CorruptRecord
from kvcodec.layout import SPARE_BYTES, CodecId, Lane
from kvcodec.store.failures import Failures, count_failures
from kvcodec.store.index import row_bytes
from kvcodec.store.reading import count_kinds

if TYPE_CHECKING:
    from kvcodec.store.sequence_index import SequenceIndex
    from kvcodec.store.store import Store


@dataclass(frozen=True)
class VectorCounts:
    """Vectors (one token's in one head) of groups over dictionaries: how many are codes, and how many an error bound
    made INT4 or raw. mean_room: for how many atoms those that are codes have room, None if there are none. How many
    of them they take only bodies tell, which are not read for this.
    """

    codes: int
    int4: int
    raw: int
    mean_room: float | None


@dataclass(frozen=True)
class SequenceStats:
    """One sequence. payload_bytes: codes, group metadata and raw rows that its tokens are read from; of a layer with a
    sliding window, those of the window. vectors: None if it has no groups over dictionaries. summaries: ranges of
    tokens that rows stand for which the caller gave, and summarized_tokens: tokens of these.
    """

    name: str
    tokens: int
    layers: int
    codecs: tuple[str, ...]
    raw16_bytes: int
    payload_bytes: int
    coded_bytes: int
    coded_numbers: int
    vectors: VectorCounts | None = None
    summaries: int = 0
    summarized_tokens: int = 0


AMPLIFICATIONS = "format", "padding", "cleaning", "compaction"  # factors of programmed over host bytes


@dataclass(frozen=True)
class Stats:
    """One log. All figures are bytes unless named otherwise.

    raw16: the same tokens in 16 bits. payload: what they are read from. host: payload ever given to the device;
    framed: with frame and record headers; programmed: with padding and block headers, and what was copied, which is
    programmed to clean blocks, or compacted, which is programmed to make the log small; spare: out-of-band, apart.
    begun: sequences that ever were.
    dictionary: records of dictionaries and codebooks, which are framed and programmed too; dictionaries: hashes of
    their sets;
    growths: how many of these grew out of others; grown: their records. failures: of the device.
    """

    sequences: tuple[SequenceStats, ...]
    device: str
    raw16_bytes: int
    payload_bytes: int
    coded_bytes: int
    coded_numbers: int
    host_bytes: int
    framed_bytes: int
    programmed_bytes: int
    spare_bytes: int
    file_bytes: int
    frames: int
    records: int
    blocks_used: int
    erases: int
    largest_erase_count: int
    rated_cycles: int
    dictionary_bytes: int
    dictionaries: tuple[str, ...]
    growths: int = 0
    grown_bytes: int = 0
    copied_bytes: int = 0
    compacted_bytes: int = 0
    begun: int = 0
    failures: Failures = field(default_factory=Failures)

    @property
    def bytes_per_number(self) -> float:
        """Of coded groups: codes and metadata over numbers."""
        return self.coded_bytes / self.coded_numbers if self.coded_numbers else float("nan")

    @property
    def padded_bytes(self) -> int:
        """Programmed for what was appended."""
        return self.programmed_bytes - self.copied_bytes - self.compacted_bytes

    @property
    def write_amplification(self) -> float:
        """Programmed bytes over host bytes."""
        return self.programmed_bytes / self.host_bytes if self.host_bytes else float("nan")

    def ratio(self, size: int) -> float:
        """How many times smaller than 16-bit `size` bytes are."""
        return self.raw16_bytes / size if size else float("nan")

    @property
    def coded_ratio(self) -> float:
        """16-bit bytes over bytes of codes and metadata, of coded groups alone."""
        return 2 * self.coded_numbers / self.coded_bytes if self.coded_bytes else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; a ratio that is not defined is None."""
        ratios = {
            "bytes_per_number": self.bytes_per_number,
            "ratio_coded": self.coded_ratio,
            "ratio_payload": self.ratio(self.payload_bytes),
            "ratio_programmed": self.ratio(self.programmed_bytes),
            "ratio_programmed_without_dictionaries": self.ratio(self.programmed_bytes - self.dictionary_bytes),
            "ratio_file": self.ratio(self.file_bytes),
            "write_amplification": self.write_amplification,
        }
        steps = [self.host_bytes, self.framed_bytes, self.padded_bytes, self.padded_bytes + self.copied_bytes]
        for name, more, fewer in zip(AMPLIFICATIONS, [*steps[1:], self.programmed_bytes], steps, strict=True):
            ratios[f"write_amplification_{name}"] = more / fewer if fewer else float("nan")
        return asdict(self) | {name: value if value == value else None for name, value in ratios.items()}


def measure_store(store: Store) -> Stats:
    """Figures of an open store."""
    device, log = store.device, store.log
    sequences = tuple(_measure_sequence(store, index) for index in store.index.sequences.values())
    grown = store.index.dictionaries.growths
    counted = device.counters if store.writable else {walk.lane: walk.counters() for walk in log.walks}
    fresh, kept = counted[Lane.FRESH], counted[Lane.KEPT]
    compacted = fresh.programmed_to_compact + kept.programmed_to_compact
    erase_counts, units = [], 0
    for number in np.flatnonzero(device.generations()).tolist():
        units += int(device.programmed(number).sum())
        try:
            block = device.block(number)
        except CorruptRecord:
            continue
        erase_counts.append(block.erase_count if block else 0)
    return Stats(
        sequences=sequences,
        device=device.geometry.name,
        raw16_bytes=sum(s.raw16_bytes for s in sequences),
        payload_bytes=sum(s.payload_bytes for s in sequences),
        coded_bytes=sum(s.coded_bytes for s in sequences),
        coded_numbers=sum(s.coded_numbers for s in sequences),
        host_bytes=fresh.host,
        framed_bytes=fresh.framed - fresh.compacted,
        programmed_bytes=fresh.programmed + kept.programmed,
        spare_bytes=units * SPARE_BYTES,
        file_bytes=device.image.size,
        frames=store.frames,
        records=sum(index.records for index in store.index.sequences.values()),
        blocks_used=len(erase_counts),
        erases=sum(erase_counts),
        largest_erase_count=max(erase_counts, default=0),
        rated_cycles=device.geometry.rated_cycles,
        dictionary_bytes=store.index.dictionaries.nbytes,
        dictionaries=tuple(basis.hex() for basis in store.index.dictionaries.held()),
        growths=len(grown),
        grown_bytes=sum(growth.nbytes for growth in grown),
        copied_bytes=kept.programmed - kept.programmed_to_compact,
        compacted_bytes=compacted,
        begun=store.index.last_id,
        failures=count_failures(device, log),
    )


def _measure_sequence(store: Store, index: SequenceIndex) -> SequenceStats:
    model, tokens = index.model, len(store.sequence(index.info.name))
    payload = coded = numbers = raw16 = 0
    for (layer, id_), extents in index.maps.items():
        stream = next(s for s in model.layers[layer].streams if s.id == id_)
        held = model.layers[layer].held(tokens)
        raw16 += (tokens - held) * stream.row_bytes
        for record, count, own in extents.tally(held, tokens):
            if record.step is not None:
                rows = own * stream.heads
                payload += rows * row_bytes(record.step, stream)
                if record.step.codec != CodecId.RAW:
                    coded += rows * row_bytes(record.step, stream)
                    numbers += rows * stream.dim
                continue
            size = count * sum(part.size + part.positions for part in record.parts)
            payload += size
            if record.parts[0].coded:
                coded += size
                numbers += count * record.tokens * stream.heads * stream.dim
    specs = {f"{rule.stream.name.lower()}={rule.policy.spec}" for rule in index.info.policy.rules}
    layers = sum(bool(layer.streams) for layer in model.layers)
    vectors = _count_vectors(store, index, tokens)
    return SequenceStats(
        index.info.name, tokens, layers, tuple(sorted(specs)), raw16, payload, coded, numbers, vectors,
        len(index.summarized), sum(end - first for first, end in index.summarized),
    )  # fmt: skip


def _count_vectors(store: Store, index: SequenceIndex, tokens: int) -> VectorCounts | None:
    """From headers and row bitmaps; a record whose bitmap is damaged counts as if all of it were codes."""
    codes = int4 = raw = atoms = 0
    for (layer, _), extents in index.maps.items():
        held, mixed = index.model.layers[layer].held(tokens), False
        for record, _, own in extents.tally(held, tokens):
            codes += own * sum(part.heads for part in record.parts if part.atoms)
            atoms += own * sum(part.heads * part.atoms for part in record.parts)
            mixed |= any(part.bitmap for part in record.parts)
        for extent in extents.covering(held, tokens) if mixed else ():
            for part in extent.coded.parts:
                try:
                    _, fewer, whole = count_kinds(store.log, extent, part)
                except CorruptRecord:
                    continue
                int4, raw = int4 + fewer, raw + whole
                codes, atoms = codes - fewer - whole, atoms - part.atoms * (fewer + whole)
    if not codes + int4 + raw:
        return None
    return VectorCounts(codes, int4, raw, atoms / codes if codes else None)
