"""What was measured, as Markdown and as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tools.capture.failure import CaptureError
from tools.perplexity.coding import Coding
from tools.perplexity.figures import Score, mean_score
from tools.perplexity.measured import Measured

_HEAD = [
    "coding", "text", "bytes of a vector", "ratio", "KL divergence, nats", "perplexity, %",
    "same most likely token, %",
]  # fmt: skip


class Size(NamedTuple):
    """Bytes of a coding. vector: of codes and side values, mean over vectors held. written: that and the records'
    headers. token: of all that streams hold, with the headers, for each token of the context. ratio: how often 16-bit
    rows hold that.
    """

    vector: float
    written: float
    token: float
    ratio: float


@dataclass
class Report:
    """All texts of one run of the command. context: tokens of a text for which bytes are counted, of which a layer with
    a window holds that alone; None to count all tokens of the texts in all layers. texts: what was measured of each
    coding.
    """

    model: str
    tokens: int
    scored: int
    residual: int
    sinks: int
    codings: Sequence[Coding]
    context: int | None = None
    texts: dict[str, Sequence[Measured]] = field(default_factory=dict)

    def add(self, text: str, measured: Sequence[Measured]) -> None:
        """A text, with every coding."""
        self.texts[text] = measured

    def measured(self, n: int) -> list[Measured]:
        """Of coding number `n`, text by text."""
        return [own[n] for own in self.texts.values()]

    def size(self, texts: Sequence[Measured]) -> Size:
        """Of one coding, over texts."""
        total, tokens = dict.fromkeys(("vectors", "raw", "nbytes", "headers"), 0.0), 0
        for one in texts:
            context = one.tokens if self.context is None else self.context
            tokens += context
            for (layer, _), counts in one.sizes.items():
                window = one.windows[layer] if self.context is not None else None
                held = context if window is None else min(context, window)
                for name in total:
                    total[name] += counts[name] * held / one.tokens
        written, vectors = total["nbytes"] + total["headers"], total["vectors"]
        return Size(total["nbytes"] / vectors, written / vectors, written / tokens, total["raw"] / written)

    def raw_layers(self, n: int) -> dict[str, list[int]]:
        """Layers by stream that coding number `n` leaves raw as its file has no dictionary for them."""
        found: dict[str, list[int]] = {}
        for layer, stream in sorted(self.measured(n)[0].sizes):
            if self.codings[n].lacks(layer, stream):
                found.setdefault(stream.name.lower(), []).append(layer)
        return found

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        options = {name: getattr(self, name) for name in ("model", "tokens", "scored", "residual", "sinks", "context")}
        texts = {text: {"tokens": own[0].tokens, "perplexity": own[0].perplexity} for text, own in self.texts.items()}
        codings = []
        for n, coding in enumerate(self.codings):
            own = self.measured(n)
            scores = dict(zip(self.texts, (_score_dict(one.score) for one in own), strict=True))
            mean, size = _score_dict(mean_score([one.score for one in own])), self.size(own)._asdict()
            codings.append(
                {
                    "coding": coding.text, "bytes": size | {"tables": coding.table_bytes},
                    "raw_layers": self.raw_layers(n), "mean": mean, "texts": scores,
                }
            )  # fmt: skip
        return options | {"texts": texts, "codings": codings}

    def markdown(self) -> str:
        """One table, a row a coding and text and one for all texts, between what it is of and notes."""
        rows, notes = [_HEAD], []
        for n, coding in enumerate(self.codings):
            own = self.measured(n)
            rows += [self._row(coding, text, [one]) for text, one in zip(self.texts, own, strict=True)]
            rows += [self._row(coding, "all", own)] if len(own) > 1 else []
            for stream, layers in self.raw_layers(n).items():
                notes.append(
                    f"{coding.name}: {stream} of layers {', '.join(map(str, layers))} is raw, without dictionary."
                )
        return "\n\n".join([self._about(), _table(rows), *notes])

    def _about(self) -> str:
        texts = ", ".join(f"{text}, perplexity {own[0].perplexity:.2f}" for text, own in self.texts.items())
        lines = [
            f"{self.model}: the last {self.scored} of {self.tokens} tokens of each text ({texts}).",
            f"The newest {self.residual} tokens and {self.sinks} sinks are raw. ± is one standard error.",
            "Bytes of a vector are codes, all side values and the headers of records, as if all tokens had been coded.",
        ]
        tables = {name: coding.table_bytes for coding in self.codings for name in coding.name.split() if "@" in name}
        if tables:
            sizes = ", ".join(f"{name[1:]} of {size:,} bytes" for name, size in tables.items())
            lines.append(f"Tables are apart, once for a model: {sizes}.")
        if self.context is not None:
            lines.append(f"Bytes are those of {self.context} tokens of context.")
        return " ".join(lines)

    def _row(self, coding: Coding, text: str, own: Sequence[Measured]) -> list[str]:
        size, score = self.size(own), mean_score([one.score for one in own])
        return [
            coding.name, text, f"{size.written:.1f}", f"{size.ratio:.2f}",
            f"{score.kl:.4f} ± {score.kl_error:.4f}", f"{score.change:+.2f} ± {score.change_error:.2f}",
            f"{100 * score.agreement:.1f}",
        ]  # fmt: skip


def _score_dict(score: Score) -> dict[str, float]:
    return score._asdict() | {"change": score.change, "change_error": score.change_error}


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
