"""SIMD levels give the same integers, kernels hold no floats, and the instructions are those that were meant."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from llvmlite.binding import get_host_cpu_features

from kvcodec.kernels._vectors import HAS_AVX2, HAS_VNNI
from tests.attention_problems import small_problems, solve

ROOT = Path(__file__).parent.parent
INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
pytestmark = pytest.mark.skipif(INTERPRETED, reason="there is no machine code")
FEATURES = get_host_cpu_features()
NATIVE = "avx512vnni" if HAS_VNNI else "avx2" if HAS_AVX2 else "portable"  # the level of the processor's own
LEVELS = sorted(("portable", "avx2", "avx512vnni"), key=lambda level: level != NATIVE)  # others wait for its kernels

FLOATS = re.compile(
    r"\b(?:half|bfloat|float|double|fp128|x86_fp80|fadd|fsub|fmul|fdiv|frem|fneg|fcmp|fptosi|fptoui|sitofp|uitofp|"
    r"fpext|fptrunc)\b"
)
NAMES = re.compile(r'[@%$!]"[^"]*"|[@%$!#][-\w.$]+|c?"[^"]*"|;.*')


def words_of(llvm):
    """LLVM IR without names, strings, metadata and comments: types and instructions are left."""
    return NAMES.sub(" ", llvm)


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """Run tests/simd_report.py once with each environment, whichever of several test processes comes first."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "KVCODEC_"))}
    inherited |= {"PYTHONPATH": str(ROOT)}
    if own := os.environ.get("KVCODEC_CACHE_DIR"):
        inherited["KVCODEC_CACHE_DIR"] = own

    @cache
    def run(*arguments, **environment):
        path = folder / "-".join(["simd", *arguments, *environment.values()])
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                command = [sys.executable, "-m", "tests.simd_report", str(path), *arguments]
                subprocess.run(command, cwd=ROOT, env=inherited | environment, check=True, timeout=900)
        return json.loads(path.read_text())

    return run


@pytest.fixture(scope="session")
def wanted():
    digest = hashlib.sha256()
    for problem in small_problems():
        digest.update(json.dumps(solve(problem)).encode())
    return digest.hexdigest()


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_gives_the_integers_of_the_twins(level, report, wanted):
    found = report(KVCODEC_SIMD=level)
    assert (found["level"], found["hash"]) == (level, wanted)


def test_interpreted_kernels_give_the_integers_of_the_twins(report, wanted):
    assert report(NUMBA_DISABLE_JIT="1")["hash"] == wanted


PARTS = {
    "attend_items": [
        "dot_tiles",
        "weigh_tokens",
        "score_rows",
        "value_rows",
        "add_outputs",
        "unpack_codes",
        "score_codes",
        "rebuild_rows",
        "place_others",
        "turn_query",
        "score_products",
        "weigh_products",
        "rebuild_product_rows",
        "look_up_windows",
    ],
    "score_strips": ["dot_tiles", "score_rows", "unpack_codes", "score_codes", "rebuild_rows", "score_products"],
    "merge_slots": [],
    "make_tables": ["multiply_atoms", "multiply_basis"],
}


@pytest.mark.parametrize(
    ("level", "kernel"),
    [(level, kernel) for level in LEVELS for kernel in PARTS if level == NATIVE or kernel != "score_strips"],
)
def test_kernels_are_integer_only(level, kernel, report):
    found = report(KVCODEC_SIMD=level)
    llvm = found["llvm"][kernel]
    assert found["cached"] == 0
    for name in [kernel, *PARTS[kernel]]:  # it is no stub of what was loaded from a cache
        inlined = rf"^!\d+ = distinct .*\d{name}B"  # all that is left of it then is a scope
        assert re.search(rf"^define .*\d{name}B|{inlined}", llvm, re.M), name
    assert len(llvm) > 10_000
    words = words_of(llvm)
    assert words.count("i64") > 100
    assert FLOATS.findall(words) == []


def test_floats_would_be_found():
    import numba

    @numba.njit
    def halve(float_, half):
        return float_ * half

    @numba.njit
    def multiply(float_, half):
        return float_ * half

    halve(np.float32(3), np.float32(0.5))
    multiply(3, 5)
    floats = [FLOATS.findall(words_of("".join(f.inspect_llvm().values()))) for f in (halve, multiply)]
    assert {"float", "fmul"} <= set(floats[0])
    assert "%arg.half" in "".join(multiply.inspect_llvm().values())
    assert floats[1] == []


@pytest.mark.skipif(not FEATURES.get("avx2"), reason="the processor lacks AVX2")
def test_avx2_multiplies_bytes_and_words(report):
    part = assembly_of(report(KVCODEC_SIMD="avx2")["assembly"]["attend_items"], "dot_tiles")
    assert re.search(r"\bvpmaddubsw\b.*%ymm", part)
    assert re.search(r"\bvpmaddwd\b.*%ymm", part)


@pytest.mark.skipif(not FEATURES.get("avx512vnni"), reason="the processor lacks AVX-512 VNNI")
def test_avx512_multiplies_by_fours(report):
    part = assembly_of(report(KVCODEC_SIMD="avx512vnni")["assembly"]["attend_items"], "dot_tiles")
    assert re.search(r"\bvpdpbusd\b.*%zmm", part)


@pytest.mark.skipif("x86" not in os.uname().machine, reason="LLVM compiles for this processor's kind alone")
def test_avx512_code_for_another_processor_multiplies_by_fours(report):
    found = report("compile", KVCODEC_SIMD="avx512vnni", NUMBA_CPU_NAME="znver4", NUMBA_CPU_FEATURES="")
    assert re.search(r"\bvpdpbusd\b.*%zmm", assembly_of(found["assembly"]["dot_tiles"], "dot_tiles"))


def assembly_of(assembly, name):
    """The code of one function, in all the forms in which it is called."""
    parts = re.split(r"^(?=\w+:)", assembly, flags=re.M)
    own = [part for part in parts if re.match(rf"\w*\d{name}B\w*:", part)]
    assert own
    return "".join(own)


def test_a_kernel_is_compiled_once_for_all_uses(report):
    assert report(KVCODEC_SIMD=NATIVE)["signatures"] == dict.fromkeys(PARTS, 1)


def test_an_unknown_level_is_refused():
    code = "import kvcodec.kernels.attend"
    environment = os.environ | {"KVCODEC_SIMD": "sse9", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "KVCODEC_SIMD is 'sse9', want one of portable, avx2, avx512vnni" in done.stderr
