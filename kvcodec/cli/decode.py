"""kvcodec decode"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.output import print_json, print_line, size
from kvcodec.cli.progress import progress_bar
from kvcodec.errors import SpecError

if TYPE_CHECKING:
    from kvcodec.bulk.decode_report import DecodeReport

EXAMPLE = "Example: kvcodec decode cache.kvlog dump.safetensors --sequence chat-1"


def command(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The log.")],
    dump: Annotated[
        Path,
        typer.Argument(metavar="DUMP", help="The .safetensors, .npz or .npy file to make; with --all a directory."),
    ],
    sequence: options.Sequence = None,
    every: Annotated[bool, typer.Option("--all", help="Decode every sequence, each to a file of its name.")] = False,
    format_: Annotated[
        str | None, typer.Option("--format", help="safetensors, npz or npy. [default: by DUMP's extension]")
    ] = None,
    layers: options.Layers = None,
    tokens: options.Tokens = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16, float16 or float32. [default: the model's]")] = None,
    recovery: Annotated[str, typer.Option(help="torn-tail, absolute, point-in-time or skip-damaged.")] = "torn-tail",
    dictionary: options.Dictionary = None,
    threads: options.Threads = None,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Decode a sequence of a log, or all of them. Tensors k.L and v.L (tokens, heads, dim) for each layer L."""
    with reported(dump=dump, log=log), progress_bar("decode", wanted=not (json or quiet)) as progress:
        from kvcodec.bulk.decode import decode_all, decode_log

        settings: dict[str, Any] = {
            "dtype": dtype, "layers": layers, "tokens": tokens, "format": format_, "overwrite": force,
            "recovery": recovery, "threads": threads, "progress": progress, "dictionary": dictionary,
        }  # fmt: skip
        if every and sequence is not None:
            raise SpecError("--all and --sequence exclude each other")
        if every:
            reports = decode_all(log, dump, **settings)
        else:
            reports = (decode_log(log, dump, sequence=sequence, **settings),)
    if json and every:
        print_json({"log": str(log), "dumps": [report.as_dict() for report in reports]})
    elif json:
        print_json(reports[0].as_dict())
    elif not quiet:
        for report in reports:
            _print_report(report)


def _print_report(report: DecodeReport) -> None:
    what = f"{report.tokens} tokens, {report.layers} layers, {report.dtype}"
    print_line(f"{report.dump}: sequence {report.sequence}, {what}, {size(report.dump_bytes)}")
    if report.forgotten:
        print_line(f"left out: {report.forgotten} tokens before token {report.first}, behind a layer's sliding window")
    for first, end in report.lost:
        print_line(f"left out: tokens {first} to {end - 1}, which some layer has lost")
