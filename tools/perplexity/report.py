"""What was measured, as Markdown and as JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kvcodec.layout import StreamId
from tools.capture.failure import CaptureError
from tools.perplexity.coding import Coding
from tools.perplexity.figures import Score, mean_score

Sizes = dict[tuple[int, StreamId], Counter[str]]


class Measured(NamedTuple):
    """Of one text: its tokens, its perplexity over the raw cache; of each coding a score, and bytes by stream; windows
    of layers, None for all tokens.
    """

    tokens: int
    perplexity: float
    scores: Sequence[Score]
    sizes: Sequence[Sizes]
    windows: Mapping[int, int | None]


class Size(NamedTuple):
    """Bytes of a coding. vector: of codes and side values, mean over vectors held. token: of all that streams hold,
    with the records' headers, for each token of the context. ratio: how often 16-bit rows hold that.
    """

    vector: float
    token: float
    ratio: float


@dataclass
class Report:
    """All texts of one run of the command. context: tokens of a text for which bytes are counted, of which a layer with
    a window holds that alone; None to count all tokens of the texts in all layers.
    """

    model: str
    tokens: int
    scored: int
    residual: int
    sinks: int
    codings: Sequence[Coding]
    context: int | None = None
    texts: dict[str, Measured] = field(default_factory=dict)

    def add(self, text: str, measured: Measured) -> None:
        """A text."""
        self.texts[text] = measured

    def size(self, n: int) -> Size:
        """Of coding number `n`, over all texts."""
        total, tokens = dict.fromkeys(("vectors", "raw", "nbytes", "headers"), 0.0), 0
        for one in self.texts.values():
            context = one.tokens if self.context is None else self.context
            tokens += context
            for (layer, _), counts in one.sizes[n].items():
                window = one.windows[layer] if self.context is not None else None
                held = context if window is None else min(context, window)
                for name in total:
                    total[name] += counts[name] * held / one.tokens
        written = total["nbytes"] + total["headers"]
        return Size(total["nbytes"] / total["vectors"], written / tokens, total["raw"] / written)

    def raw_layers(self, n: int) -> dict[str, list[int]]:
        """Layers by stream that coding number `n` leaves raw as its file has no dictionary for them."""
        streams = next(iter(self.texts.values())).sizes[n]
        found: dict[str, list[int]] = {}
        for layer, stream in sorted(streams):
            if self.codings[n].lacks(layer, stream):
                found.setdefault(stream.name.lower(), []).append(layer)
        return found

    def scores(self, n: int) -> list[Score]:
        """Of coding number `n`, text by text."""
        return [one.scores[n] for one in self.texts.values()]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        options = {name: getattr(self, name) for name in ("model", "tokens", "scored", "residual", "sinks", "context")}
        texts = {text: {"tokens": one.tokens, "perplexity": one.perplexity} for text, one in self.texts.items()}
        codings = []
        for n, coding in enumerate(self.codings):
            scores = dict(zip(self.texts, map(_score_dict, self.scores(n)), strict=True))
            mean, size = _score_dict(mean_score(self.scores(n))), self.size(n)._asdict()
            codings.append(
                {"coding": coding.text, "bytes": size, "raw_layers": self.raw_layers(n), "mean": mean, "texts": scores}
            )
        return options | {"texts": texts, "codings": codings}

    def markdown(self) -> str:
        """Tables: means over texts, and KL divergence and perplexity by text."""
        about = (
            f"{self.model}: the last {self.scored} of {self.tokens} tokens of each text "
            f"({', '.join(f'{text}, perplexity {one.perplexity:.2f}' for text, one in self.texts.items())}). "
            f"The newest {self.residual} tokens and {self.sinks} sinks are raw. ± is one standard error."
        )
        if self.context is not None:
            about += f" Bytes are those of {self.context} tokens of context."
        head = ["coding", "bytes of a vector", "bytes of a token, headers too", "ratio"]
        means = [[*head, "KL divergence, nats", "perplexity, %", "same most likely token, %"]]
        by_text = [["coding", *(f"{text}: {what}" for text in self.texts for what in ("KL", "perplexity, %"))]]
        notes = []
        for n, coding in enumerate(self.codings):
            size, mean = self.size(n), mean_score(self.scores(n))
            sizes = [f"{size.vector:.1f}", f"{size.token:.0f}", f"{size.ratio:.2f}"]
            means.append([coding.name, *sizes, *_cells(mean), f"{100 * mean.agreement:.1f}"])
            by_text.append([coding.name, *(cell for one in self.scores(n) for cell in _cells(one))])
            for stream, layers in self.raw_layers(n).items():
                notes.append(
                    f"{coding.name}: {stream} of layers {', '.join(map(str, layers))} is raw, without dictionary."
                )
        return "\n\n".join([about, _table(means), _table(by_text), *notes])


def _score_dict(score: Score) -> dict[str, float]:
    return score._asdict() | {"change": score.change, "change_error": score.change_error}


def _cells(score: Score) -> list[str]:
    return [f"{score.kl:.4f} ± {score.kl_error:.4f}", f"{score.change:+.2f} ± {score.change_error:.2f}"]


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_between(path: Path, mark: str, text: str | None) -> None:
    """Puts `text` between the marks in a file; None only looks whether it could. Raises CaptureError."""
    begin, end = re.compile(rf"<!-- {re.escape(mark)}: [^\n]*-->\n"), f"<!-- /{mark} -->"
    try:
        was = path.read_text(encoding="utf-8")
        first = begin.search(was)
        last = was.find(end, first.end()) if first else -1
        if first is None or last < 0:
            raise CaptureError(f"{path} has no lines <!-- {mark}: written by tools/perplexity --> and {end}")
        if text is not None:
            path.write_text(f"{was[: first.end()]}{text}\n{was[last:]}", encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CaptureError(f"{path}: cannot write the tables: {error}") from None
