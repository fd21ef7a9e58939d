"""Whole logs, made by the store, so that they freeze the writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import kvcodec
from kvcodec.layout import MAX_TOKEN, StreamId
from kvcodec.store.coding import Coding, Wish
from kvcodec.store.model import Layer, Model, Stream
from kvcodec.store.sequence import Sequence
from tools.golden.case import DEVICE, Cases
from tools.golden.example import example_model, example_records
from tools.golden.fixed import fixed_random, noise

SLC_LIKE = "page=512,unit=256,block=8192"
CASES = Cases()


def fill(sequence: Any, first: int, tokens: int, seed: int) -> None:
    """Append tokens to every layer that keeps a cache, one layer after the other."""
    for n, layer in enumerate(sequence._index.model.layers):
        if layer.streams:
            k, v = (noise((tokens, s.heads, s.dim), seed * 1000 + n * 10 + s.id + first * 7) for s in layer.streams)
            sequence.append(n, k, v)


def write_log(path: Path, model: Model, tokens: int, *, device: str = DEVICE, **options: Any) -> None:
    """A log with one sequence of `tokens` tokens, appended in two goes with a sync between them."""
    with kvcodec.open(path, "w", model=model, device=device, capacity=1 << 20, **options) as store:
        sequence = store.sequence("a")
        fill(sequence, 0, 6, 1)
        store.sync()
        fill(sequence, 6, tokens - 6, 2)


@CASES.made("int4", "K per channel, V per token, sinks, residual rows, a tail as STEP, two syncs")
def _(path: Path) -> None:
    write_log(path, Model.uniform(2, 1, 16), 150, k="int4/channel/g64", v="int4/token/g16", residual=8, sinks=4)


@CASES.made("int4-symmetric", "no zeros; groups of 32")
def _(path: Path) -> None:
    write_log(path, Model.uniform(1, 1, 32), 140, k="int4/channel/g32/sym", v="int4/token/g32/sym", residual=0, sinks=0)


@CASES.made("int4-axes-swapped", "K per token, V per channel: the stream picks the tile; groups of 128")
def _(path: Path) -> None:
    write_log(path, Model.uniform(1, 1, 48), 135, k="int4/token/g32", v="int4/channel/g128", residual=3, sinks=1)


def write_grouped(path: Path, codec: str) -> None:
    """Both axes in both tiles, with and without zeros; groups, lanes and tiles that are not filled."""
    axes, forms = (("channel", "token"), ("token", "channel")), ("/g16", "/g16/sym")
    specs = [{"k": f"{codec}/{k}{form}", "v": f"{codec}/{v}{form}"} for form in forms for k, v in axes]
    layers = tuple((frozenset([n]), Wish.parse(spec, "golden")) for n, spec in enumerate(specs))
    write_log(path, Model.uniform(4, 1, 24), 70, spec=Coding(layers=layers), residual=0, sinks=0)


@CASES.made("int8", "codes of 8 bits: both axes in both tiles, with and without zeros")
def _(path: Path) -> None:
    write_grouped(path, "int8")


@CASES.made("int2", "codes of 2 bits: both axes in both tiles, with and without zeros")
def _(path: Path) -> None:
    write_grouped(path, "int2")


@CASES.made("raw", "raw GROUP records")
def make_raw(path: Path) -> None:
    """Rows as they are."""
    write_log(path, Model.uniform(1, 1, 16), 70, k="raw", v="raw", residual=0, sinks=0)


@CASES.made("float16", "a float16 model")
def _(path: Path) -> None:
    write_log(path, Model.uniform(1, 1, 16, dtype="float16"), 80, residual=8, sinks=2)


@CASES.made("head-dim-80", "a head dimension that fills no whole number of 64-channel groups")
def _(path: Path) -> None:
    write_log(path, Model.uniform(1, 1, 80), 66, residual=0, sinks=0)


@CASES.made("head-dim-20-12", "K and V of different head dimensions, padded to 16 channels in the tile")
def _(path: Path) -> None:
    layer = Layer.kv(1, 20, v_head_dim=12)
    write_log(path, Model((layer,)), 70, residual=0, sinks=3)


@CASES.made("head-split", "records split by heads at the end of a block")
def _(path: Path) -> None:
    device = "page=512,unit=64,block=4096"
    model = Model.uniform(1, 4, 32)
    with kvcodec.open(path, "w", model=model, device=device, capacity=1 << 20, residual=0, sinks=0) as store:
        fill(store.sequence("a"), 0, 64, 1)


@CASES.made("larger-units", "a program unit of 256 bytes: frames share units, a sync pads")
def _(path: Path) -> None:
    write_log(path, Model.uniform(1, 1, 16), 80, device=SLC_LIKE, residual=8, sinks=4)


@CASES.made("small-blocks", "many erase blocks of 2 KiB")
def _(path: Path) -> None:
    device = "page=512,unit=64,block=2048"
    write_log(path, Model.uniform(1, 1, 16), 72, device=device, residual=4, sinks=4)


@CASES.made("latent", "streams c and kr, a layer without cache, a window, a shard, raw by default")
def _(path: Path) -> None:
    latent = Layer((Stream(StreamId.C, 1, 32), Stream(StreamId.KR, 1, 16)))
    model = Model((latent, Layer(), Layer.kv(2, 16, window=32, rope_base=10000.0)), name="mixed", shard=1, shards=2)
    write_log(path, model, 24, residual=8, sinks=0)


@CASES.made(
    "steps", "a STEP record for each step: rows of V coded one by one, of K journaled; full groups laid from codes"
)
def _(path: Path) -> None:
    """Rows become durable one step at a time; the second writer takes codes up as they are."""
    options: dict[str, Any] = {"durability": "step", "journal": "int4/token/g16/sym"}
    model, sizes = Model.uniform(2, 1, 16), {"residual": {"k": 3, "v": 0}, "sinks": 2}
    with kvcodec.open(
        path, "w", model=model, device=SLC_LIKE, capacity=1 << 20, v="int4/token/g16", **sizes, **options
    ) as s:
        fill(s.sequence("a"), 0, 20, 1)
    with fixed_random("steps", session=2), kvcodec.open(path, "a", **options) as s:
        fill(s.sequence("a"), 20, 50, 2)
        fill(s.sequence("a"), 70, 1, 3)


@CASES.made("window", "a layer whose window left the first tokens behind: they were never written")
def _(path: Path) -> None:
    model = Model((Layer.kv(1, 16, window=20), Layer.kv(1, 16)))
    with mock.patch.object(Sequence, "_length_with", return_value=MAX_TOKEN):  # as it was written: formats/errata.md
        write_log(path, model, 150, residual=0, sinks=0)


@CASES.made("sequences", "three sequences in turn, names beyond ASCII")
def _(path: Path) -> None:
    model = Model.uniform(1, 1, 16, name="tiny")
    with kvcodec.open(path, "w", model=model, device=DEVICE, capacity=1 << 20, residual=0, sinks=4) as store:
        for go in range(2):
            for n, name in enumerate(("first", "zweite Folge", "третья")):
                fill(store.sequence(name), go * 36, 36 - 5 * n, n + 1)


@CASES.made("torn-tail", "a crash in the middle of a frame that was not synced", modes=True)
def make_torn(path: Path) -> None:
    """Whole units of frames that no sync followed, the rest of the last frame lost."""
    options: dict[str, Any] = {"device": DEVICE, "capacity": 1 << 20, "residual": 0, "sinks": 0}
    store = kvcodec.open(path, "w", model=Model.uniform(1, 1, 16), **options)
    fill(store.sequence("a"), 0, 70, 1)
    store.sync()
    fill(store.sequence("a"), 70, 70, 2)
    store.abandon()


@CASES.made("gap", "a second writer took up the torn tail and left a gap", modes=True)
def _(path: Path) -> None:
    make_torn(path)
    with fixed_random("gap", session=2), kvcodec.open(path, "a") as store:
        sequence = store.sequence("a")
        fill(sequence, len(sequence), 60, 3)


@CASES.made("drop", "layers that disagreed at the end of a session, and the DROP that settled it")
def _(path: Path) -> None:
    """Layers that disagreed at the end of the first session: the second writer drops what is beyond the shorter."""
    options: dict[str, Any] = {"device": DEVICE, "capacity": 1 << 20, "residual": 0, "sinks": 0}
    model = Model.uniform(2, 1, 16)
    with kvcodec.open(path, "w", model=model, **options) as store:
        k = noise((70, 1, 16), 5)
        store.sequence("a").append(0, k, -k)
        store.sequence("a").append(1, k[:20], -k[:20])
    with fixed_random("drop", session=2), kvcodec.open(path, "a") as store:
        fill(store.sequence("a"), 20, 50, 6)


@CASES.made("cleaned", "sequences that were forked, cut, evicted from and dropped, in blocks that were cleaned")
def _(path: Path) -> None:
    """Records of both lanes, FREED, RETIRED and DROP of every scope among them."""
    options: dict[str, Any] = {"device": "page=512,unit=64,block=4096", "capacity": 1 << 18, "residual": 0, "sinks": 0}
    with kvcodec.open(path, "w", model=Model.uniform(1, 1, 16), faults="seed=1,bad=0.05", **options) as store:
        for n, name in enumerate(("first", "second", "third", "fourth")):
            fill(store.sequence(name), 0, 80, n)
        store.fork("second", "fork", 40)
        store.sequence("first").truncate(40)
        store.drop("second")
        store.drop("third")
        store.sequence("fourth").evict(10, 60)
        store.sync()
        store.compact()
        fill(store.sequence("fork"), 40, 40, 9)
        store.compact()


@CASES.made("summary", "rows that stand for ranges of tokens; some a crash left without their DROP record")
def _(path: Path) -> None:
    """Two summaries, one of rows that are for later queries, beside codes; a fork that has them."""
    options: dict[str, Any] = {"k": "int4/channel/g16", "v": "int4/token/g16", "residual": 0, "sinks": 0}
    with kvcodec.open(path, "w", model=Model.uniform(1, 2, 16), device=DEVICE, capacity=1 << 20, **options) as store:
        sequence = store.sequence("a")
        fill(sequence, 0, 70, 1)
        k, v = (noise((5, 2, 16), seed) for seed in (3, 4))
        with mock.patch.object(store, "log_change", lambda *records: store.log_records(records[:-1])):
            sequence.summarize(4, 40, {0: (k, v)})
        sequence.summarize(4, 40, {0: (v[:3], k[:3])}, positions=[4, 20, 39], visible_from=[40, 60, 80])
        sequence.summarize(50, 64, {0: (k[3:], v[3:])})
        store.fork("a", "fork", 64)
        sequence.evict(50, 64)


@CASES.made("worked-example", "every kind of record; the bytes that formats/ shows")
def _(path: Path) -> None:
    """The log whose bytes formats/*.md show."""
    model = example_model()
    options: dict[str, Any] = {
        "device": DEVICE,
        "capacity": 1 << 20,
        "k": "int4/channel/g16",
        "v": "int4/token/g16/sym",
    }
    with kvcodec.open(path, "w", model=model, residual=0, sinks=0, **options) as store:
        store.sequence("demo")
        for record in example_records():
            store.log_records([record])
            store.sync()


@CASES.made("durable-lost", "the end of a clean log is missing, and its sidecar says so", "CorruptRecord", modes=True)
def _(path: Path) -> None:
    """A clean log without its last frames, beside the sidecar that knows of them."""
    make_raw(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 64)
