"""Naive rotary embedding by the integer angles of formats/dictionary.md, in Python's own integers."""

from functools import cache
from math import cos, pi

import numpy as np


@cache
def cosine_of_point(n):
    return round(2**30 * cos(2 * pi * (n % 4096) / 4096))


@cache
def turn_of(position, step):
    """Cosine and sine, Q30."""
    angle = position * step % 2**64
    point = (angle + 2**51) // 2**52
    rest = angle - point * 2**52
    cosine, sine = cosine_of_point(point), cosine_of_point(point - 1024)
    small = (rest // 2**21) * 1686629713 // 2**31
    square = small * small // 2**41
    return (
        cosine - sine * small // 2**40 - cosine * square // 2**40,
        sine + cosine * small // 2**40 - sine * square // 2**40,
    )


def turn_rows(rows, positions, steps):
    """float32 (n, dim) of float32 rows (n, dim), each turned to its position."""
    out, pairs = rows.copy(), len(steps)
    for row, position in zip(out, positions, strict=True):
        for i, step in enumerate(steps):
            c, s = (np.float32(x) * np.float32(2**-30) for x in turn_of(int(position), int(step)))
            a, b = row[i], row[i + pairs]
            row[i], row[i + pairs] = a * c - b * s, b * c + a * s
    return out
