"""The `jit` decorator of all kernels, and where their machine code is cached."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import FunctionCache
from numba.core.runtime.nrt import rtsys

from kvcodec.kernels._vectors import LEVEL

_F = TypeVar("_F", bound=Callable[..., Any])
_config: Any = numba.config


def hash_sources() -> str:
    """Hash of the source of all kernels and of the numba settings and SIMD level that change their machine code.

    numba's own cache key knows neither a kernel's imports nor these settings.
    """
    digest = hashlib.sha256(f"{_config.OPT} {_config.BOUNDSCHECK} {LEVEL}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def find_cache() -> Path:
    """Directory of the machine code of exactly these sources. Raises RuntimeError when there is no home."""
    if own := os.environ.get("KVCODEC_CACHE_DIR"):
        root = Path(own)
    elif xdg := os.environ.get("XDG_CACHE_HOME"):
        root = Path(xdg) / "kvcodec"
    else:
        root = Path.home() / ".cache" / "kvcodec"
    return root / f"kernels-{hash_sources()}"


@functools.cache
def _cache_directory() -> str | None:
    if os.environ.get("KVCODEC_JIT_CACHE") == "0":
        return None
    try:
        return str(find_cache())
    except (OSError, RuntimeError):
        return None


class _KernelCache(FunctionCache):
    """Machine code that is there needs none of what numba compiles with, whose import takes longer than its own."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel, or None."""
        load = getattr(self, "_load_overload", None)  # numba's own affair: without it the usual way is taken
        if load is not None:
            rtsys.initialize(target_context)  # what kernels call of numba when they take arrays
            with self._guard_against_spurious_io_errors():
                if (found := load(sig, target_context)) is not None:
                    return found
        return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]


def _enable_cache(dispatcher: Any) -> None:
    """Caching is a convenience: a read-only installation without a home goes on without."""
    directory = _cache_directory()
    if directory is None:
        return
    before = _config.CACHE_DIR
    _config.CACHE_DIR = directory
    try:
        dispatcher._cache = _KernelCache(dispatcher.py_func)  # type: ignore[no-untyped-call]
    except (OSError, RuntimeError):
        pass
    finally:
        _config.CACHE_DIR = before


def _silence(function: _F) -> _F:
    """NumPy's scalars warn of overflows which compiled code, and the kernels' contract, take for granted."""

    @functools.wraps(function)
    def silent(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args)

    return cast(_F, silent)


def part(function: _F) -> _F:
    """Compile once, for the kernels that call it: Python itself cannot."""
    return _compile(function, no_cpython_wrapper=True)


def inline(function: _F) -> _F:
    """Have a function's text stand where kernels and parts call it.

    numba optimizes a part again in each caller, and in that one's callers: deep trees of parts compile for minutes.
    """
    return _compile(function, no_cpython_wrapper=True, inline="always")


def _compile(function: _F, **options: Any) -> _F:
    if _config.DISABLE_JIT:
        return _silence(function)
    # C never calls a kernel
    every: Any = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, **options}
    return cast(_F, numba.njit(**every)(function))


def jit(function: _F) -> _F:
    """Compile a kernel on first use: without the GIL, without fastmath, division by zero as IEEE 754 has it."""
    dispatcher = _compile(function)
    if not _config.DISABLE_JIT:
        _enable_cache(dispatcher)
    return dispatcher
