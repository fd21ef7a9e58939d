"""Logs with trellis codes: a whole one, and those whose records by them are not what they ought to be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import kvcodec
from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.codecs.rotation import Rotation
from kvcodec.codecs.transform import Analysis
from kvcodec.codecs.trellis import Trellis
from kvcodec.codecs.uses import Use
from kvcodec.layout import ALIGNMENT, StreamId
from kvcodec.log.frame import Record
from kvcodec.store.model import Model
from tools.golden.coded import Coded, put
from tools.golden.dictionaries import ROTATION
from tools.golden.fixed import fixed_random, noise
from tools.golden.forge import Forge, Forgeries
from tools.golden.forged import with_body
from tools.golden.products import make_product
from tools.golden.whole import SLC_LIKE, fill

CASES = Forgeries()
RATES = (4, 2, 4, 2, 4, 2)  # 18 bits


def make_trellis(uses: tuple[Use, ...], rates: Sequence[int], rotation: Rotation | None = None) -> Trellis:
    """Of noise: what its codes are like does not matter."""
    seed, components = 300 + 10 * uses[0][0] + uses[0][1], len(rates)
    steps = np.arange(255, dtype=np.uint16)
    return Trellis(
        np.rint(4000 * noise((components, 16), seed)).astype(np.int16), np.array(rates, np.uint8),
        np.rint(60 * noise((len(set(rates)), 256), seed + 1)).astype(np.int16),
        np.concatenate([[0], 0x3F00 + 2 * steps]).astype(np.uint16), 0x3400 + 16 * steps[:16], uses,
        noise((16,), seed + 2) / np.float32(8),
        Analysis(
            noise((components + 1, 16), seed + 3), np.full(components, 0.02, np.float32),
            np.full(components, 1 / components, np.float32),
        ),
        rotation, 4.5,
    )  # fmt: skip


@CASES.made("trellis", "K by trellis codes, of before its rotary embedding, V by product codes; a row at a time")
def _(path: Path) -> None:
    """The second writer takes up codes as they are, and rows that were journaled."""
    model, (of_k, of_v) = Model.uniform(2, 1, 16), (((0, s), (1, s)) for s in (StreamId.K, StreamId.V))
    codes = make_trellis(of_k, RATES, ROTATION)
    own = DictionarySet(products=(make_product(of_v, 16, [2, 4, 6]),), trellises=(codes,))
    options: dict[str, Any] = {"k": "tcq", "v": "pq", "residual": 0, "sinks": 2, "device": SLC_LIKE}
    how: dict[str, Any] = {"durability": "step", "journal": "int4/token/g16/sym"}
    with kvcodec.open(path, "w", model=model, capacity=1 << 20, dictionary=own, **options, **how) as store:
        fill(store.sequence("a"), 0, 10, 1)
        fill(store.sequence("a"), 10, 1, 2)
    with fixed_random("trellis", session=2), kvcodec.open(path, "a", **how) as store:
        fill(store.sequence("a"), 11, 60, 3)


# -- what a reader must reject -------------------------------------------------------------------------------------


TCQ = Coded("tcq", lambda atoms: DictionarySet((atoms,), (), (make_trellis(((0, StreamId.K),), RATES),)))

TCQ.bad_group(CASES, "trellis-no-basis", "no hash", basis_hash=bytes(16))
TCQ.bad_group(CASES, "trellis-no-bytes", "no bytes of bits", dictionary_atoms=0)
TCQ.bad_group(CASES, "trellis-many-bytes", "513 bytes of bits", dictionary_atoms=513, code_bytes=64 * 513)
TCQ.bad_group(CASES, "trellis-atoms", "atoms of a vector", atoms=1)
TCQ.bad_group(CASES, "trellis-bound", "an error bound", error_bound=1)
TCQ.bad_group(CASES, "trellis-flags", "a flag of dictionaries", flags=2)
TCQ.bad_group(CASES, "trellis-axis", "one scale a channel", axis=1)
TCQ.bad_group(CASES, "trellis-group", "records of 48 tokens", group=48)
TCQ.bad_group(CASES, "trellis-size", "more bytes of bits than its sections have", dictionary_atoms=4)


@CASES.bad("trellis-shape", "a shape of 16 in a GROUP record", at="read", frozen=False)
def _(forge: Forge) -> None:
    TCQ.add_changed(forge, TCQ.group(), put(ALIGNMENT + 64 + 5, 16))


@CASES.bad("trellis-bits", "a bit behind those of a vector in a GROUP record", at="read", frozen=False)
def _(forge: Forge) -> None:
    TCQ.add_changed(forge, TCQ.group(), put(ALIGNMENT + 4 * 64 + 5, 4))


@CASES.bad("trellis-row-bits", "a bit behind those of a vector in a ROWS record", at="read", frozen=False)
def _(forge: Forge) -> None:
    TCQ.add_changed(forge, TCQ.rows(), put(4, 4))


@CASES.bad("trellis-other-bytes", "a ROWS record of four bytes of bits, of codes of three", at="read", frozen=False)
def _(forge: Forge) -> None:
    TCQ.add_changed(forge, with_body(TCQ.rows(), bytes(12)), put(0, 0), dictionary_atoms=4)


@CASES.bad("trellis-as-product", "a CODEBOOK record of product codes, with a part of trellis codes", frozen=False)
def _(forge: Forge) -> None:
    TCQ.begin(forge, form=1)
    TCQ.add_groups(forge)


@CASES.bad("trellis-rates", "trellis codes with a component of no bits", at="read", frozen=False)
def _(forge: Forge) -> None:
    def change(record: Record) -> Record:
        body = bytearray(bytes(record.body))
        body[-1] = 0
        return with_body(record, bytes(body))

    TCQ.begin(forge, change)
    TCQ.add_groups(forge)


TCQ.bad_policy(CASES, "trellis-policy")
TCQ.bad_step(CASES, "step-of-trellis")
