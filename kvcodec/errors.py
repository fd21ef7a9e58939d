"""The exception tree. Every failure that kvcodec foresees is one of these; nothing else is raised on purpose.

A refused call leaves log and memory exactly as they were.
"""

from __future__ import annotations

import errno


class KvcodecError(Exception):
    """Base of every error that kvcodec raises."""


class SpecError(KvcodecError, ValueError):
    """A codec spec, geometry or option that cannot be honoured."""


class ShapeError(KvcodecError, ValueError):
    """An array whose shape is not the one that the model declares."""


class DtypeError(KvcodecError, TypeError):
    """An array whose dtype is not bfloat16, float16 or float32, or not the model's."""


class NonFiniteError(KvcodecError, ValueError):
    """A NaN or an infinity in the rows to be coded. Nothing was written.

    Attributes: layer, stream, token, head, channel (layer is None for an array that belongs to no layer).
    """

    def __init__(self, layer: int | None, stream: str, token: int, head: int, channel: int) -> None:
        self.layer, self.stream, self.token, self.head, self.channel = layer, stream, token, head, channel
        where = "" if layer is None else f"layer {layer}, "
        super().__init__(f"NaN or Inf at {where}stream {stream}, token {token}, head {head}, channel {channel}")


class UnknownSequence(KvcodecError, KeyError):
    """The log holds no sequence of that name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class StoreClosed(KvcodecError, RuntimeError):
    """The store was closed, is read-only for this call, or belongs to another process (use after fork)."""


class DumpError(KvcodecError, ValueError):
    """A dump file of somebody else's format that cannot be understood."""


class FormatError(KvcodecError, ValueError):
    """Bytes that are not a kvcodec log, or no longer."""


class BadMagic(FormatError):
    """The file does not begin as a kvcodec log does."""


class UnsupportedVersion(FormatError):
    """A version, a mandatory type or a reserved field that this reader does not know."""


class TruncatedLog(FormatError):
    """The log ends before something that it must contain."""


class CorruptRecord(FormatError):
    """Bytes whose checksum or fields are wrong.

    Attributes: offset (bytes from the start of the file), why.
    """

    def __init__(self, offset: int, why: str) -> None:
        self.offset, self.why = offset, why
        super().__init__(f"at byte {offset}: {why}")


class Uncorrectable(CorruptRecord):
    """More bits of a program unit came back wrong than its error correction can put right, or it can't be read at all.

    Attributes: block, unit.
    """

    def __init__(self, offset: int, block: int, unit: int, why: str) -> None:
        self.block, self.unit = block, unit
        super().__init__(offset, f"unit {unit} of block {block}: {why}")


class BlockErased(CorruptRecord):
    """The erase block that a record lay in was erased; a reader that follows the log finds the record's copy."""


class IdentityMismatch(FormatError):
    """The log belongs to another model, or to another shard of it, than the caller's."""


class MissingDictionary(FormatError):
    """Records are coded over a dictionary, or by other codes, that neither the log nor the caller has.

    Attributes: basis, the 16 bytes that name the set.
    """

    def __init__(self, basis: bytes, message: str) -> None:
        self.basis = basis
        super().__init__(message)


class DeviceError(KvcodecError, OSError):
    """The emulated device, or the file beneath it, refused an operation."""


class NoSpace(DeviceError):
    """No erased block is left, or the disk beneath is full. Nothing was written."""


class NotErased(DeviceError):
    """A program unit was to be programmed twice, or out of ascending order."""


class WornOut(NoSpace):
    """No erased block is left, of a device of which blocks had to be retired. The log stays readable."""


class ProgramFailed(DeviceError):
    """A program unit did not take what was to be programmed: its block is to be retired. Those before it are good.

    Attributes: block, unit.
    """

    def __init__(self, block: int, unit: int, path: str) -> None:
        self.block, self.unit = block, unit
        super().__init__(errno.EIO, f"unit {unit} of block {block} could not be programmed", path)


class EraseFailed(DeviceError):
    """A block did not erase: it is to be retired."""


class LogExists(DeviceError, FileExistsError):
    """A new log would replace an existing file, and overwrite was not asked for."""


class DeviceBusy(DeviceError):
    """Another process writes to this log."""
