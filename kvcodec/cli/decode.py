"""kvcodec decode"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.output import print_json, print_line, size
from kvcodec.cli.progress import progress_bar

EXAMPLE = "Example: kvcodec decode cache.kvlog dump.safetensors --sequence chat-1"


def command(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The log.")],
    dump: Annotated[Path, typer.Argument(metavar="DUMP", help="The safetensors file to make.")],
    sequence: options.Sequence = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16, float16 or float32. [default: the model's]")] = None,
    recovery: Annotated[str, typer.Option(help="torn-tail, absolute, point-in-time or skip-damaged.")] = "torn-tail",
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Decode a sequence of a log to safetensors. Tensors k.L and v.L (tokens, heads, dim) for each layer L."""
    with reported(dump=dump, log=log), progress_bar("decode", wanted=not (json or quiet)) as progress:
        from kvcodec.bulk.decode import decode_log

        report = decode_log(
            log, dump, sequence=sequence, dtype=dtype, overwrite=force, recovery=recovery, progress=progress
        )
    if json:
        print_json(report.as_dict())
    elif not quiet:
        what = f"{report.tokens} tokens, {report.layers} layers, {report.dtype}"
        print_line(f"{report.dump}: sequence {report.sequence}, {what}, {size(report.dump_bytes)}")
        for first, end in report.lost:
            print_line(f"left out: tokens {first} to {end - 1}, which some layer has lost")
