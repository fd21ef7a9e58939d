"""Which header belongs to what was trained: each is made once, and lasts as long as that."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary, WeakValueDictionary

from kvcodec.attention.dictionaries import Atoms
from kvcodec.attention.headers import Header
from kvcodec.attention.products import Books
from kvcodec.codecs.dictionary import Dictionary
from kvcodec.codecs.product import Product

_lock = threading.Lock()
_known: WeakKeyDictionary[Dictionary | Product, Header] = WeakKeyDictionary()
_by_address: WeakValueDictionary[int, Header] = WeakValueDictionary()


def header_of(own: Dictionary | Product, *, rebuilding: bool = False) -> Header:
    """The header of a dictionary, or of product codes. rebuilding: also of rows that are rebuilt from their codes."""
    with _lock:
        found = _known.get(own)
        if found is None:
            found = _known[own] = Books(own) if isinstance(own, Product) else Atoms(own)
            _by_address[found.address] = found
        if rebuilding:
            found.prepare_rebuilding()
        return found


def header_at(address: int) -> Header:
    """The one whose address a form has."""
    return _by_address[address]
