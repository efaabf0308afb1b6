"""The trained tensors of a model by layer, for checks that judge the worst one of each."""

from collections.abc import Iterable

from normwise.probe.record import ParameterUpdate


def by_layer(updates: Iterable[ParameterUpdate]) -> dict[str, list[ParameterUpdate]]:
    """Tensors of each layer by its path, and those of no layer by their own."""
    layers: dict[str, list[ParameterUpdate]] = {}
    for one in updates:
        layers.setdefault(_owner(one), []).append(one)
    return layers


def _owner(one: ParameterUpdate) -> str:
    """The path up to the number of the layer: an encoder and a decoder have a layer 0 each."""
    before, number, _ = one.name.partition(f".{one.layer}.")
    return f"{before}.{one.layer}" if number else one.name
