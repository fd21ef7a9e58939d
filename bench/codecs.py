"""Speed of the array codecs, one thread: values a second to and from a record's body, best and median of runs.

    python bench/codecs.py [--tokens 8192] [--runs 15] [--json]

A first look, without peers: absolute figures of a shared machine mean little, their ratios more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import ml_dtypes
import numpy as np

from kvcodec.codecs import codec_for
from kvcodec.layout import DtypeId, StreamId

HEADS, DIM = 8, 128
SPECS = ("raw", "int4/channel/g64", "int4/token/g64", "int4/channel/g64/sym", "int4/token/g64/sym")


def median_seconds(work: Callable[[], object], runs: int) -> float:
    """Median seconds of `work`, after one run that does not count."""
    work()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192, help="a multiple of 64")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = np.random.default_rng(0).standard_normal((options.tokens, HEADS, DIM), np.float32)
    bits = rows.astype(ml_dtypes.bfloat16).view(np.uint16)
    found = []
    for spec in SPECS:
        for stream in (StreamId.K, StreamId.V):
            codec = codec_for(spec, stream)
            body = codec.encode(bits, DtypeId.BFLOAT16, 64).body
            encode = median_seconds(lambda codec=codec: codec.encode(bits, DtypeId.BFLOAT16, 64), options.runs)
            decode = median_seconds(lambda c=codec, b=body: c.decode(b, 64, DIM, DtypeId.BFLOAT16), options.runs)
            found.append({"spec": spec, "stream": stream.name.lower(), "encode": bits.size / encode / 1e9,
                          "decode": bits.size / decode / 1e9})  # fmt: skip
    if options.json:
        print(json.dumps(found))
        return
    print(f"{options.tokens} tokens, {HEADS} heads of {DIM}; G values/s, medians of {options.runs} runs")
    for row in found:
        print(f"{row['stream']}  {row['spec']:<24} encode {row['encode']:6.2f}   decode {row['decode']:6.2f}")


if __name__ == "__main__":
    main()
