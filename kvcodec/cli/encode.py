"""kvcodec encode"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvcodec.cli import options
from kvcodec.cli.encoding import encode_files, print_encoded
from kvcodec.cli.failures import reported

EXAMPLE = "Example: kvcodec encode dump.safetensors cache.kvlog --k int4/channel/g32 --residual 64"


def command(
    dumps: Annotated[
        list[Path],
        typer.Argument(
            metavar="DUMP...", help="safetensors, .npz or .npy files with K and V of every layer, or latents."
        ),
    ],
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The log to make.")],
    k: Annotated[str | None, typer.Option(help="Codec of K. [default: int4/channel/g64]", show_default=False)] = None,
    v: Annotated[str | None, typer.Option(help="Codec of V. [default: int4/token/g64]", show_default=False)] = None,
    c: Annotated[
        str | None, typer.Option(help="Codec of latents. [default: int4/channel/g64]", show_default=False)
    ] = None,
    kr: Annotated[
        str | None, typer.Option(help="Codec of latents' position keys. [default: raw]", show_default=False)
    ] = None,
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
        Path | None, typer.Option(help="A .kvdict file (kvcodec train) for codecs such as dict/s8/c6/ef, pq and tcq.")
    ] = None,
    pursuit: options.Pursuit = None,
    max_error: Annotated[
        float | None,
        typer.Option(help="Relative error that no vector over a dictionary exceeds: dict/s24 becomes dict/s24/max0.3."),
    ] = None,
    grow: Annotated[
        int, typer.Option(min=0, help="Atoms that dictionaries learn at a time from what they code badly; 0: none.")
    ] = 0,
    growths: Annotated[int, typer.Option(min=1, max=64, help="How often they do so at most.")] = 16,
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
    settings: dict[str, Any] = {
        "k": k, "v": v, "c": c, "kr": kr, "residual": residual, "sinks": sinks, "device": device,
        "mapping": mapping or (), "spec": spec, "dictionary": dictionary, "pursuit": pursuit, "max_error": max_error,
        "grow": grow, "growths": growths, "model_file": model_file, "shard": shard, "kv_heads": heads,
        "head_dim": head_dim, "dtype": dtype, "layers": layers, "tokens": tokens, "overwrite": force, "append": append,
        "resume": resume, "threads": threads,
    }  # fmt: skip
    with reported(dump=about, log=log):
        reports = encode_files(dumps, log, shown=not (json or quiet), sequence=sequence, **settings)
    print_encoded(reports, log, json=json, quiet=quiet)
