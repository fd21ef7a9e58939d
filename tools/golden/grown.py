"""Logs with sets of dictionaries that grew: whole ones, and those whose sets contradict what they grew out of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import kvcodec
from kvcodec.codecs.dictionary import DictionarySet, quantize_atoms
from kvcodec.layout import StreamId
from kvcodec.log.frame import Record
from kvcodec.sparse_spec import MAX_GROWTHS
from kvcodec.store.model import Model
from kvcodec.store.set_records import dictionary_records
from tools.golden.case import DEVICE
from tools.golden.dictionaries import begin, forged_group, forged_set, make_set
from tools.golden.fixed import noise
from tools.golden.forge import Forge, Forgeries
from tools.golden.whole import fill

CASES = Forgeries()


def grow(own: DictionarySet, atoms: int, numbers: Iterable[int], seed: int = 70) -> DictionarySet:
    """A set whose dictionaries of these numbers have `atoms` atoms more."""
    grown = list(own.dictionaries)
    for n in numbers:
        grown[n] = grown[n].grown(quantize_atoms(noise((atoms, grown[n].dim), seed + n)))
    return DictionarySet(tuple(grown))


@CASES.made("dictionary-grown", "sets that grew twice, one dictionary not at all; rows coded one by one over each")
def _(path: Path) -> None:
    model = Model.uniform(2, 1, 16)
    sets = [make_set(model, 20, mean=True)]
    sets.append(grow(sets[0], 70, [0, 2]))  # of more than one record, of more bytes in a set of indices
    sets.append(grow(sets[1], 5, [2], 80))
    options: dict[str, Any] = {"k": "dict/s4/c6/ef", "v": "dict/s3/c8", "residual": {"k": 0, "v": 3}, "sinks": 2}
    with kvcodec.open(path, "w", model=model, device=DEVICE, capacity=1 << 20, dictionary=sets[0], **options) as store:
        fill(store.sequence("a"), 0, 70, 1)
        store.log_records(list(dictionary_records(sets[1], 600, sets[0])))
    with kvcodec.open(path, "a") as store:  # finishes the token groups that are begun as they were begun
        fill(store.sequence("a"), 70, 90, 2)
        store.log_records(list(dictionary_records(sets[2], 600, sets[1])))
    with kvcodec.open(path, "a") as store:
        fill(store.sequence("a"), 160, 40, 3)


# -- what a reader must reject -------------------------------------------------------------------------------------


def grown_group(basis: bytes, size: int, forge: Forge) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
    """GROUP records over a grown set whose dictionary of V, of indices of 16 bits, has `size` atoms."""
    k, v = forged_group(), forged_group(StreamId.V)
    return forge.seal(k), forge.seal(v, basis_hash=np.void(basis), dictionary_atoms=size)


def bad_child(
    name: str, shows: str, error: str = "CorruptRecord", *, at: str = "read", frozen: bool = False, **fields: Any
) -> None:
    """Register a log with a set that grew out of that of forged logs, whose record has changed fields."""

    @CASES.bad(name, shows, error, at=at, frozen=frozen)
    def _(forge: Forge) -> None:
        parent = forged_set()
        child = grow(parent, 3, [1])
        begin(forge)
        forge.frame(*(forge.seal(one, **fields) for one in dictionary_records(child, 1 << 16, parent)))
        forge.frame(*grown_group(fields.get("basis_hash", child.hash), 23, forge))


NAME = b"\3" * 16
bad_child("grown-parent-unknown", "a set that grew out of one that is nowhere", "MissingDictionary", parent_hash=NAME,
          frozen=True)  # fmt: skip
bad_child("grown-gap", "a set whose new atoms do not follow those of its parent", first_atom=21, atoms=24, frozen=True)
bad_child("grown-overlap", "a set whose new atoms begin before those of its parent end", first_atom=19, atoms=22)
bad_child("grown-hash", "a set that grew, and whose hash is not its name", basis_hash=NAME)
bad_child("grown-matrices", "a set that grew to more dictionaries than its parent has", matrices=3)
bad_child("grown-matrix", "a dictionary that grew and that its parent has not", matrix=2, matrices=3)
bad_child("grown-uses", "a set that grew, and is for more streams", uses=2)
bad_child("grown-mean", "a set that grew a mean", mean=1)
bad_child("grown-missing", "a set of which another dictionary grew as well", "MissingDictionary", grown=2)
bad_child("grown-itself", "a set that is its own parent", at="open", parent_hash=NAME, basis_hash=NAME)
bad_child("grown-none", "a set with a parent, of which no dictionary grew", at="open", grown=0)
bad_child("grown-many", "a set of which more dictionaries grew than it has", at="open", grown=3)


@CASES.bad("grown-circle", "two sets, each of which grew out of the other", at="read", frozen=False)
def _(forge: Forge) -> None:
    parent = forged_set()
    child = grow(parent, 3, [1])
    (record,) = dictionary_records(child, 1 << 16, parent)
    begin(forge)
    forge.frame(forge.seal(record, basis_hash=np.void(NAME), parent_hash=np.void(b"\4" * 16)))
    forge.frame(forge.seal(record, basis_hash=np.void(b"\4" * 16), parent_hash=np.void(NAME)))
    forge.frame(*grown_group(NAME, 23, forge))


def chain(length: int) -> tuple[list[Record], DictionarySet]:
    """Records of a set that grew so many times, by an atom each, and the last set."""
    own, records = forged_set(), list[Record]()
    for n in range(length):
        one = own.dictionaries[1]
        longer = replace(one, atoms=np.concatenate([one.atoms, one.atoms[:1] + np.int8(n)]))
        child = DictionarySet((own.dictionaries[0], longer))
        records += dictionary_records(child, 1 << 16, own)
        own = child
    return records, own


def long_chain(forge: Forge, length: int) -> None:
    """A log with such a set, and a group over the last one."""
    records, last = chain(length)
    begin(forge)
    for n in range(0, len(records), 25):
        forge.begin_block(2 + n // 25)
        forge.frame(*(forge.seal(one) for one in records[n : n + 25]))
    forge.frame(*grown_group(last.hash, 20 + length, forge))


@CASES.bad("grown-often", "a set that grew more than 64 times", at="read", frozen=False)
def _(forge: Forge) -> None:
    long_chain(forge, MAX_GROWTHS + 1)
