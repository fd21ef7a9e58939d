"""What a bench ran on, for readers of its figures."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import llvmlite.binding
import numba
import numpy as np

from kvcodec._version import __version__

_FLAGS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_vbmi", "avx512_bf16", "amx_int8",
    "asimd", "asimddp", "i8mm", "sve", "sve2",
)  # fmt: skip


def describe_machine() -> dict[str, str]:
    """Processor, its SIMD and caches, and the versions of what compiles the kernels."""
    fields = _processor()
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return {
        "processor": fields.get("model name", platform.machine()),
        "model": " ".join(f"{n} {fields[n]}" for n in ("cpu family", "model", "stepping") if n in fields),
        "SIMD": " ".join(f for f in _FLAGS if f in flags),
        "cores": str(len(os.sched_getaffinity(0))),
        "caches": _caches(),
        "system": f"{platform.system()} {platform.release()}",
        "kvcodec": __version__,
        "Python": sys.version.split()[0],
        "numpy": np.__version__,
        "numba": f"{numba.__version__}, LLVM {'.'.join(map(str, llvmlite.binding.llvm_version_info))}",
    }


def _processor() -> dict[str, str]:
    """Fields of the first processor in /proc/cpuinfo; none where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _caches() -> str:
    found = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            found.append(f"L{level} {size}")
    return ", ".join(found)
