"""Which tensor of a dump is which: names that are recognised, and the user's own patterns.

L is a layer number in decimal. K is one of `k key keys k_cache key_cache key_states cache_k`, V likewise
`v value values v_cache value_cache value_states cache_v`; `.`, `_` and `/` part words.

| form | examples |
|---|---|
| K.L | `k.0`, `k_0`, `keys.0`, `key_cache.0` |
| L.K | `0.key`, `0.v` |
| layer.L.K, after any dotted prefix | `layers.0.k`, `layer_0_key`, `model.layers.0.v` |
| layer.L.attention.K (`attn`, `attention`, `self_attn`, `self_attention`) | `model.layers.0.self_attn.k` |
| past_key_values.L.K, also `past`, `past_key_value`, `present`, `kv_cache` | `past_key_values.0.key` |
| past_key_values.L.0 and .1, likewise | `past_key_values.0.0` is K, `past_key_values.0.1` is V |
| one tensor (layers, 2, heads, tokens, dim) under any name | `kv`: if no name above fits and no other is like it |

Where none of them is there, the streams of multi-head latent attention are looked for: the latent, one of
`c c_kv kv_c latent compressed_kv`, and the position key, one of `kr k_pe k_rope k_pos`, in the first four forms.

Everything else is neither: `q.L`, `q_pos`, `ids`, `k_pre.L`, weights such as `layers.0.self_attn.k_proj.weight`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kvcodec.errors import DumpError
from kvcodec.layout import StreamId

LAYERS_MAX = 65535  # what the log's layer numbers can hold
NAMES_SHOWN = 20
_SHOWN_CHARS = 120
_LAYER = r"(?P<layer>[0-9]{1,5})"
_K = r"(?P<k>k|keys?|k_cache|key_cache|key_states|cache_k)"
_V = r"(?P<v>v|values?|v_cache|value_cache|value_states|cache_v)"
_C = r"(?P<k>c|c_kv|kv_c|latent|compressed_kv)"
_KR = r"(?P<v>kr|k_pe|k_rope|k_pos)"
_PREFIX = r"(?:[A-Za-z]\w*[./])*"
_PAST = r"(?:past_key_values?|past|present|kv_cache)"
PAIRS = ((StreamId.K, StreamId.V), (StreamId.C, StreamId.KR))  # of a layer, both or none


def _forms(first: str, second: str) -> tuple[re.Pattern[str], ...]:
    pair = rf"(?:{first}|{second})"
    forms = (
        rf"{pair}[._/]{_LAYER}",
        rf"{_LAYER}[._/]{pair}",
        rf"{_PREFIX}layers?[._/]{_LAYER}[._/](?:(?:self_)?(?:attn|attention)[._/])?{pair}",
        rf"{_PREFIX}{_PAST}[._/]{_LAYER}[._/]{pair}",
    )
    return tuple(re.compile(form, re.ASCII) for form in forms)


_BY_NUMBER = re.compile(rf"{_PREFIX}{_PAST}[._/]{_LAYER}[._/](?:(?P<k>0)|(?P<v>1))", re.ASCII)
_FORMS = (*_forms(_K, _V), _BY_NUMBER)
_LATENT_FORMS = _forms(_C, _KR)
_STREAMS = {stream.name.lower(): stream for pair in PAIRS for stream in pair}
_PLACEHOLDER = "{layer}"
_MAP_HINT = 'name them: --map "k=model.{layer}.key" --map "v=model.{layer}.value"'


class Source(NamedTuple):
    """Where the rows of one (layer, stream) are.

    name: of the tensor. stacked: None, or (layer, 0 for K and 1 for V) in its first two axes.
    """

    name: str
    stacked: tuple[int, int] | None = None


class Pattern(NamedTuple):
    """A user's pattern: which names are `stream`, with the layer number as the only group."""

    stream: StreamId
    regex: re.Pattern[str]


Sources = dict[tuple[int, StreamId], Source]


def shown(name: str) -> str:
    """A name from a file, fit for one line of an error: quoted, escaped, at most 120 characters of it."""
    return ascii(name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "...")


def parse_mapping(mapping: Sequence[str]) -> tuple[Pattern, ...]:
    """The patterns of `mapping`, texts such as "k=model.{layer}.key".

    Raises DumpError for a text that is no such pattern, and for streams that are neither K and V nor C and KR.
    """
    if isinstance(mapping, str):
        raise DumpError(f"mapping is one text {shown(mapping)}, want a sequence of them")
    patterns = tuple(_parse_pattern(text) for text in mapping)
    streams = {pattern.stream for pattern in patterns}
    if streams and not any(streams == set(pair) for pair in PAIRS):
        pair = next(pair for pair in PAIRS if streams & set(pair))
        got, wanted = (sorted(s.name.lower() for s in some) for some in (streams, set(pair) - streams))
        if not wanted or streams - set(pair):
            raise DumpError(f"the mapping names {', '.join(got)}: want k and v, or c and kr")
        raise DumpError(f'the mapping names {got[0]} but not {wanted[0]}: add --map "{wanted[0]}=..."')
    return patterns


