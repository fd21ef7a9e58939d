"""kvcodec drop"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcodec.cli import options
from kvcodec.cli.failures import reported
from kvcodec.cli.output import print_json, print_line

if TYPE_CHECKING:
    from kvcodec.store.store import Store

EXAMPLE = "Example: kvcodec drop cache.kvlog chat-1 chat-2 && kvcodec compact cache.kvlog"


def command(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The log.")],
    sequences: Annotated[list[str], typer.Argument(metavar="SEQUENCE...", help="Names of sequences.")],
    keep: Annotated[
        int | None, typer.Option("--keep", min=0, help="Tokens that are kept: what is behind them goes.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", help="Only these tokens, such as 128:512: they are evicted.")
    ] = None,
    dictionary: options.Dictionary = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Forget sequences, their tails (--keep) or a range of their tokens (--tokens).

    What is forgotten is masked at once. Its bytes are free again when the blocks that hold it are cleaned: `kvcodec
    compact`, or by and by as a writer needs them. Evicted tokens keep their numbers, and so do all others.
    """
    with reported(log=log):
        import kvcodec
        from kvcodec.errors import SpecError

        if keep is not None and tokens is not None:
            raise SpecError("--keep and --tokens exclude each other")
        ends = None if tokens is None else _parse(tokens)
        with kvcodec.open(log, "a", dictionary=dictionary) as store:
            known = store.sequences()
            for name in sequences:
                if name not in known:
                    store.drop(name)  # raises
            left = [_forget(store, name, keep, ends) for name in dict.fromkeys(sequences)]
    if json:
        print_json({"log": str(log), "sequences": left})
    elif not quiet:
        for one in left:
            print_line(f"{log}: sequence {one['name']}, {one['what']}")


def _parse(tokens: str) -> tuple[int, int]:
    """First token of A:B, and the one behind the last. Raises SpecError."""
    from kvcodec.errors import SpecError

    first, colon, end = tokens.partition(":")
    if not (colon and (first or "0").isdecimal() and end.isdecimal()):
        raise SpecError(f"--tokens {tokens}: want FIRST:END, such as 128:512")
    return int(first or 0), int(end)


def _forget(store: Store, name: str, keep: int | None, ends: tuple[int, int] | None) -> dict[str, object]:
    if ends is not None:
        store.sequence(name).evict(*ends)
        return {"name": name, "what": f"tokens {ends[0]} to {ends[1] - 1} evicted", "evicted": list(ends)}
    if keep is not None:
        store.sequence(name).truncate(keep)
        return {"name": name, "what": f"cut to {keep} tokens", "tokens": keep}
    store.drop(name)
    return {"name": name, "what": "dropped"}
