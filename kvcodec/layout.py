"""Every struct that reaches Flash, once. All integers are little-endian; no struct has holes.

formats/*.md document these dtypes field by field and tests/test_formats.py compares the two. Nothing else in
kvcodec knows an offset.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np

FORMAT_VERSION = 1
SUPERBLOCK_MAGIC = b"\x89KVLOG\r\n"  # the CR LF and the high bit reveal a text-mode transfer
BYTE_ORDER = 0x0A0B0C0D
ALIGNMENT = 64  # of group metadata and index streams in a block: one tile row
FILE_ALIGNMENT = 4096  # of blocks in the file
SUPERBLOCK_BYTES = 4096
SUPERBLOCKS = 2
SPARE_BYTES = 16
NO_FRAME = 0xFFFF
BLOCK_MAGIC = 0x4B4C424B  # "KBLK"
FRAME_MAGIC = 0x4B46524D  # "MRFK", before the salt
KVDICT_MAGIC = b"\x89KVDIC\r\n"
SIDECAR_MAGIC = b"\x89KVIDX\r\n"
COUNTER_LIMIT = 1 << 62  # of generations, frame numbers, lsns, ids and byte counts: none can ever wrap
MAX_TOKEN = 1 << 48  # no token of a sequence lies at or beyond it
TILE_LANES = 16
TILE_ROW = 64
CHANNEL_LANE_TOKENS = 64

SUPERBLOCK = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u2"),
        ("copy", "<u2"),
        ("byte_order", "<u4"),
        ("uuid", "V16"),
        ("page_bytes", "<u4"),
        ("unit_bytes", "<u4"),
        ("block_bytes", "<u4"),
        ("blocks", "<u4"),
        ("rated_cycles", "<u4"),
        ("read_ns", "<u4"),
        ("program_ns", "<u4"),
        ("erase_ns", "<u4"),
        ("name", "S16"),
        ("reserved", "V44"),
        ("crc", "<u4"),
    ]
)

SPARE_SLOT = np.dtype([("crc", "<u4"), ("first_frame", "<u2"), ("lane", "<u2"), ("generation", "<u8")])

BLOCK_HEADER = np.dtype(
    [
        ("magic", "<u4"),
        ("block", "<u4"),
        ("generation", "<u8"),
        ("erase_count", "<u8"),
        ("programmed_bytes", "<u8"),
        ("host_bytes", "<u8"),
        ("framed_bytes", "<u8"),
        ("compacted_bytes", "<u8"),
        ("lane", "u1"),
        ("reserved", "V3"),
        ("crc", "<u4"),
    ]
)

FRAME_HEADER = np.dtype(
    [
        ("magic", "<u4"),
        ("version", "u1"),
        ("type", "u1"),
        ("flags", "<u2"),
        ("length", "<u4"),
        ("records", "<u4"),
        ("number", "<u8"),
        ("durable", "<u8"),
        ("session_start", "<u8"),
        ("session", "<u4"),
        ("previous", "<u4"),
        ("drops", "<u4"),
        ("header_crc", "<u4"),
    ]
)

FRAME_TRAILER = np.dtype([("length", "<u4"), ("crc", "<u4")])

_RECORD = [
    ("header_crc", "<u4"),
    ("kind", "u1"),
    ("version", "u1"),
    ("header_bytes", "<u2"),
    ("body_bytes", "<u4"),
    ("body_crc", "<u4"),
    ("lsn", "<u8"),
    ("sequence", "<u8"),
]
RECORD_HEADER = np.dtype(_RECORD)

MODEL_HEADER = np.dtype(
    [
        *_RECORD,
        ("model_hash", "V16"),
        ("fingerprint", "V32"),
        ("dtype", "u1"),
        ("rope_layout", "u1"),
        ("layers", "<u2"),
        ("name_bytes", "<u2"),
        ("shard", "<u2"),
        ("shards", "<u2"),
        ("reserved", "V6"),
    ]
)

MODEL_LAYER = np.dtype(
    [
        ("first_stream", "u1"),
        ("second_stream", "u1"),
        ("first_heads", "<u2"),
        ("first_dim", "<u2"),
        ("second_heads", "<u2"),
        ("second_dim", "<u2"),
        ("reserved", "<u2"),
        ("window", "<u4"),
        ("rope_base", "<f8"),
        ("rope_scale", "<f8"),
    ]
)

# How vectors are coded by what was trained, and by which: all zero for other codecs.
_SPARSE = [
    ("basis_hash", "V16"),
    ("dictionary_atoms", "<u4"),
    ("error_bound", "<u2"),
    ("atoms", "u1"),
    ("low_atoms", "u1"),
    ("coefficient_bits", "u1"),
]

SEQUENCE_HEADER = np.dtype(
    [
        *_RECORD,
        ("model_hash", "V16"),
        ("parent", "<u8"),
        ("fork_token", "<u8"),
        ("name_bytes", "<u2"),
        ("policies", "<u2"),
        ("reserved", "V28"),
    ]
)

POLICY = np.dtype(
    [
        ("stream", "u1"),
        ("codec", "u1"),
        ("axis", "u1"),
        ("flags", "u1"),
        ("group", "<u2"),
        ("first_layer", "<u2"),
        ("layers", "<u2"),
        ("reserved", "<u2"),
        ("residual", "<u4"),
        ("sinks", "<u4"),
        ("reserved_too", "<u4"),
        *_SPARSE,
        ("reserved_sparse", "V7"),
    ]
)

GROUP_HEADER = np.dtype(
    [
        *_RECORD,
        ("codec", "u1"),
        ("stream", "u1"),
        ("axis", "u1"),
        ("transform", "u1"),
        ("flags", "<u2"),
        ("group", "<u2"),
        ("first_layer", "<u2"),
        ("layers", "<u2"),
        ("first_head", "<u2"),
        ("heads", "<u2"),
        ("head_dim", "<u2"),
        ("all_heads", "<u2"),
        ("tokens", "<u4"),
        ("first_token", "<u8"),
        ("rows", "<u4"),
        ("error_bytes", "<u4"),
        ("bitmap_bytes", "<u4"),
        ("position_bytes", "<u4"),
        ("metadata_bytes", "<u4"),
        ("code_bytes", "<u4"),
        *_SPARSE,
        ("reserved", "V15"),
    ]
)

# Of a row of a GROUP record that stands for several tokens.
POSITION = np.dtype([("position", "<u8"), ("visible_from", "<u8")])

_STEP = [
    *_RECORD,
    ("codec", "u1"),
    ("streams", "u1"),
    ("flags", "<u2"),
    ("first_layer", "<u2"),
    ("layers", "<u2"),
    ("first_head", "<u2"),
    ("heads", "<u2"),
    ("tokens", "<u4"),
    ("first_token", "<u8"),
    ("all_heads", "<u2"),
    ("group", "<u2"),
]
STEP_HEADER = np.dtype([*_STEP, ("reserved", "V4")])
ROWS_HEADER = np.dtype([*_STEP, *_SPARSE, ("reserved", "V11")])

DICTIONARY_HEADER = np.dtype(
    [
        *_RECORD,
        ("basis_hash", "V16"),
        ("parent_hash", "V16"),
        ("atoms", "<u4"),
        ("first_atom", "<u4"),
        ("chunk", "<u4"),
        ("matrix", "<u2"),
        ("matrices", "<u2"),
        ("head_dim", "<u2"),
        ("uses", "<u2"),
        ("transform", "u1"),
        ("mean", "u1"),
        ("pairs", "<u2"),
        ("reserved", "V36"),
        ("codebooks", "<u2"),
        ("grown", "<u2"),
    ]
)

CODEBOOK_HEADER = np.dtype(
    [
        *_RECORD,
        ("basis_hash", "V16"),
        ("form", "u1"),
        ("reserved_form", "u1"),
        ("codebook", "<u2"),
        ("codebooks", "<u2"),
        ("matrices", "<u2"),
        ("first_byte", "<u4"),
        ("all_bytes", "<u4"),
        ("reserved", "V64"),
    ]
)

DICTIONARY_USE = np.dtype([("layer", "<u2"), ("stream", "u1"), ("reserved", "u1")])

DROP_HEADER = np.dtype(
    [
        *_RECORD,
        ("first_token", "<u8"),
        ("end_token", "<u8"),
        ("scope", "u1"),
        ("reserved", "V7"),
        ("summary_lsn", "<u8"),
    ]
)

FREED_HEADER = np.dtype([*_RECORD, ("runs", "<u4"), ("reserved", "V28")])

RETIRED_HEADER = np.dtype([*_RECORD, ("blocks", "<u4"), ("reserved", "V28")])

RETIRED_BLOCK = np.dtype([("block", "<u4"), ("cause", "u1"), ("reserved", "V3")])

FREED_RUN = np.dtype([("lane", "<u4"), ("reserved", "V4"), ("first_frame", "<u8"), ("frames", "<u8")])

SIDECAR = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("records", "<u4"),
        ("uuid", "V16"),
        ("lsn", "<u8"),
        ("body_crc", "<u4"),
        ("lanes", "<u2"),
        ("reserved", "V14"),
        ("crc", "<u4"),
    ]
)

SIDECAR_LANE = np.dtype(
    [
        ("block", "<u4"),
        ("offset", "<u4"),
        ("generation", "<u8"),
        ("number", "<u8"),
        ("durable", "<u8"),
        ("framed_bytes", "<u8"),
        ("host_bytes", "<u8"),
        ("programmed_bytes", "<u8"),
        ("compacted_bytes", "<u8"),
        ("frames", "<u8"),
        ("frame_crc", "<u4"),
        ("drops", "<u4"),
    ]
)

SIDECAR_ENTRY = np.dtype([("generation", "<u8"), ("block", "<u4"), ("offset", "<u4"), ("header", "V128")])

KVDICT = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u2"),
        ("dictionaries", "<u2"),
        ("information_bytes", "<u4"),
        ("basis_hash", "V16"),
        ("file_bytes", "<u8"),
        ("reserved", "V20"),
        ("crc", "<u4"),
    ]
)

KVDICT_ENTRY = np.dtype(
    [
        ("offset", "<u8"),
        ("atoms", "<u4"),
        ("crc", "<u4"),
        ("head_dim", "<u2"),
        ("uses", "<u2"),
        ("errors", "<u2"),
        ("transform", "u1"),
        ("flags", "u1"),
        ("pairs", "<u2"),
        ("bytes", "<u4"),
        ("reserved", "V2"),
    ]
)

PRODUCT = np.dtype(
    [
        ("components", "<u2"),
        ("head_dim", "<u2"),
        ("groups", "<u2"),
        ("uses", "<u2"),
        ("pairs", "<u2"),
        ("budget", "<u2"),
        ("predicted", "<u2"),
        ("reserved", "V2"),
    ]
)

TRELLIS = np.dtype(
    [
        ("components", "<u2"),
        ("head_dim", "<u2"),
        ("uses", "<u2"),
        ("pairs", "<u2"),
        ("budget", "<u2"),
        ("window", "u1"),
        ("tables", "u1"),
        ("reserved", "V4"),
    ]
)

FRAME_OVERHEAD = FRAME_HEADER.itemsize + FRAME_TRAILER.itemsize


class FrameType(IntEnum):
    """Type of a frame; bit 7 set would mean that a reader may skip it."""

    DATA = 1
    COMPACTION = 2


class Kind(IntEnum):
    """Kind of a record. 0x00 and 0xFF are what unprogrammed Flash looks like, and invalid."""

    MODEL = 1
    SEQUENCE = 2
    GROUP = 3
    STEP = 4
    DICTIONARY = 5
    DROP = 6
    ROWS = 7
    CODEBOOK = 8
    FREED = 9
    RETIRED = 0x81


class RetireCause(IntEnum):
    """Why a block is not used any more."""

    FACTORY = 1
    ERASE = 2
    PROGRAM = 3
    READ = 4


class Lane(IntEnum):
    """Which of the two chains of frames on a device a block belongs to."""

    FRESH = 0
    KEPT = 1


class DropScope(IntEnum):
    """What of a sequence a DROP record ends."""

    TAIL = 0
    RANGE = 1
    SEQUENCE = 2
    SUMMARY = 3


class StreamId(IntEnum):
    """Named tensors of a layer: k, v; for MLA c (latent) and kr (position key)."""

    K = 1
    V = 2
    C = 3
    KR = 4


class CodecId(IntEnum):
    """How a record's rows are coded."""

    RAW = 1
    INT8 = 2
    INT4 = 3
    INT2 = 4
    DICTIONARY = 5
    PRODUCT = 6
    TRELLIS = 7


