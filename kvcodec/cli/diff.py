"""kvcodec diff"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.output import number, print_json, print_line, print_table
from kvcodec.cli.progress import progress_bar
from kvcodec.cli.trying import run_trial
from kvcodec.errors import SpecError

if TYPE_CHECKING:
    from kvcodec.bulk.comparison import Comparison
    from kvcodec.measure.error import RowError

EXAMPLE = (
    "Example: kvcodec diff dump.safetensors cache.kvlog --max-error 0.1, "
    "or kvcodec diff dump.safetensors --dictionary model.kvdict"
)


def command(
    dump: Annotated[Path, typer.Argument(metavar="DUMP", help="The dump with the original rows.")],
    other: Annotated[
        Path | None,
        typer.Argument(metavar="OTHER", help="A log or another dump; its content tells which. Without: see --codec."),
    ] = None,
    codecs: Annotated[
        list[str] | None,
        typer.Option(
            "--codec",
            help="Instead of OTHER, a codec to try on the dump's K and V, or 'article', the 18-byte coder of an "
            "article; may be repeated. [default: article and dict/s8/c6/ef]",
        ),
    ] = None,
    dictionary: Annotated[
        Path | None, typer.Option(help="A .kvdict file (kvcodec train) that dict, pq and tcq codecs are tried over.")
    ] = None,
    pursuits: Annotated[
        list[str] | None,
        typer.Option("--pursuit", help="omp, ormp or mp, for these; may be repeated. [default: all three]"),
    ] = None,
    layers: Annotated[
        str | None, typer.Option("--layers", help="Layers that codecs are tried on, such as 0-3,17. [default: all]")
    ] = None,
    max_error: Annotated[
        float | None,
        typer.Option(min=0, help="Exit with 1 if the relative error of K or V of any layer is above this."),
    ] = None,
    sequence: options.Sequence = None,
    mapping: options.Map = None,
    other_mapping: Annotated[
        list[str] | None, typer.Option("--map-other", help="As --map, for the other dump.")
    ] = None,
    heads: options.Heads = None,
    head_dim: options.HeadDim = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare a log or a dump with the original dump, or codecs side by side. Rows, and attention if it has queries."""
    about: dict[str, Any] = {"mapping": mapping or (), "kv_heads": heads, "head_dim": head_dim}
    if other is None:
        with reported(dump=dump):
            if max_error is not None or sequence is not None or other_mapping:
                raise SpecError("--max-error, --sequence and --map-other need OTHER, a log or a dump")
        run_trial(dump, codecs, dictionary, pursuits, layers, json=json, quiet=quiet, **about)
        return
    with reported(dump=dump, log=other), progress_bar("diff", wanted=not (json or quiet)) as progress:
        from kvcodec.bulk.compare import compare

        if codecs or dictionary or pursuits or layers:
            raise SpecError("--codec, --dictionary, --pursuit and --layers try codecs: leave OTHER out")
        result = compare(dump, other, sequence=sequence, other_mapping=other_mapping or (), progress=progress, **about)
    raise typer.Exit(1 if _print_result(result, max_error, json=json, quiet=quiet) else 0)


def _print_result(result: Comparison, max_error: float | None, *, json: bool, quiet: bool) -> bool:
    """Whether the errors are too large."""
    bad = max_error is not None and result.largest_relative > max_error
    if json:
        print_json(result.as_dict() | {"max_error": max_error})
    elif not quiet:
        _print_rows(result)
        _print_attention(result)
        if max_error is not None:
            how = "above" if bad else "not above"
            print_line()
            print_line(f"largest relative error {result.largest_relative:.5f}: {how} {max_error:g}")
    return bad


def _print_rows(result: Comparison) -> None:
    rows = [
        _describe_rows(str(layer.layer), name, error)
        for layer in result.layers
        for name, error in (("k", layer.k), ("v", layer.v))
    ]
    rows += [(*_describe_rows("all", name, error)[:5], "", "") for name, error in (("k", result.k), ("v", result.v))]
    columns = ("layer", "stream", "relative", "SNR dB", "largest", "worst channel", "worst token")
    print_line(f"Rows: {result.other} against {result.dump}, {result.tokens} tokens")
    print_table(columns, rows, left=2)


def _describe_rows(layer: str, stream: str, error: RowError) -> tuple[str, ...]:
    channel, token = error.worst_channel, error.worst_token
    return (
        layer,
        stream,
        number(error.relative, ".5f"),
        number(error.snr_db, ".2f"),
        f"{error.max_abs:.4g}",
        "-" if channel is None else f"{channel.head}/{channel.channel} {number(channel.relative, '.4f')}",
        "-" if token is None else f"{token.token} {number(token.relative, '.4f')}",
    )


def _print_attention(result: Comparison) -> None:
    total = result.attention
    if total is None:
        return
    rows = [
        (str(layer.layer), a.logit_rms, a.logit_max, a.k_only.relative, a.v_only.relative, a.both.relative)
        for layer in result.layers
        if (a := layer.attention) is not None
    ]
    rows.append(("all", total.logit_rms, total.logit_max, total.k_only, total.v_only, total.both))
    columns = ("layer", "logit rms", "logit max", "K only", "V only", "both")
    shown = [(layer, *(number(value, ".5f") for value in values)) for layer, *values in rows]
    print_table(columns, shown, title="Attention: error of logits, relative error of outputs")
