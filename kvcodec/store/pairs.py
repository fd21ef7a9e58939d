"""Which V is predicted from the codes of its K, and whether the two leave memory together as that takes."""

from __future__ import annotations

from collections.abc import Callable

from kvcodec.codecs.dictionary import DictionarySet
from kvcodec.errors import SpecError
from kvcodec.layout import StreamId
from kvcodec.store.model import Layer, Model
from kvcodec.store.policy import Policy


def check_pairs(policy: Policy, model: Model, find: Callable[[bytes], DictionarySet]) -> None:
    """Raises SpecError where V is predicted from the codes of its K, and K is not coded along with it."""
    for number, layer in enumerate(model.layers):
        check_pair(policy, number, layer, find)


def check_pair(policy: Policy, number: int, layer: Layer, find: Callable[[bytes], DictionarySet]) -> bool:
    """Whether V of a layer is predicted from the codes of its K. Raises SpecError where that cannot be."""
    streams = {stream.id: stream for stream in layer.streams}
    if StreamId.V not in streams:
        return False
    values = policy.at(number, StreamId.V)
    own = None if values.spec.product is None else find(values.spec.basis).find_product(number, StreamId.V)
    if own is None or own.prediction is None:
        return False
    where = f"layer {number}, stream v: {values.spec}: V is predicted from the codes of its K"
    keys = policy.at(number, StreamId.K) if StreamId.K in streams else None
    if keys is None or streams[StreamId.K].heads != streams[StreamId.V].heads:
        raise SpecError(f"{where}, and the layer has none of as many heads")
    if keys.spec.bounded or values.spec.bounded:
        raise SpecError(f"{where}, which have no bound on errors then")
    if keys.spec.product is None or keys.spec.basis != values.spec.basis:
        raise SpecError(f"{where}, which is {keys.spec}: want pq of the same set")
    for what, one, other in (
        ("tokens of a record", keys.spec.group, values.spec.group),
        ("residual", keys.residual, values.residual),
        ("sinks", keys.sinks, values.sinks),
    ):
        if one != other:
            raise SpecError(f"{where}, and k and v differ in {what}: {one} and {other}")
    return True
