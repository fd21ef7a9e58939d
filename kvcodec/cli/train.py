"""kvcodec train"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.output import number, print_json, print_line, size
from kvcodec.cli.progress import progress_bar
from kvcodec.cli.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcodec.bulk.train_report import ProductUnit, TrainReport

EXAMPLE = "Example: kvcodec train chat.safetensors code.safetensors -o model.kvdict --atoms 2048 --sparsity 16"


def command(
    dumps: Annotated[
        list[Path], typer.Argument(metavar="DUMP...", help="Dumps with K and V, or latents, of every layer.")
    ],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The .kvdict file to make.")],
    codec: Annotated[str, typer.Option(help="dict: dictionaries; pq: product codes; tcq: trellis codes.")] = "dict",
    atoms: Annotated[int, typer.Option(min=1, help="Atoms of each dictionary.")] = 1024,
    sparsity: Annotated[int, typer.Option(min=1, help="Atoms of a vector.")] = 8,
    streams: Annotated[
        str | None, typer.Option(help="k, v or k,v; of latents c, kr or c,kr. [default: both that are there]")
    ] = None,
    layers: options.Layers = None,
    share: Annotated[
        str, typer.Option(help="none: a dictionary for each layer and stream; layers: for each stream; all: one.")
    ] = "none",
    time: Annotated[
        float | None, typer.Option(help="Seconds for all of it; the result then hangs on the machine's speed.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the tokens at most.")] = 6,
    rope: Annotated[str, typer.Option(help="post, or pre: K from before its rotary embedding.")] = "post",
    rope_base: Annotated[
        float | None,
        typer.Option(help="Base of the rotary embedding. [default: what the dump says]", show_default=False),
    ] = None,
    mean: Annotated[bool, typer.Option("--mean/--no-mean", help="Take the mean of each stream away.")] = True,
    metric: Annotated[
        str,
        typer.Option(
            help="none; query: errors of K as queries see them, of pq, tcq V as the output projection does; of pq, "
            "tcq gradient: by what they cost the model's loss."
        ),
    ] = "none",
    ridge: Annotated[float, typer.Option(help="How much of the plain metric is in that of the queries.")] = 0.1,
    budget: Annotated[
        float | None,
        typer.Option(
            help="Of pq, tcq: bytes of a vector, with --metric gradient on average over all. [default: 32, 98]"
        ),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(help="Of pq, tcq: vectors of a stream that are looked at, most. [default: 32768]")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(help="Of pq, tcq: tokens of a text, by which layers count in the budget. [default: alike]"),
    ] = None,
    predict: Annotated[
        bool, typer.Option("--predict", help="Of pq: predict V from the codes of K, and code what is left.")
    ] = False,
    held_out: Annotated[
        list[str] | None,
        typer.Option(help="Share of each dump, at its end, to measure errors on, or a dump for that. [default: 0.1]"),
    ] = None,
    sinks: Annotated[int, typer.Option(min=0, help="First tokens of each dump that are left out.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn by lot.")] = 0,
    mapping: options.Map = None,
    heads: options.Heads = None,
    head_dim: options.HeadDim = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the same command was interrupted, or begin.")
    ] = False,
    threads: options.Threads = None,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train dictionaries, product codes or trellis codes, for the K and V of a model on dumps of it.

    An interrupt keeps the dictionaries that are done, and of other codes nothing.
    """
    silent = json or quiet
    about = dumps[0] if len(dumps) == 1 else None
    with reported(dump=about, log=out), progress_bar("train", wanted=not silent) as progress:
        from kvcodec.bulk.train import train_dumps

        report = train_dumps(
            dumps, out, codec=codec, atoms=atoms, sparsity=sparsity, streams=streams, layers=layers, share=share,
            time=time, epochs=epochs, rope=rope, rope_base=rope_base, mean=mean, metric=metric, ridge=ridge,
            budget=budget, sample=sample, context=context, predict=predict,
            held_out=_held_out(held_out), sinks=sinks, seed=seed, mapping=mapping or (), kv_heads=heads,
            head_dim=head_dim, overwrite=force, resume=resume, threads=threads, progress=progress,
            tell=_tell if not silent and sys.stderr.isatty() else None,
        )  # fmt: skip
    if json:
        print_json(report.as_dict())
    elif not quiet:
        _print_report(report)


def _held_out(asked: list[str] | None) -> float | Sequence[str]:
    """One number is a share, anything else a dump."""
    if asked is None or not asked:
        return 0.1
    if len(asked) == 1:
        try:
            return float(asked[0])
        except ValueError:
            pass
    return asked


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _print_report(report: TrainReport) -> None:
    what = f"{len(report.products or report.units)} {report.trained_as}"
    what += f", {report.bytes_a_vector:.2f} bytes a vector" if report.products else ""
    print_line(f"{report.out}: {what}, {size(report.nbytes)}, {report.hash}")
    print_line(f"trained on {report.tokens} tokens in {report.seconds:.1f} s, measured on {report.held_out} others")
    if report.products:
        _print_products(report.products)
    else:
        _print_dictionaries(report)


def _print_products(units: Sequence[ProductUnit]) -> None:
    rows = [
        (
            unit.name, str(unit.about["bytes"]), number(unit.about["bits_a_number"], ".3f"),
            str(unit.about["components"]), number(unit.about["error"], ".4f"), number(unit.about["in_metric"], ".4f"),
        )
        for unit in units
    ]  # fmt: skip
    print_table(("", "bytes", "bits", "components", "error", "in metric"), rows)
    print_line(
        "bytes: of a vector; bits: of a number; errors: of held-out vectors, plain, and in the metric without mean"
    )


def _print_dictionaries(report: TrainReport) -> None:
    if report.resumed:
        print_line(f"{report.resumed} of the dictionaries were there already")
    rows = [
        (
            unit.name, str(unit.dictionary.size), number(unit.about["curve"][0], ".4f"),
            number(unit.about["curve"][-1], ".4f"), number(unit.about["error"], ".4f"),
            str(len(unit.about["curve"]) - 1), unit.about["stopped"],
        )
        for unit in report.units
    ]  # fmt: skip
    print_table(("", "atoms", "first", "last", "error", "epochs", "stopped by"), rows)
    print_line("first, last: of held-out vectors, in the metric of the training; error: plain, of the atoms as stored")
