"""Token ranges of bounded size, so that a job's memory is that of a chunk and not that of a dump."""

from __future__ import annotations

from collections.abc import Callable, Iterator

CHUNK_BYTES = 32 << 20
_STEP = 64  # tokens; most records hold this many

Progress = Callable[[int, int], None]  # (done, total); what they count is the job's to say


def token_chunks(tokens: int, token_bytes: int, most: int = 1 << 62) -> Iterator[tuple[int, int]]:
    """Ranges (start, stop) that cover `tokens` in order, of about 32 MiB and a multiple of 64 tokens each; of `most`
    tokens, which is such a multiple, where that is less.
    """
    step = min(most, max(_STEP, CHUNK_BYTES // max(1, token_bytes) // _STEP * _STEP))
    for start in range(0, tokens, step):
        yield start, min(start + step, tokens)


def no_progress(done: int, total: int) -> None:
    """Tells nobody."""
