"""What specs of product codes and trellis codes have in common: a budget, a bound on errors, the codes of a stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from kvcodec.errors import SpecError
from kvcodec.sparse_spec import ERROR_STEPS, HASH_BYTES, parse_bound, shortest_bound

MAX_BUDGET = 1000
BUDGET_STEPS = 16  # budgets are counted in 1/16 bytes
_SIDE_BYTES = 2  # gain and shape


@dataclass(frozen=True)
class ShapedSpec:
    """budget: bytes of a vector, on average over the streams of a model, that the codes must have been trained for; 0
    for any. error: relative error in 1/32768 that no vector exceeds, one whose codes would being kept as INT4 or raw; 0
    for none. size and basis name the codes of a stream: bytes of a vector's codes, and the set that they are from; 0
    and empty until an encoder, or a store, has bound the spec to some, which ends what there is to say of a budget.
    """

    kind: ClassVar[str]  # in errors
    example: ClassVar[str]  # of a budget
    most: ClassVar[int]  # bytes of codes

    budget: float = 0.0
    size: int = 0
    basis: bytes = b""
    error: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.budget <= MAX_BUDGET:
            raise SpecError(f"B{self.budget:g}: want a budget of up to {MAX_BUDGET} bytes")
        if not 0 <= self.size <= self.most or len(self.basis) not in (0, HASH_BYTES):
            raise SpecError(f"{self.kind} of {self.size} bytes, named by {len(self.basis)} bytes")
        if not 0 <= self.error < ERROR_STEPS:
            raise SpecError(f"max{self.error / ERROR_STEPS:g}: want a relative error of at least 0 and below 1")

    @property
    def bounded(self) -> bool:
        """Whether no vector errs by more than `error`."""
        return self.error > 0

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes of one vector. Raises SpecError before the codes are known."""
        if not self.size:
            raise SpecError(f"vectors by {self.kind} have no size before the codes are known")
        return self.size

    @property
    def row_bytes(self) -> int:
        """Bytes of one vector: gain, shape and codes."""
        return self.code_bytes + _SIDE_BYTES

    def check_budget(self, trained: float) -> None:
        """Raises SpecError for codes that were trained for another budget of bytes; `trained` is 0 if none is known."""
        if self.budget and trained and round_budget(self.budget) != trained:
            raise SpecError(f"B{self.budget:g}, and the {self.kind} were trained for a budget of {trained:g} bytes")

    def bound_to(self, size: int, basis: bytes) -> Self:
        """These for the codes of a stream."""
        return replace(self, budget=0.0, size=size, basis=basis)

    def with_bound(self, error: float) -> Self:
        """These with a bound on the relative error of every vector, unless they have one already."""
        return self if self.bounded else replace(self, error=parse_bound(error))

    @classmethod
    def parse(cls, parts: list[str]) -> Self:
        """From parts such as B32, max0.3. Raises SpecError with what is not understood."""
        budget, error = 0.0, 0
        for part in parts:
            prefix = "max" if part.startswith("max") else "B"
            try:
                number = float(part.removeprefix(prefix)) if part.startswith(prefix) else 0.0
            except ValueError:
                number = 0.0
            if prefix == "max" and number and not error:
                error = parse_bound(number)
            elif prefix == "B" and 0 < number <= MAX_BUDGET and not budget:
                budget = number
            else:
                raise SpecError(f"{part!r} is unknown, want BN, a budget of bytes such as {cls.example}, maxN or gN")
        return cls(budget, error=error)

    def __str__(self) -> str:
        parts = [f"B{self.budget:g}"] if self.budget else []
        parts += [f"max{shortest_bound(self.error)}"] if self.error else []
        return "/".join(parts)


def round_budget(budget: float) -> float:
    """A budget as codes remember it."""
    return round(budget * BUDGET_STEPS) / BUDGET_STEPS
