"""A log back into dumps: kvcodec.decode."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kvcodec.bulk.chunks import Progress
from kvcodec.bulk.decode_job import DecodeJob
from kvcodec.bulk.decode_report import DecodeReport
from kvcodec.bulk.selection import Layers, Tokens
from kvcodec.bulk.sources import pick_sequence
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.dumps import FORMATS
from kvcodec.errors import DumpError
from kvcodec.log.recover import Recovery

FilePath = str | os.PathLike[str]
_NAME_BYTES = 200
_KEPT = " !#$&'()+,;=@[]^{}"  # beside letters, digits and _.-~; in names of files as they are


def decode_log(
    log: FilePath,
    dump: FilePath,
    *,
    sequence: str | None = None,
    dtype: str | None = None,
    layers: Layers = None,
    tokens: Tokens = None,
    format: str | None = None,  # noqa: A002  # what it is called everywhere
    overwrite: bool = False,
    recovery: str | Recovery = Recovery.TORN_TAIL,
    threads: int | None = None,
    progress: Progress | None = None,
    dictionary: FilePath | DictionarySet | None = None,
) -> DecodeReport:
    """Write a sequence of a log as a dump: safetensors, .npz or .npy.

    safetensors and .npz: tensors `k.L`, `v.L` (tokens, heads, dim) for each layer L; metadata kv_heads and head_dim
    where all layers agree, model, sequence, source, sliding_window and global_layers, first_token if it is not 0.
    .npy: one array (layers, 2, heads, tokens, dim) of layers that are all alike, and no metadata.
    format: by the extension of `dump`, safetensors for others. sequence: the only one by default. layers, tokens:
    "0-3,17" and "A:B", all by default. dtype: "bfloat16", "float16" or "float32", the model's by default; numpy knows
    no bfloat16 and calls it |V2.
    recovery: as kvcodec.open takes it; with skip-damaged, tokens that some layer has lost are left out. So are, unless
    `tokens` are asked for, those that a layer forgot because its sliding window went on. An int64 tensor `positions`
    (tokens,) then says which ones are there.
    threads: for layers in parallel, as many as there are cores by default; the dump does not depend on it.
    progress: called with (done, total) in tokens times layers. Memory: 32 MiB of rows and as much again while they
    are decoded. The file appears under its name whole or not at all.
    dictionary: a .kvdict file or a set, for a log that only names its set.

    Raises UnknownSequence with the names that there are, FormatError, SpecError, DumpError for an existing file
    without `overwrite`, NonFiniteError for a number beyond float16.
    """
    job = DecodeJob(Path(log), dtype, layers, tokens, format, overwrite, recovery, threads, progress, dictionary)
    with job.open() as store:
        return job.run(store, pick_sequence(store, sequence).name, Path(dump))


def decode_all(log: FilePath, directory: FilePath, **options: Any) -> tuple[DecodeReport, ...]:
    """Write every sequence of a log as a dump in `directory`, which is made if it isn't there.

    options: those of decode_log but `sequence`; format: "safetensors" by default. What in a sequence's name can't
    stand in that of a file is written as %XX, and a very long name is cut and given a hash. Files appear one by one,
    each whole or not at all. Raises as decode_log does; DumpError, before anything is written, if a file exists
    without `overwrite`.
    """
    job = DecodeJob(Path(log), **options)
    folder, suffix = Path(directory), job.format or FORMATS[0]
    with job.open() as store:
        names = store.sequences()
        targets = [folder / f"{file_stem(name)}.{suffix}" for name in names]
        for target in targets:
            if os.path.lexists(target) and not job.overwrite:
                raise DumpError(f"{target}: exists")
        folder.mkdir(exist_ok=True)
        return tuple(
            job.run(store, name, target, share=(n, len(names)))
            for n, (name, target) in enumerate(zip(names, targets, strict=True))
        )


def file_stem(name: str) -> str:
    """The name of a sequence as that of a file, another for every name."""
    stem = quote(name, safe=_KEPT)
    if stem.startswith("."):
        stem = "%2E" + stem[1:]
    if len(stem) > _NAME_BYTES:
        cut = f"%-{hashlib.sha256(name.encode()).hexdigest()}"  # no name that is quoted has %-
        stem = stem[: _NAME_BYTES - len(cut)] + cut
    return stem
