"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
Sequence = Annotated[str | None, typer.Option("--sequence", help="Name of the sequence in the log.")]
Map = Annotated[
    list[str] | None,
    typer.Option("--map", help='Names of the tensors, such as "k=model.{layer}.key"; may be repeated.'),
]
Heads = Annotated[int | None, typer.Option("--heads", min=1, help="KV heads of a (tokens, heads*dim) dump.")]
HeadDim = Annotated[int | None, typer.Option("--head-dim", min=1, help="Channels of a head of such a dump.")]
Layers = Annotated[str | None, typer.Option("--layers", help="Layers, such as 0-3,17. [default: all]")]
Tokens = Annotated[
    str | None, typer.Option("--tokens", help="Tokens, such as 128:512, :512 or 128:, the end excluded. [default: all]")
]
Dictionary = Annotated[
    Path | None, typer.Option("--dictionary", help="The .kvdict file of logs that only name their set.")
]
Pursuit = Annotated[
    str | None,
    typer.Option(help="How atoms are chosen: omp, ormp (better, slower) or mp (integers alone). [default: omp]"),
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Threads. [default: as many as cores]")]