class Axis(IntEnum):
    """Along what the numbers of one group lie: CHANNEL is one scale a channel for g consecutive tokens."""

    NONE = 0
    CHANNEL = 1
    TOKEN = 2


class GroupFlag(IntFlag):
    """Flags of grouped integers, and of codes over a dictionary."""

    NONE = 0
    SYMMETRIC = 1
    SETS = 2
    BOUNDED = 4


class CodebookForm(IntEnum):
    """What the bytes of a CODEBOOK record are."""

    PRODUCT = 1
    TRELLIS = 2


class KvdictFlag(IntFlag):
    """What of a dictionary a .kvdict file holds beside its atoms."""

    NONE = 0
    MEAN = 1
    METRIC = 2
    PRODUCT = 4
    TRELLIS = 8


class Transform(IntEnum):
    """What was done to the rows before they were coded."""

    NONE = 0
    PRE_ROPE = 1


class DtypeId(IntEnum):
    """The model's 16-bit dtype."""

    BFLOAT16 = 1
    FLOAT16 = 2


class RopeLayout(IntEnum):
    """Which channels rotary position embedding pairs."""

    UNKNOWN = 0
    HALVES = 1
    INTERLEAVED = 2


HEADERS: dict[int, np.dtype[np.void]] = {
    Kind.MODEL: MODEL_HEADER,
    Kind.SEQUENCE: SEQUENCE_HEADER,
    Kind.GROUP: GROUP_HEADER,
    Kind.STEP: STEP_HEADER,
    Kind.DICTIONARY: DICTIONARY_HEADER,
    Kind.DROP: DROP_HEADER,
    Kind.ROWS: ROWS_HEADER,
    Kind.CODEBOOK: CODEBOOK_HEADER,
    Kind.FREED: FREED_HEADER,
    Kind.RETIRED: RETIRED_HEADER,
}

RECORD_ALIGNMENT: dict[int, int] = dict.fromkeys((Kind.GROUP, Kind.DICTIONARY, Kind.CODEBOOK), ALIGNMENT)
LOOSE_ALIGNMENT = 8  # of frames, and of the records that no kernel reads in place


def align(offset: int, to: int) -> int:
    """The least multiple of `to` that is not below `offset`."""
    return -(-offset // to) * to


def frame_magic(generation: int) -> int:
    """Magic of the frames of a block: salted, so that a frame of an earlier life of the block is not one."""
    salted = (FRAME_MAGIC + generation * 0x9E3779B1) & 0xFFFFFFFF
    return salted if salted not in (0, 0xFFFFFFFF) else FRAME_MAGIC
