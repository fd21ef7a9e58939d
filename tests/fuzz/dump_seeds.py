"""Small dumps to be mutated, of every format and layout that is read."""

from __future__ import annotations

import functools
import io
import json
import struct
import zipfile

import ml_dtypes
import numpy as np

_KINDS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float8_e4m3fn": "F8_E4M3", "int32": "I32"}


def _rows(seed: int, shape: tuple[int, ...], dtype: object = np.float16) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _safetensors(tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> bytes:
    table, body = {"__metadata__": metadata} if metadata else {}, b""
    for name, array in tensors.items():
        ends = [len(body), len(body) + array.nbytes]
        table[name] = {"dtype": _KINDS[str(array.dtype)], "shape": list(array.shape), "data_offsets": ends}
        body += array.tobytes()
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + body


def _npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array)
    return out.getvalue()


def _npz(arrays: dict[str, np.ndarray], compression: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, array in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), _npy(array), compression)
        archive.writestr(zipfile.ZipInfo("metadata.json"), b'{"kv_heads": "2", "head_dim": "4"}', compression)
    return out.getvalue()


def _gguf() -> bytes:
    def string(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text

    pairs = string(b"a") + struct.pack("<II", 4, 7) + string(b"b") + struct.pack("<IIQ", 9, 8, 1) + string(b"c")
    tensor = string(b"t") + struct.pack("<IQQIQ", 2, 3, 4, 0, 0)
    return struct.pack("<4sIQQ", b"GGUF", 3, 1, 2) + pairs + tensor


@functools.cache
def dump_seeds() -> list[tuple[str, bytes]]:
    """Extension of the file's name, and its bytes; inputs name one by its number."""
    three, flat, one = (5, 2, 4), (5, 8), (1, 2, 5, 4)
    queries = {"q.0": _rows(5, (2, 4, 4), np.float32), "q_pos": np.array([1, 3], np.int32)}
    fp8 = {n: _rows(i, three, ml_dtypes.float8_e4m3fn) for i, n in enumerate(("k.0", "v.0"))}
    scales = {f"{n}.0.scale": np.ones(1, np.float32) for n in "kv"}
    latents = {"c.0": _rows(7, (5, 1, 8)), "kr.0": _rows(8, (5, 1, 4))}
    pair = {"k.0": _rows(1, three), "v.0": _rows(2, three)}
    told = {"kv_heads": "2", "head_dim": "4", "scale": "0.5", "window.0": "3", "rope_theta": "1e4"}
    return [
        ("safetensors", _safetensors(pair | queries, told)),
        ("safetensors", _safetensors({"layers.0.key": _rows(1, flat), "layers.0.value": _rows(2, flat)}, told)),
        ("safetensors", _safetensors({n: _rows(3, one, ml_dtypes.bfloat16) for n in ("k.1", "v.1", "k.0", "v.0")})),
        ("safetensors", _safetensors(fp8 | scales)),
        ("safetensors", _safetensors(latents)),
        ("safetensors", _safetensors({"kv": _rows(4, (2, 2, 2, 5, 4), np.float32)})),
        ("npz", _npz(pair, zipfile.ZIP_STORED)),
        ("npz", _npz(pair, zipfile.ZIP_DEFLATED)),
        ("npz", _npz({"layer_0_k": _rows(1, flat), "layer_0_v": _rows(2, flat)}, zipfile.ZIP_DEFLATED)),
        ("npy", _npy(_rows(6, (1, 2, 2, 5, 4)))),
        ("npy", _npy(np.asfortranarray(_rows(6, (1, 2, 2, 5, 4), np.float32)))),
        ("bin", _safetensors(pair)),
        ("gguf", _gguf()),
        ("json", b'{"hidden_size": 640, "layers": [1, 2.5, null, true], "name": "m\\u00e9"}'),
    ]  # fmt: skip
