"""Load a model and its tokenizer: a Hugging Face directory or name, a GGUF file, or a GGUF in a Python package."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any, NamedTuple

from tools.capture.failure import CaptureError

_INSTALL = "pip install torch==2.13.0, then pip install -e '.[capture]'"


class Loaded(NamedTuple):
    """name: of the model, for metadata and files' names."""

    tokenizer: Any
    model: Any
    name: str


class Place(NamedTuple):
    """What transformers' from_pretrained wants. folder: or a model's name on a hub. gguf: None unless it is one."""

    folder: str
    gguf: str | None
    name: str

    def options(self) -> dict[str, Any]:
        """Keyword arguments of from_pretrained."""
        return {} if self.gguf is None else {"gguf_file": self.gguf}


def import_libraries() -> None:
    """Raises CaptureError, with what to install, unless torch and transformers are there."""
    for name in ("torch", "transformers", "safetensors"):
        if importlib.util.find_spec(name) is None:
            raise CaptureError(f"{name} is not installed: {_INSTALL}")


def locate_model(model: str, downloads: Path) -> Place:
    """Finds `model`; a packaged GGUF is put together in `downloads`. Raises CaptureError."""
    path = Path(model)
    if path.is_file():
        if path.suffix != ".gguf":
            raise CaptureError(f"model {model!r} is a file, want a directory of Hugging Face's or a .gguf")
        return Place(str(path.parent), path.name, path.stem)
    if path.is_dir():
        if not (path / "config.json").exists():
            raise CaptureError(f"model {model!r}: the directory has no config.json; a GGUF is named by its file")
        return Place(model, None, path.resolve().name)
    if (packaged := _find_package(model)) is not None:
        try:
            gguf: Path = packaged.assemble(downloads / packaged.MODEL_NAME)
        except (OSError, ValueError, ImportError) as error:
            raise CaptureError(f"model {model!r}: cannot put it together: {first_line(error)}") from None
        return Place(str(gguf.parent), gguf.name, gguf.stem)
    if model.endswith(".gguf") or model.startswith((".", "/", "~")):
        raise CaptureError(f"model {model!r}: no such file or directory")
    if model.endswith("-gguf"):
        raise CaptureError(f"model {model!r}: no such file, directory or Python package: pip install {model}?")
    return Place(model, None, path.name)


def _find_package(model: str) -> Any | None:
    name = model.replace("-", "_")
    if not re.fullmatch(r"\w+", name, re.ASCII) or importlib.util.find_spec(name) is None:
        return None
    package = importlib.import_module(name)
    return package if hasattr(package, "assemble") and hasattr(package, "MODEL_NAME") else None


def load_tokenizer(place: Place) -> Any:
    """Raises CaptureError."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(place.folder, **place.options())
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise CaptureError(f"model {place.folder!r}: no tokenizer: {first_line(error)}") from None


def load_model(place: Place, run_dtype: str, device: str) -> Any:
    """The model, ready to run. Raises CaptureError."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(place.folder, dtype=getattr(torch, run_dtype), **place.options())
        return model.eval().to(device)
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        raise CaptureError(f"model {place.folder!r}: cannot load it: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    """An error of a library's in one line."""
    return f"{type(error).__name__}: {str(error).strip()}".split("\n", 1)[0]


def tokenize(tokenizer: Any, body: str, tokens: int) -> list[int]:
    """At most `tokens` ids of `body`, behind the token that begins texts if the model has one."""
    begin = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
    chars = 40 * tokens  # more than `tokens` tokens in any language, and a book need not be tokenized whole
    ids: list[int] = tokenizer(body[:chars], add_special_tokens=False, verbose=False).input_ids
    return (begin + ids)[:tokens]
