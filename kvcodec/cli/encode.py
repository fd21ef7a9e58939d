"""kvcodec encode"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.output import number, print_json, print_line, ratio, size
from kvcodec.cli.progress import progress_bar
from kvcodec.cli.tables import print_table
from kvcodec.errors import SpecError

if TYPE_CHECKING:
    from kvcodec.bulk.encode_report import EncodeReport

EXAMPLE = "Example: kvcodec encode dump.safetensors cache.kvlog --k int4/channel/g32 --residual 64"


def command(
    dumps: Annotated[
        list[Path],
        typer.Argument(metavar="DUMP...", help="safetensors, .npz or .npy files with K and V of every layer."),
    ],
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The log to make.")],
    k: Annotated[str | None, typer.Option(help="Codec of K. [default: int4/channel/g64]", show_default=False)] = None,
    v: Annotated[str | None, typer.Option(help="Codec of V. [default: int4/token/g64]", show_default=False)] = None,
    residual: Annotated[
        int | None, typer.Option(min=0, help="Newest tokens kept raw. [default: 128]", show_default=False)
    ] = None,
    sinks: Annotated[
        int | None, typer.Option(min=0, help="First tokens kept raw. [default: 4]", show_default=False)
    ] = None,
    spec: Annotated[
        Path | None, typer.Option(help="A TOML file with codecs and windows, by layer where it says so.")
    ] = None,
    dictionary: Annotated[
        Path | None, typer.Option(help="A .kvdict file (kvcodec train) for codecs such as dict/s8/c6/ef.")
    ] = None,
    max_error: Annotated[
        float | None,
        typer.Option(help="Relative error that no vector over a dictionary exceeds: dict/s24 becomes dict/s24/max0.3."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="tlc, slc, mlc, qlc, nor, or page=...,unit=...,block=...,cycles=...")
    ] = "tlc",
    sequence: Annotated[str | None, typer.Option(help="Name of the sequence. [default: the dump's stem]")] = None,
    mapping: options.Map = None,
    heads: options.Heads = None,
    head_dim: options.HeadDim = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16 or float16, of a float32 dump.")] = None,
    model_file: Annotated[
        str | None,
        typer.Option(help="config.json, .safetensors or .gguf of the model, or the fingerprint that is kept of it."),
    ] = None,
    shard: Annotated[str | None, typer.Option(help="Which tensor-parallel part the dump is, such as 0/8.")] = None,
    layers: options.Layers = None,
    tokens: options.Tokens = None,
    append: Annotated[bool, typer.Option("--append", help="Add sequences to an existing log.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the same command was interrupted, or begin.")
    ] = False,
    threads: options.Threads = None,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Encode dumps as sequences of a log, each named as its file. The log is new, or with --append an existing one."""
    about = dumps[0] if len(dumps) == 1 else None
    with reported(dump=about, log=log), progress_bar("encode", wanted=not (json or quiet)) as progress:
        from kvcodec.bulk.encode import encode_dump, encode_dumps

        settings: dict[str, Any] = {
            "k": k, "v": v, "residual": residual, "sinks": sinks, "device": device, "mapping": mapping or (),
            "spec": spec, "dictionary": dictionary, "max_error": max_error, "model_file": model_file, "shard": shard,
            "kv_heads": heads, "head_dim": head_dim, "dtype": dtype, "layers": layers, "tokens": tokens,
            "overwrite": force, "append": append, "resume": resume, "threads": threads, "progress": progress,
        }  # fmt: skip
        if len(dumps) == 1:
            reports: tuple[EncodeReport, ...] = (encode_dump(dumps[0], log, sequence=sequence, **settings),)
        elif sequence is None:
            reports = encode_dumps(dumps, log, **settings)
        else:
            raise SpecError("--sequence names one dump's sequence, and there are several dumps")
    if json and len(reports) == 1:
        print_json(reports[0].as_dict())
    elif json:
        sequences = [report.own_dict() for report in reports]
        print_json({"log": str(log), "sequences": sequences, "stats": reports[0].stats.as_dict()})
    elif not quiet:
        _print_reports(reports)


def _print_reports(reports: Sequence[EncodeReport]) -> None:
    for report in reports:
        print_line(f"{report.log}: sequence {report.sequence}, {report.tokens} tokens, {report.layers} layers")
        if report.resumed:
            print_line(f"{report.resumed} of the tokens were there already")
    stats = reports[0].stats
    for codecs in dict.fromkeys(report.own.codecs for report in reports):
        print_line(f"coded as {' '.join(codecs)}: {number(stats.bytes_per_number, '.4f')} bytes a number")
    if len(stats.sequences) > 1:
        print_line(f"the whole log, {len(stats.sequences)} sequences:")
    sizes = (
        ("16-bit rows", stats.raw16_bytes, 1.0),
        ("codes + metadata of coded groups", stats.coded_bytes, stats.coded_ratio),
        ("programmed, raw rows and all", stats.programmed_bytes, stats.ratio(stats.programmed_bytes)),
        ("file", stats.file_bytes, stats.ratio(stats.file_bytes)),
    )
    print_table(("", "size", "ratio"), [(name, size(count), ratio(times)) for name, count, times in sizes])
