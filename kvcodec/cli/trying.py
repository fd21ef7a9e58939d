"""What `kvcodec diff` does and prints without a second file: codecs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcodec.cli.failures import reported
from kvcodec.cli.output import number, print_json, print_line, print_table
from kvcodec.cli.progress import progress_bar

if TYPE_CHECKING:
    from kvcodec.bulk.trial import Trial


def run_trial(
    dump: Path,
    codecs: Sequence[str] | None,
    dictionary: Path | None,
    pursuits: Sequence[str] | None,
    layers: str | None,
    *,
    json: bool,
    quiet: bool,
    **about: Any,
) -> None:
    """kvcodec.bulk.trial.try_codecs, and its table or one JSON object. None: the default."""
    with reported(dump=dump), progress_bar("diff", wanted=not (json or quiet)) as progress:
        from kvcodec.bulk.trial import DEFAULT, PURSUITS, try_codecs
        from kvcodec.errors import SpecError

        if pursuits and dictionary is None:
            raise SpecError("--pursuit is of a trained dictionary: pass --dictionary")
        trial = try_codecs(
            dump, codecs or DEFAULT, dictionary=dictionary, pursuits=pursuits or PURSUITS, layers=layers,
            progress=progress, **about,
        )  # fmt: skip
    if json:
        print_json(trial.as_dict())
    elif not quiet:
        _print_trial(trial)


def _print_trial(trial: Trial) -> None:
    print_line(
        f"Codecs: {trial.dump}, {len(trial.layers)} layers, {trial.tokens} tokens, of which the first {trial.sinks} "
        "are not coded"
    )
    with_attention = any(row.attention is not None for row in trial.rows)
    columns = ["codec", "atoms", "pursuit", "bytes", "K", "V", *(["outputs"] if with_attention else [])]
    rows = []
    for row in trial.rows:
        errors = [row.k.relative, row.v.relative, *([row.attention.both] if row.attention is not None else [])]
        shown = [number(error, ".4f") for error in errors]
        rows.append((row.codec, row.atoms, row.pursuit, number(row.bytes_a_vector, ".2f"), *shown))
    print_table(columns, rows, left=3)
    print_line(f"relative errors of rows{' and of attention outputs' * with_attention}; bytes of a vector")
