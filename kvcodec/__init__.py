"""kvcodec: KV caches of language models, small enough for Flash.

Importing this package imports neither numba nor numpy; each public name is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kvcodec._version import __version__

if TYPE_CHECKING:
    from kvcodec.attention.arrays import attend_arrays as attend
    from kvcodec.attention.state import AttentionState
    from kvcodec.bulk.decode import decode_log as decode
    from kvcodec.bulk.encode import encode_dump as encode
    from kvcodec.bulk.repair import repair_log as repair
    from kvcodec.bulk.train import train_dumps as train
    from kvcodec.codecs import EncodedArray, decode_array, encode_array
    from kvcodec.codecs.dictionary import Dictionary, DictionarySet
    from kvcodec.dictionary.artefact import read_dictionary
    from kvcodec.errors import KvcodecError
    from kvcodec.flash.geometry import Geometry
    from kvcodec.layout import StreamId
    from kvcodec.spec import CodecSpec
    from kvcodec.store.model import Layer, Model, Stream
    from kvcodec.store.opening import open_store as open  # noqa: A004
    from kvcodec.store.sequence import Sequence
    from kvcodec.store.store import Store
    from kvcodec.store.summaries import Summary

_WHERE = {
    "AttentionState": "kvcodec.attention.state:AttentionState",
    "CodecSpec": "kvcodec.spec:CodecSpec",
    "Dictionary": "kvcodec.codecs.dictionary:Dictionary",
    "DictionarySet": "kvcodec.codecs.dictionary:DictionarySet",
    "EncodedArray": "kvcodec.codecs:EncodedArray",
    "Geometry": "kvcodec.flash.geometry:Geometry",
    "KvcodecError": "kvcodec.errors:KvcodecError",
    "Layer": "kvcodec.store.model:Layer",
    "Model": "kvcodec.store.model:Model",
    "Sequence": "kvcodec.store.sequence:Sequence",
    "Store": "kvcodec.store.store:Store",
    "Stream": "kvcodec.store.model:Stream",
    "StreamId": "kvcodec.layout:StreamId",
    "Summary": "kvcodec.store.summaries:Summary",
    "attend": "kvcodec.attention.arrays:attend_arrays",
    "decode": "kvcodec.bulk.decode:decode_log",
    "decode_array": "kvcodec.codecs:decode_array",
    "encode": "kvcodec.bulk.encode:encode_dump",
    "encode_array": "kvcodec.codecs:encode_array",
    "read_dictionary": "kvcodec.dictionary.artefact:read_dictionary",
    "repair": "kvcodec.bulk.repair:repair_log",
    "open": "kvcodec.store.opening:open_store",
    "train": "kvcodec.bulk.train:train_dumps",
}

__all__ = [
    "AttentionState",
    "CodecSpec",
    "Dictionary",
    "DictionarySet",
    "EncodedArray",
    "Geometry",
    "KvcodecError",
    "Layer",
    "Model",
    "Sequence",
    "Store",
    "Stream",
    "StreamId",
    "Summary",
    "__version__",
    "attend",
    "decode",
    "decode_array",
    "encode",
    "encode_array",
    "open",
    "read_dictionary",
    "repair",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'kvcodec' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
