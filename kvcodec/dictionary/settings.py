"""How dictionaries are trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kvcodec.errors import SpecError
from kvcodec.sparse_spec import MAX_ATOMS, MAX_DICTIONARY

_BATCH = 2048  # vectors of a mini-batch, or as many as there are atoms


@dataclass(frozen=True)
class Settings:
    """atoms: N. sparsity: s, atoms of a vector while training and of the curve of errors. epochs: at most, passes over
    the training vectors. mean: remove the mean. batch: vectors of a mini-batch, 0 for the greater of 2048 and N.
    memory: how many epochs' worth of codes the moments remember. patience: epochs without `gain` (relative) before
    training stops. least: uses in an epoch below which an atom is replaced. seed: of all that is drawn by lot.
    """

    atoms: int = 1024
    sparsity: int = 8
    epochs: int = 6
    mean: bool = True
    batch: int = 0
    memory: float = 1.0
    patience: int = 2
    gain: float = 1e-3
    least: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        bounds = (
            ("atoms", 1, MAX_DICTIONARY), ("sparsity", 1, MAX_ATOMS), ("epochs", 1, 10_000), ("batch", 0, 1 << 24),
            ("patience", 1, 10_000), ("least", 0, 1 << 24), ("seed", 0, (1 << 63) - 1),
        )  # fmt: skip
        for name, low, high in bounds:
            value = getattr(self, name)
            if not low <= value <= high:
                raise SpecError(f"{name} is {value}, want {low} to {high}")
        if not self.memory > 0 or not 0 <= self.gain < 1:
            raise SpecError(f"memory is {self.memory} and gain {self.gain}, want a positive number, and one in 0:1")

    @property
    def batch_size(self) -> int:
        return self.batch or max(_BATCH, self.atoms)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able, all that a result hangs on."""
        return asdict(self) | {"batch": self.batch_size}


def memory_bytes(settings: Settings, dim: int) -> int:
    """The most that training one dictionary holds, however many vectors there are: moments, Gram matrices and their
    temporaries (N x N), atoms and their copies (N x d), a mini-batch and its codes, the held-out sample.
    """
    n, s, batch = settings.atoms, settings.sparsity, settings.batch_size
    pairs = 1024 * s * (12 * s + 16 + 4 * dim)
    return 4 * (4 * n * n + 12 * n * dim + 256 * n) + 2 * (batch + 2048) * (12 * dim + 32 * s) + pairs + (16 << 20)
