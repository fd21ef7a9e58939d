"""Dictionaries, product codes and trellis codes from dumps: kvcodec.train."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcodec.bulk.chunks import Progress, no_progress
from kvcodec.bulk.selection import Layers
from kvcodec.bulk.threads import thread_count
from kvcodec.bulk.train_job import TrainJob
from kvcodec.bulk.train_options import DEFAULT_BUDGETS, ProductSettings, TrainOptions, parse_streams
from kvcodec.bulk.train_product import ProductJob
from kvcodec.bulk.train_report import TrainReport
from kvcodec.bulk.train_sources import Held
from kvcodec.dictionary.settings import Settings
from kvcodec.dumps import open_dump
from kvcodec.dumps.names import PAIRS
from kvcodec.errors import SpecError

FilePath = str | os.PathLike[str]
HELD_OUT = 0.1
RIDGE = 0.1


def train_dumps(
    dumps: Sequence[FilePath] | FilePath,
    out: FilePath,
    *,
    codec: str = "dict",
    atoms: int = 1024,
    sparsity: int = 8,
    streams: str | Sequence[str] | None = None,
    layers: Layers = None,
    share: str = "none",
    time: float | None = None,
    epochs: int = 6,
    rope: str = "post",
    rope_base: float | None = None,
    mean: bool = True,
    metric: str = "none",
    ridge: float = RIDGE,
    budget: float | None = None,
    sample: int | None = None,
    context: int | None = None,
    predict: bool = False,
    held_out: float | FilePath | Sequence[FilePath] = HELD_OUT,
    sinks: int = 4,
    seed: int = 0,
    mapping: Sequence[str] = (),
    kv_heads: int | None = None,
    head_dim: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
) -> TrainReport:
    """Train dictionaries, product or trellis codes on K and V of dumps, for each layer and stream, and write a .kvdict
    file.

    codec: "dict", "pq" for product codes, or "tcq" for trellis codes; these two take neither atoms, sparsity, epochs,
    mean, time nor resume.
    atoms: N of each. sparsity: atoms of a vector, in training and of the curve of errors. streams: "k", "v" or "k,v",
    of dumps of latents "c", "kr" or "c,kr"; by default both that the first dump has.
    layers: "0-3,17", all by default. share: "layers" for one dictionary for all layers of a stream, "all" for a single
    one. time: seconds for all of it at most; if they are too few, what comes out hangs on the machine's speed.
    epochs: at most; training stops before if the held-out error no longer falls.
    rope: "pre" for K from before its rotary embedding, from k_pre.L of a dump or turned back by rope_base, or what the
    dump's metadata say of it. mean: take the stream's mean away. metric: "query" to measure errors of K in the
    directions that queries look at, cov / trace * dim + ridge * I; V stays plain, but of pq and tcq it is measured at
    the output projection where dumps have o_cov.L. "gradient", of pq and tcq: by what errors cost the model's loss,
    from k_grad.L (k_grad_pre.L) and v_grad.L of those dumps that have them.
    budget: of pq and tcq, bytes of a vector (32, 98): with the metric "gradient" on average over all streams, else of
    each.
    context: for that average, tokens of a text: a layer counts by those that it holds then, no more than its sliding
    window. sample: of pq and tcq, vectors of a stream that are looked at, most. predict: of codec pq, predict V from
    the codes of the K of its token, and code the rest.
    held_out: the share of each dump's tokens, at its end, that errors are measured on, or dumps for that. sinks: first
    tokens of each dump that are left out. seed: of all that is drawn by lot.
    mapping, kv_heads, head_dim: as open_dump takes them. threads: dictionaries that are trained at once, as many as
    there are cores by default; the file does not depend on it. progress: called with (done, total), in thousandths of
    a dictionary. tell: called with a line for each epoch but the last, or each sample, and for all that is done.

    Memory: of each thread what kvcodec.dictionary.settings.memory_bytes says, which does not grow with the dumps: they
    are read in blocks of 64 tokens, in an order by lot, in each epoch again. Of pq and tcq a thread holds its sample,
    in about ten copies of float32, and all share some matrices of dim x dim for each stream.
    A failure or an interrupt keeps what was done, in OUT.partial. resume: go on there, or begin; the file is, bit for
    bit, as without an interruption.

    Raises what open_dump does; ShapeError, NonFiniteError; SpecError, also if such a directory is there and neither
    `resume` nor `overwrite` is asked for; LogExists if `out` is there and `overwrite` is not asked for.
    """
    paths = [Path(p) for p in ([dumps] if isinstance(dumps, str | os.PathLike) else dumps)]
    held, fraction = _split_held(held_out)
    if not paths:
        raise SpecError("no dump to train on")
    if time is not None and not time > 0:
        raise SpecError(f"time is {time}, want seconds above 0")
    wanted = None if streams is None else parse_streams(streams)
    options = TrainOptions(wanted or PAIRS[0], layers, share, rope, rope_base, metric, ridge, fraction, sinks, codec)
    settings = _take_settings(
        options, seed, {"atoms": atoms, "sparsity": sparsity, "epochs": epochs, "mean": mean},
        {"budget": budget, "sample": sample, "context": context, "predict": predict or None}, time=time, resume=resume,
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        opened, opened_held = (
            [stack.enter_context(open_dump(p, mapping=mapping, kv_heads=kv_heads, head_dim=head_dim)) for p in some]
            for some in (paths, held)
        )
        options = options if wanted else replace(options, streams=opened[0].streams)
        job = Path(out), opened, Held(opened_held, fraction), options
        progress, tell = progress or no_progress, tell or (lambda _line: None)
        if isinstance(settings, ProductSettings):
            return ProductJob(
                *job, settings, thread_count(threads), overwrite=overwrite, progress=progress, tell=tell
            ).run()
        return TrainJob(
            *job, settings, thread_count(threads), time,
            overwrite=overwrite, resume=resume, progress=progress, tell=tell,
        ).run()  # fmt: skip


def _take_settings(
    options: TrainOptions, seed: int, of_dict: dict[str, Any], of_pq: dict[str, Any], *, time: float | None,
    resume: bool,
) -> Settings | ProductSettings:  # fmt: skip
    """Those of the codec. Raises SpecError for one that is the other's."""
    if options.codec == "dict":
        if given := [name for name, value in of_pq.items() if value is not None]:
            raise SpecError(f"{given[0]} is for codec pq or tcq")
        return Settings(**of_dict, seed=seed)
    if given := [name for name, value in of_dict.items() if value != getattr(Settings(), name)]:
        raise SpecError(f"{given[0]} is for dictionaries, not for codec {options.codec}")
    if time is not None or resume:
        what = "resume: its training keeps nothing that one could go on with" if resume else "time"
        raise SpecError(f"codec {options.codec} takes no {what}; it is a matter of minutes")
    if of_pq["context"] is not None and options.metric != "gradient":
        raise SpecError("context is for metric gradient: by others each stream has the budget")
    chosen = {"budget": DEFAULT_BUDGETS[options.codec]} | {n: v for n, v in of_pq.items() if v is not None}
    return ProductSettings(**chosen, seed=seed, codec=options.codec)


def _split_held(asked: float | FilePath | Sequence[FilePath]) -> tuple[list[Path], float]:
    """Dumps, and a fraction that counts where there is none. Raises SpecError."""
    if isinstance(asked, int | float):
        return [], float(asked)
    paths = [Path(p) for p in ([asked] if isinstance(asked, str | os.PathLike) else asked)]
    if not paths:
        raise SpecError("no dump is held out")
    return paths, HELD_OUT
