"""What training dictionaries, product or trellis codes gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvcodec.codecs.dictionary import Dictionary
from kvcodec.codecs.product import Product
from kvcodec.codecs.trellis import Trellis

REPORTED = {"pq": "products", "tcq": "trellises"}  # names in reports, and in a file's information


@dataclass(frozen=True)
class TrainedUnit:
    """One dictionary. about: its entry in the artefact's information. seconds: 0 if it was there already."""

    name: str
    dictionary: Dictionary
    about: Mapping[str, Any]
    seconds: float
    resumed: bool

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"name": self.name, **self.about, "seconds": round(self.seconds, 3), "resumed": self.resumed}


@dataclass(frozen=True)
class ProductUnit:
    """Product or trellis codes of one stream, or of those that share them. about: their entry in the artefact's
    information. vectors: that these streams hold, relative to others.
    """

    name: str
    product: Product | Trellis
    about: Mapping[str, Any]
    vectors: float

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"name": self.name, **self.about}


@dataclass(frozen=True)
class TrainReport:
    """What was trained. out: the file. hash: of the set, hexadecimal. units: dictionaries. tokens, held_out: of all
    dumps. nbytes: of atoms and means, or of other codes. seconds: of all. resumed: dictionaries that were there
    already. products: product or trellis codes, where those were trained.
    """

    out: str
    hash: str
    units: tuple[TrainedUnit, ...]
    tokens: int
    held_out: int
    nbytes: int
    seconds: float
    products: tuple[ProductUnit, ...] = ()

    @property
    def resumed(self) -> int:
        return sum(unit.resumed for unit in self.units)

    @property
    def trained_as(self) -> str:
        """What was trained, in words."""
        if not self.products:
            return "dictionaries"
        return "product codes" if isinstance(self.products[0].product, Product) else "trellis codes"

    @property
    def bytes_a_vector(self) -> float:
        """Of product or trellis codes, on average over the vectors that streams hold; 0 without any."""
        total = sum(unit.vectors for unit in self.products)
        return sum(unit.about["bytes"] * unit.vectors for unit in self.products) / total if total else 0.0

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        own = {name: getattr(self, name) for name in ("out", "hash", "tokens", "held_out", "nbytes", "resumed")}
        own |= {"seconds": round(self.seconds, 3), "dictionaries": [unit.as_dict() for unit in self.units]}
        if self.products:
            field = REPORTED["pq" if isinstance(self.products[0].product, Product) else "tcq"]
            own |= {"bytes_a_vector": self.bytes_a_vector, field: [unit.as_dict() for unit in self.products]}
        return own
