"""Which header belongs to what was trained: each is made once, and lasts as long as that."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary, WeakValueDictionary

from kvcodec.attention.dictionaries import Atoms
from kvcodec.attention.headers import Header
from kvcodec.attention.products import Books
from kvcodec.attention.trellises import Paths
from kvcodec.codecs.dictionary import Dictionary
from kvcodec.codecs.product import Product
from kvcodec.codecs.trellis import Trellis

Trained = Dictionary | Product | Trellis

lock = threading.Lock()
_known: WeakKeyDictionary[Trained, Header] = WeakKeyDictionary()
_by_address: WeakValueDictionary[int, Header] = WeakValueDictionary()


def header_of(own: Trained, *, rebuilding: bool = False) -> Header:
    """The header of what was trained for a stream. rebuilding: also of rows that are rebuilt from their codes."""
    with lock:
        found = _known.get(own)
        if found is None:
            found = _known[own] = _make(own)
            _by_address[found.address] = found
        if rebuilding:
            found.prepare_rebuilding()
        return found


def _make(own: Trained) -> Header:
    if isinstance(own, Product):
        return Books(own)
    return Paths(own) if isinstance(own, Trellis) else Atoms(own)


def header_at(address: int) -> Header:
    """The one whose address a form has."""
    return _by_address[address]
