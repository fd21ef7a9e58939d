"""Dumps into a log: kvcodec.encode."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvcodec.bulk.chunks import Progress
from kvcodec.bulk.dump_model import Identity
from kvcodec.bulk.encode_job import EncodeJob, Named
from kvcodec.bulk.encode_report import EncodeReport
from kvcodec.bulk.selection import Layers, Tokens
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.errors import SpecError
from kvcodec.flash.geometry import Geometry
from kvcodec.spec import CodecSpec
from kvcodec.store.coding import Coding
from kvcodec.store.policy import check_name

FilePath = str | os.PathLike[str]
_CODING = (
    "k", "v", "c", "kr", "residual", "sinks", "spec", "dictionary", "pursuit", "max_error", "grow", "growths",
)  # fmt: skip


def encode_dump(
    dump: FilePath,
    log: FilePath,
    *,
    k: str | CodecSpec | None = None,
    v: str | CodecSpec | None = None,
    c: str | CodecSpec | None = None,
    kr: str | CodecSpec | None = None,
    residual: int | Mapping[str, int] | None = None,
    sinks: int | Mapping[str, int] | None = None,
    spec: FilePath | Coding | None = None,
    dictionary: FilePath | DictionarySet | None = None,
    pursuit: str | None = None,
    max_error: float | None = None,
    grow: int = 0,
    growths: int = 16,
    device: str | Geometry = "tlc",
    sequence: str | None = None,
    mapping: Sequence[str] = (),
    kv_heads: int | None = None,
    head_dim: int | None = None,
    dtype: str | None = None,
    model_file: FilePath | None = None,
    shard: str | None = None,
    layers: Layers = None,
    tokens: Tokens = None,
    overwrite: bool = False,
    append: bool = False,
    resume: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> EncodeReport:
    """Encode the K and V of a dump, or its latents C and position keys KR, as one sequence of a log.

    k, v, c, kr, residual, sinks, spec, dictionary, pursuit, max_error, grow, growths, device: as kvcodec.open takes
    them; sets grow at most once in 256 tokens. sequence: its name, by default the dump's stem. mapping, kv_heads,
    head_dim: as open_dump takes them. dtype: what a float32
    dump is rounded to, bfloat16 by default. model_file: a config.json, .safetensors or .gguf file of the model, whose
    fingerprint the log keeps, or that fingerprint in 64 hexadecimal digits; shard: "0/8" of a tensor-parallel dump.
    layers, tokens: "0-3,17" (numbers stay as they are) and "A:B", all by default.
    append: add the sequence to an existing log, whose device and, where not given, codecs stay. threads: for coding
    layers in parallel, by default as many as there are cores; the log does not depend on it.
    progress: called with (done, total) in tokens times layers. Memory: 32 MiB of rows and about four times that for
    their codes, and the open windows.

    A new log appears under its name whole or not at all. With `append`, what can be refused is refused before a byte
    is written; a kill or a full disk then leaves the sequence with the tokens that all layers had by then.
    resume: go on where an encode of the same dump with the same options was interrupted, or begin; with `append`, go
    on with a sequence that is shorter than the dump. What decoding gives is, bit for bit, as without an interruption.
    A failure then keeps what was done. How another dump is noticed: see kvcodec.bulk.resume. Not with `grow`: what a
    session has seen ends with it.

    Raises what open_dump and kvcodec.open raise: DumpError, DtypeError, SpecError, NonFiniteError, LogExists,
    DeviceBusy, IdentityMismatch, FormatError, NoSpace. SpecError if the log has that sequence already, or with
    `resume` one of another dump.
    """
    coding = {
        "k": k, "v": v, "c": c, "kr": kr, "residual": residual, "sinks": sinks, "spec": spec, "dictionary": dictionary,
        "pursuit": pursuit, "max_error": max_error, "grow": grow, "growths": growths,
    }  # fmt: skip
    job = EncodeJob(
        Path(log), coding, device, tuple(mapping), kv_heads, head_dim, dtype, layers, tokens, overwrite, append, resume,
        threads, progress, Identity.of(model_file, shard),
    )  # fmt: skip
    return job.run([Named(Path(dump), Path(dump).stem if sequence is None else sequence)])[0]


def encode_dumps(dumps: Sequence[FilePath], log: FilePath, **options: Any) -> tuple[EncodeReport, ...]:
    """Encode several dumps of one model, each as a sequence of a log that is named as the dump's stem.

    options: those of encode_dump but `sequence`. A new log appears with all sequences or not at all; with `append`,
    all dumps are looked at before a byte is written. Raises as encode_dump does, and SpecError if two dumps have one
    stem.
    """
    named = [Named(Path(dump), Path(dump).stem) for dump in dumps]
    if not named:
        raise SpecError("no dump to encode")
    known: dict[str, Path] = {}
    for one in named:
        check_name(one.sequence)
        if one.sequence in known:
            raise SpecError(f"{known[one.sequence]} and {one.dump} would both be sequence {one.sequence!r}: rename one")
        known[one.sequence] = one.dump
    coding = {name: options.pop(name) for name in _CODING if name in options}
    identity = Identity.of(options.pop("model_file", None), options.pop("shard", None))
    mapping = tuple(options.pop("mapping", ()))
    return EncodeJob(Path(log), coding, mapping=mapping, identity=identity, **options).run(named)
