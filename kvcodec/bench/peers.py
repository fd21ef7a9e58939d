"""Other libraries that take part where they are installed: ggml, torch and NumPy, each held to one thread."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

from kvcodec.bench.ggml import Ggml, load_ggml
from kvcodec.bench.row import Absent, Contender, Entry
from kvcodec.errors import SpecError

NAMES = ("ggml", "torch", "numpy", "spams", "sklearn", "faiss")
_INSTALL = "pip install 'kvcodec-flash[bench]'"
_NUMPY = "numpy"


@dataclass(frozen=True)
class Peers:
    """The peers of a run. absent: reason by name, of those that are not there."""

    ggml: Ggml | None = None
    torch: Any = None
    numpy: Any = None
    spams: Any = None
    sklearn: Any = None
    faiss: Any = None
    absent: dict[str, str] = field(default_factory=dict)

    def versions(self) -> dict[str, str]:
        """By name: the version, or why it is absent."""
        found = {
            "ggml": self.ggml.version if self.ggml else "",
            "torch": str(self.torch.__version__) if self.torch else "",
            "numpy": str(self.numpy.__version__) if self.numpy else "",
            "spams": version("spams-bin") if self.spams else "",
            "sklearn": version("scikit-learn") if self.sklearn else "",
            "faiss": version("faiss-cpu") if self.faiss else "",
        }
        return {name: own or f"absent: {self.absent[name]}" for name, own in found.items()}

    def enter(self, peer: str, name: str, make: Callable[[Any], Contender]) -> Entry:
        """make(the peer) as an entry called `name`, or the absence of the peer."""
        library = getattr(self, peer)
        return Absent(name, self.absent[peer]) if library is None else make(library)


def find_peers(wanted: Iterable[str] = NAMES) -> Peers:
    """The peers among `wanted` that are installed. Raises SpecError for a name that is no peer's."""
    wanted = set(wanted)
    if unknown := wanted - set(NAMES):
        raise SpecError(f"peer {sorted(unknown)[0]!r}, want some of {', '.join(NAMES)}")
    found: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for name, load in _LOADERS.items():
        if name not in wanted:
            absent[name] = "not asked for"
            continue
        try:
            found[name] = load()
        except (ImportError, OSError, AttributeError) as error:
            absent[name] = f"{error}: {_INSTALL}"
    return Peers(**found, absent=absent)


def _load_torch() -> Any:
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    return torch


def _load_numpy() -> Any:
    """NumPy, its BLAS held to one thread."""
    importlib.import_module("threadpoolctl").threadpool_limits(1, user_api="blas")
    return importlib.import_module(_NUMPY)


def _load_pursuit(module: str) -> Any:
    """A library whose products are NumPy's, that held to one thread."""
    _load_numpy()
    return importlib.import_module(module)


def _load_faiss() -> Any:
    faiss = importlib.import_module("faiss")
    faiss.omp_set_num_threads(1)
    return faiss


_LOADERS: dict[str, Callable[[], Any]] = {
    "ggml": load_ggml,
    "torch": _load_torch,
    "numpy": _load_numpy,
    "spams": partial(_load_pursuit, "spams"),
    "sklearn": partial(_load_pursuit, "sklearn.linear_model"),
    "faiss": _load_faiss,
}
