"""A device that loses power: what was asked of its file, and the file as it may be after any of it."""

from __future__ import annotations

import contextlib
from typing import NamedTuple
from unittest import mock

from kvcodec.flash.image import Image


class Write(NamedTuple):
    """Bytes for a place of the file."""

    offset: int
    data: bytes


class Erase(NamedTuple):
    """A range that becomes zeros."""

    offset: int
    length: int


class Sync(NamedTuple):
    """All before is on the medium."""


class Recorder:
    """What is asked of files that are open for writing, in order. marks: how much had been asked at each `mark`."""

    def __init__(self):
        self.asked, self.marks = [], []

    def mark(self):
        """Something of interest was done."""
        self.marks.append(len(self.asked))

    @contextlib.contextmanager
    def recording(self):
        """While this lasts."""
        write, punch, sync = Image.write, Image.punch, Image.sync

        def record_write(image, offset, data):
            write(image, offset, data)
            if image.published:
                self.asked.append(Write(offset, bytes(data)))

        def record_punch(image, offset, length):
            punch(image, offset, length)
            self.asked.append(Erase(offset, length))

        def record_sync(image):
            sync(image)
            if image.published:
                self.asked.append(Sync())

        with (
            mock.patch.object(Image, "write", record_write),
            mock.patch.object(Image, "punch", record_punch),
            mock.patch.object(Image, "sync", record_sync),
        ):
            yield


def apply(image, one):
    """One thing that was asked, on a bytearray; a write grows it."""
    if isinstance(one, Write):
        if len(image) < one.offset + len(one.data):
            image.extend(bytes(one.offset + len(one.data) - len(image)))
        image[one.offset : one.offset + len(one.data)] = one.data
    elif isinstance(one, Erase):
        end = min(len(image), one.offset + one.length)
        image[one.offset : end] = bytes(max(0, end - one.offset))


def pieces(one, unit):
    """A write as the program units and slots that it is made of, an erase as itself."""
    if not isinstance(one, Write):
        return [one]
    size = unit if len(one.data) % 16 or len(one.data) >= unit else 16
    return [Write(one.offset + at, one.data[at : at + size]) for at in range(0, len(one.data), size)]


def apply_in_part(image, erase, lot, unit):
    """An erase that reaches from somewhere to somewhere, or some of its slots or units."""
    size = lot.choice([None, 16, unit])
    if size is None:
        first, end = sorted(lot.randrange(erase.length + 1) for _ in range(2))
        apply(image, Erase(erase.offset + first, end - first))
        return
    for at in range(0, erase.length, size):
        if lot.random() < 0.5:
            apply(image, Erase(erase.offset + at, size))


def synced_and_loose(before, asked, unit):
    """The file as the last sync left it, as a bytearray, and the pieces that were asked since."""
    synced = max((n + 1 for n, one in enumerate(asked) if isinstance(one, Sync)), default=0)
    image = bytearray(before)
    for one in asked[:synced]:
        apply(image, one)
    return image, [piece for one in asked[synced:] for piece in pieces(one, unit)]


def after_few_lost(before, asked, count, unit, lot, few):
    """`after_loss` of so few of the pieces that no sync covers, often of the first ones; all others are there."""
    image, loose = synced_and_loose(before, asked[:count], unit)
    near = len(loose) if lot.random() < 0.5 else min(len(loose), 3 * few)
    lost = set(lot.sample(range(near), min(few, near)))
    for n, piece in enumerate(loose):
        if n not in lost:
            apply(image, piece)
        elif isinstance(piece, Erase) and lot.random() < 0.5:
            apply_in_part(image, piece, lot, unit)
    return bytes(image)


def after_loss(before, asked, count, unit, lot=None):
    """The file if power fails behind `count` things of those asked, on top of the file `before`.

    lot: of what no sync covers any part may be lost, piece by piece, and a piece in part; without it, all that
    was asked is there.
    """
    image, synced = bytearray(before), 0
    if lot is not None:
        synced = max((n + 1 for n, one in enumerate(asked[:count]) if isinstance(one, Sync)), default=0)
    for n, one in enumerate(asked[:count]):
        if lot is None or n < synced:
            apply(image, one)
            continue
        for piece in pieces(one, unit):
            fate = lot.random()
            if fate < 0.5:
                apply(image, piece)
            elif fate < 0.6 and isinstance(piece, Write):
                apply(image, Write(piece.offset, piece.data[: lot.randrange(len(piece.data) + 1)]))
            elif fate < 0.6 and isinstance(piece, Erase):
                apply_in_part(image, piece, lot, unit)
    return bytes(image)
