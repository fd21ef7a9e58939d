"""Attention on codes over dictionaries: against naive twins bit by bit, and against float64 over the decoded rows."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attention_problems import EXTREME, NORMAL, SUBNORMAL, Kind, coded_kind, make_problem, raw_kind, run, score, solve

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
TOKENS = 60 if INTERPRETED else 300
DIMS = [1, 24, 40] if INTERPRETED else [1, 16, 24, 64, 72, 128, 272, 576, 1024]
ATOMS = [1, 7, 64, 100, 256]


@st.composite
def dictionary_kinds(draw, *styles):
    terms = draw(st.integers(1, 32 if not INTERPRETED else 6))
    low = draw(st.sampled_from([0, 0, terms // 3]))
    return Kind(
        draw(st.sampled_from([4, 5, 6, 8])), style=draw(st.sampled_from(styles)), terms=terms,
        atoms=draw(st.sampled_from(ATOMS)), mean=draw(st.booleans()), sets=draw(st.booleans()), low=low,
    )  # fmt: skip


def other_kinds(*styles):
    return st.one_of(
        st.builds(coded_kind, st.sampled_from([8, 4, 2]), st.booleans(), st.sampled_from([16, 64]), st.booleans()),
        st.builds(raw_kind, st.booleans(), st.sampled_from(styles)),
    )


@st.composite
def problems(draw, styles=(NORMAL, NORMAL, SUBNORMAL)):
    tokens, latent = draw(st.integers(1, TOKENS)), draw(st.booleans())
    pieces, sizes = [], []
    for _ in range(2):
        inside = draw(st.lists(st.integers(1, tokens), max_size=3))
        sizes.append(np.diff(sorted({0, tokens, *inside})).tolist())
        kinds = st.one_of(dictionary_kinds(*styles), dictionary_kinds(*styles), other_kinds(*styles))
        pieces.append([draw(kinds) for _ in sizes[-1]])
    return make_problem(
        draw(st.integers(0, 2**32 - 1)), pieces, sizes, (draw(st.sampled_from(DIMS)), draw(st.sampled_from(DIMS))),
        kv_heads=draw(st.integers(1, 2)), per_head=draw(st.integers(1, 6)), width=draw(st.sampled_from([16, 8])),
        spread=draw(st.sampled_from([0.0, 0.1, 2.0, 5.0])), latent=latent,
        q_style=draw(st.sampled_from([NORMAL, EXTREME])),
    )  # fmt: skip


@settings(max_examples=10 if INTERPRETED else 60)
@given(problems())
def test_any_attention_over_dictionaries_is_its_twins_bit_by_bit(problem):
    assert run(problem)[0] == solve(problem)


@settings(max_examples=5 if INTERPRETED else 30)
@given(problems((EXTREME,)))
def test_codes_of_any_size_are_their_twins_bit_by_bit(problem):
    assert run(problem)[0] == solve(problem)


@settings(max_examples=5 if INTERPRETED else 30)
@given(problems((NORMAL, SUBNORMAL, EXTREME)))
def test_logits_alone_are_their_twins_bit_by_bit(problem):
    found, wanted = score(problem)
    assert found == wanted