def _parse_pattern(text: str) -> Pattern:
    stream, equals, pattern = text.partition("=")
    if not equals or stream not in _STREAMS:
        raise DumpError(f'map {shown(text)}: want "k=..." or "v=...", or "c=..." or "kr=..."')
    before, placeholder, after = pattern.partition(_PLACEHOLDER)
    if not placeholder or _PLACEHOLDER in after:
        raise DumpError(f"map {shown(text)}: want {_PLACEHOLDER} once, where the layer number stands")
    regex = re.compile(re.escape(before) + _LAYER + re.escape(after))
    return Pattern(_STREAMS[stream], regex)


def recognise(name: str, pair: tuple[StreamId, StreamId] = PAIRS[0]) -> tuple[int, StreamId] | None:
    """The (layer, stream) that a name of the table above means, of the two streams asked for, or None."""
    for form in _FORMS if pair == PAIRS[0] else _LATENT_FORMS:
        if match := form.fullmatch(name):
            return int(match["layer"]), pair[0] if match["k"] else pair[1]
    return None


def locate(shapes: Mapping[str, tuple[int, ...]], floating: Iterable[str], mapping: Sequence[str] = ()) -> Sources:
    """Finds K and V of every layer, or in a file without any its latent and position key.

    shapes: of all tensors by name. floating: names of those with a floating dtype. mapping: the user's patterns;
    if there are any, they alone decide. Raises DumpError if nothing fits, a layer lacks K or V, or has one twice.
    """
    patterns = parse_mapping(mapping)
    sources = _collect(shapes, lambda name: _places(name, patterns))
    if not sources and not patterns:
        sources = _locate_stacked(shapes, floating) or _collect(shapes, _latent_places)
    if not sources:
        raise DumpError(f"no tensor is known as K or V, found {_listed(shapes)}; {_MAP_HINT}")
    _check_complete(sources)
    return sources


def _collect(names: Iterable[str], places: Callable[[str], list[tuple[int, StreamId]]]) -> Sources:
    sources: Sources = {}
    for name in names:
        for place in places(name):
            if place in sources and sources[place].name != name:
                what = f"layer {place[0]} {place[1].name}"
                raise DumpError(f"{what} is there twice: {shown(sources[place].name)} and {shown(name)}")
            sources[place] = Source(name)
    return sources


def _latent_places(name: str) -> list[tuple[int, StreamId]]:
    place = recognise(name, PAIRS[1])
    return [place] if place else []


def _places(name: str, patterns: tuple[Pattern, ...]) -> list[tuple[int, StreamId]]:
    if not patterns:
        place = recognise(name)
        return [place] if place else []
    matches = ((pattern.stream, pattern.regex.fullmatch(name)) for pattern in patterns)
    return [(int(match["layer"]), stream) for stream, match in matches if match]


def _locate_stacked(shapes: Mapping[str, tuple[int, ...]], floating: Iterable[str]) -> Sources:
    stacked = [name for name in floating if len(shapes[name]) == 5 and shapes[name][1] == 2]
    if len(stacked) != 1:
        return {}
    layers = shapes[stacked[0]][0]
    if layers > LAYERS_MAX:
        raise DumpError(f"{shown(stacked[0])} has {layers} layers, want {LAYERS_MAX} at most")
    streams = enumerate((StreamId.K, StreamId.V))
    return {(layer, stream): Source(stacked[0], (layer, i)) for i, stream in streams for layer in range(layers)}


def _check_complete(sources: Sources) -> None:
    for (layer, stream), source in sources.items():
        if layer >= LAYERS_MAX:
            raise DumpError(f"{shown(source.name)}: layer {layer}, want below {LAYERS_MAX}")
        other = next(b if stream == a else a for a, b in PAIRS if stream in (a, b))
        if (layer, other) not in sources:
            raise DumpError(f"layer {layer} has {stream.name} ({shown(source.name)}) but no {other.name}")


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    if not ordered:
        return "no tensors at all"
    text = ", ".join(shown(name) for name in ordered[:NAMES_SHOWN])
    more = len(ordered) - NAMES_SHOWN
    return text if more <= 0 else f"{text} and {more} more"
