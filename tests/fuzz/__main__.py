"""Coverage-guided fuzzing of one target: `python -m tests.fuzz log -max_total_time=60`, options being libFuzzer's.

Needs the extra `fuzz` (atheris). Kernels are not instrumented: what they are called with is. Inputs that widen the
coverage are kept in the folders that are named beside the options, and whatever fails is written to crash-*, to become
a file of tests/fuzz/corpus.
"""

from __future__ import annotations

import importlib
import pkgutil
import resource
import sys
import warnings

import atheris

from kvcodec import kernels as kernel_package
from tests.fuzz.corpus import TARGETS, inputs

_FUZZED = ("flash", "log", "codecs", "dictionary", "dumps", "attention", "store", "bulk")
_MEMORY = 4 << 30  # bytes of address space
_FILE = 256 << 20  # bytes of a file
_SECONDS = 120  # of one input, with the kernels that it is the first to need


def main() -> None:
    """Fuzz the target that the first argument names."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"which target? Want one of {', '.join(TARGETS)}")
    name, options = sys.argv[1], sys.argv[2:]
    kernels = [f"kvcodec.kernels.{module.name}" for module in pkgutil.iter_modules(kernel_package.__path__)]
    with atheris.instrument_imports(include=["kvcodec"], exclude=["kvcodec.kernels", *kernels]):
        for package in _FUZZED:
            for module in pkgutil.iter_modules(importlib.import_module(f"kvcodec.{package}").__path__):
                importlib.import_module(f"kvcodec.{package}.{module.name}")
        run = importlib.import_module(f"tests.fuzz.{name}_target").run
    warnings.simplefilter("error")
    for _, data in inputs(name):  # has kernels compiled before anything is timed, or memory is bounded
        run(data)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))
    atheris.Setup(
        [sys.argv[0], f"-timeout={_SECONDS}", "-max_len=256", "-len_control=0", "-rss_limit_mb=3072", *options], run
    )
    atheris.Fuzz()


main()
