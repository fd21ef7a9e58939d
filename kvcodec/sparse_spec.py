"""How a vector is coded over a dictionary: the dictionary part of a codec spec."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from kvcodec.errors import SpecError

MAX_ATOMS = 32  # of one vector
MAX_DICTIONARY = 1 << 16  # an index has 16 bits
MAX_GROWTHS = 64  # of a set, one out of the other
ERROR_STEPS = 1 << 15  # relative errors are counted in 1/32768
COEFFICIENT_BITS = (4, 5, 6, 8)
_DEFAULT_BOUNDED = 24  # atoms at most where an error bound, and no sparsity, is asked for
HASH_BYTES = 16


class Pursuit(StrEnum):
    """How an encoder chooses atoms. The codes do not say which it was, and no decoder asks.

    OMP: orthogonal matching pursuit. ORMP: the order-recursive one, which tries each atom's refit. MP: plain matching
    pursuit with integers alone, as a processor beside the Flash could do it; it measures plain errors, whatever metric
    a dictionary has.
    """

    OMP = "omp"
    ORMP = "ormp"
    MP = "mp"

    @classmethod
    def parse(cls, name: str) -> Pursuit:
        """From omp, ormp or mp. Raises SpecError."""
        if name not in list(cls):
            raise SpecError(f"pursuit is {name!r}, want {', '.join(cls)}")
        return cls(name)


@dataclass(frozen=True)
class SparseCodes:
    """Codes of a vector: at most `atoms` indices and integer coefficients of `bits` bits, and a scale.

    sets: indices are kept as sorted sets (Elias-Fano) instead of 16 bits each. low: atoms of the first tier, 0 for one
    tier. error: relative error in 1/32768 at which pursuit stops early, 0 to take all atoms. bounded: no vector
    errs by more than that: one whose codes would is kept as INT4 or raw.
    size and basis name the dictionary: its atoms, and 16 bytes that stand for the set that it is from; 0 and empty
    until a store, or an encoder, has bound the spec to one.
    """

    atoms: int = 8
    bits: int = 8
    sets: bool = False
    low: int = 0
    error: int = 0
    size: int = 0
    basis: bytes = b""
    bounded: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.atoms <= MAX_ATOMS:
            raise SpecError(f"s{self.atoms}: want 1 to {MAX_ATOMS} atoms")
        if self.bits not in COEFFICIENT_BITS:
            raise SpecError(f"c{self.bits}: want a coefficient of {', '.join(map(str, COEFFICIENT_BITS))} bits")
        if not 0 <= self.low < self.atoms:
            raise SpecError(f"low{self.low}: want a first tier of fewer than {self.atoms} atoms")
        if not 0 <= self.error < ERROR_STEPS:
            raise SpecError(f"e{self.error / ERROR_STEPS:g}: want a relative error of at least 0 and below 1")
        if self.bounded and not self.error:
            raise SpecError("a bound on the error of every vector, and it is 0")
        if not 0 <= self.size <= MAX_DICTIONARY or len(self.basis) not in (0, HASH_BYTES):
            raise SpecError(f"a dictionary of {self.size} atoms, named by {len(self.basis)} bytes")

    @property
    def index_bytes(self) -> int:
        """Bytes of the indices of one vector."""
        if not self.sets:
            return 2 * self.atoms
        return sum(set_bytes(self.size, count) for count in self.tiers)

    @property
    def tiers(self) -> tuple[int, ...]:
        """Atoms of each tier."""
        return (self.low, self.atoms - self.low) if self.low else (self.atoms,)

    @property
    def code_bytes(self) -> int:
        """Bytes of indices and coefficients of one vector."""
        return self.index_bytes + -(-self.atoms * self.bits // 8)

    def first_bytes(self, low: int) -> int:
        """Bytes of the indices of a vector's first `low` atoms. Raises SpecError where they cannot be read alone."""
        if low >= self.atoms:
            return self.index_bytes
        if not self.sets:
            return 2 * low
        if low != self.low:
            raise SpecError(
                f"sets of {self} cannot be read for their first {low} atoms: want low{low} in the spec, or u16"
            )
        return set_bytes(self.size, low)

    @property
    def row_bytes(self) -> int:
        """Bytes of one vector: its scale, indices and coefficients. N = 1024, s8/c6/ef: 17."""
        return 2 + self.code_bytes

    def bound_to(self, size: int, basis: bytes) -> SparseCodes:
        """These codes over a dictionary of `size` atoms of the set named `basis`."""
        return replace(self, size=size, basis=basis)

    def with_atoms(self, atoms: int) -> SparseCodes:
        """These codes with room for another number of atoms."""
        return replace(self, atoms=atoms)

    def with_bound(self, error: float) -> SparseCodes:
        """These codes with a bound on the relative error of every vector, unless they have an error already."""
        return self if self.error else replace(self, error=parse_bound(error), bounded=True)

    @classmethod
    def parse(cls, parts: list[str]) -> SparseCodes:
        """From parts such as s8, c6, ef, u16, low3, e0.1, max0.3. Raises SpecError with what is not understood."""
        found: dict[str, int | bool] = {}
        for part in parts:
            name, value = _parse_part(part)
            if name in found:
                raise SpecError(f"{part!r}: said twice, or both e and max")
            found[name] = value
            found |= {"bounded": True} if part.startswith("max") else {}
        if found.get("error") and "atoms" not in found:
            found["atoms"] = _DEFAULT_BOUNDED
        return cls(**found)  # type: ignore[arg-type]

    def __str__(self) -> str:
        parts = [f"s{self.atoms}", f"c{self.bits}"]
        parts += ["ef"] if self.sets else []
        parts += [f"low{self.low}"] if self.low else []
        parts += [("max" if self.bounded else "e") + shortest_bound(self.error)] if self.error else []
        return "/".join(parts)


def set_bytes(size: int, count: int) -> int:
    """Bytes of a set of `count` of `size` numbers: formats/dictionary.md."""
    if not size:
        raise SpecError("sets of indices have no size before the dictionary is known")
    low = max(size // count, 1).bit_length() - 1
    return -(-(count * low + count + ((size - 1) >> low)) // 8)


def _parse_part(part: str) -> tuple[str, int | bool]:
    if part in ("ef", "u16"):
        return "sets", part == "ef"
    for name, prefix in (("low", "low"), ("atoms", "s"), ("bits", "c")):
        digits = part.removeprefix(prefix)
        if part.startswith(prefix) and digits.isascii() and digits.isdigit() and len(digits) < 6:
            return name, int(digits)
    for prefix in ("max", "e"):
        if not part.startswith(prefix):
            continue
        try:
            error = float(part.removeprefix(prefix))
        except ValueError:
            continue
        if prefix == "max":
            return "error", parse_bound(error)
        if 0 < error < 1:
            return "error", max(1, int(error * ERROR_STEPS))
    raise SpecError(f"{part!r} is unknown, want sN, cN, ef, lowN, eN, maxN or gN, such as s8/c6/ef")


def parse_bound(error: float) -> int:
    """A bound on relative errors in 1/32768, never more than what was asked for. Raises SpecError."""
    if not 1 / ERROR_STEPS <= error < 1:
        raise SpecError(f"an error bound of {error:g}, want at least 1/{ERROR_STEPS} and below 1")
    return int(error * ERROR_STEPS)


def shortest_bound(error: int) -> str:
    """The shortest decimal number that is parsed to `error`, which is in 1/32768."""
    for digits in range(1, 9):
        number = -(-error * 10**digits // ERROR_STEPS) / 10**digits
        if int(number * ERROR_STEPS) == error:
            break
    return f"{number:.{digits}f}"
