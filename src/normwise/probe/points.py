"""The points of a model: by its data flow, by its own residual connections, or by a pattern."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from normwise.anatomy.graph import Tap
from normwise.anatomy.points import (
    At,
    ConnectionPoints,
    Points,
    StackPoints,
    named_points,
    points,
)
from normwise.anatomy.stream import anatomy
from normwise.errors import AnatomyUnknown
from normwise.residual.base import Residual


def find_points(
    model: nn.Module, args: tuple[Any, ...], options: Mapping[str, Any], pattern: str | None = None
) -> Points:
    """Where to measure in a model.

    Args:
        model: any.
        args, options: what it is called with.
        pattern: of the paths of its blocks, for a model whose data flow is not understood.

    Raises:
        AnatomyUnknown: no stream was found, or the pattern matches no blocks.
    """
    if pattern is not None:
        return named_points(model, pattern)
    own = [(name, module) for name, module in model.named_modules() if isinstance(module, Residual)]
    try:
        found = points(model, anatomy(model, *args, **options))
    except AnatomyUnknown:
        if not own:
            raise
        return _of_connections(own)
    connections = sum(len(stack.connections) for stack in found.stacks)
    return _of_connections(own) if own and len(own) != connections else found


def _of_connections(own: list[tuple[str, Residual]]) -> Points:
    """Of normwise's own connections, which know the stream in their state: of placements with more
    than one stream. A branch is what a connection adds to it.
    """
    stacks: dict[int, list[tuple[str, Residual]]] = {}
    for name, module in own:
        begins = module.site.index == 0
        stacks.setdefault(len(stacks) if begins or not stacks else len(stacks) - 1, []).append(
            (name, module)
        )  # fmt: skip
    return Points(
        _snake(type(own[-1][1]).__name__), parallel=False,
        stacks=[
            StackPoints(
                [
                    ConnectionPoints(
                        "feed_forward" if module.site.kind == "feed_forward" else "attention",
                        module.site.layer, At(Tap(name, "in", (0, 0), 0), read=module.stream),
                        None, (),
                    )
                    for name, module in part
                ],
                At(Tap(part[-1][0], "out", (), 0), read=part[-1][1].stream),
                part[0][1].site.dim,
            )
            for part in stacks.values()
        ],
    )  # fmt: skip


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a batch is given to a model: a mapping by keyword, a tuple or list by position, anything
    else as the one argument.
    """
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, tuple | list):
        return tuple(batch), {}
    return (batch,), {}


NOT_TOKENS = ("mask", "type", "position", "label")  # in the names of other integers of a batch


def token_ids(args: tuple[Any, ...], options: Mapping[str, Any]) -> torch.Tensor | None:
    """The integers (B, T) that a model is called with, where there are any: `input_ids`, or the
    first that are not by their name something else.
    """
    named = [
        value for name, value in options.items() if not any(part in name for part in NOT_TOKENS)
    ]
    for value in (options.get("input_ids"), *args, *named):
        if isinstance(value, torch.Tensor) and value.ndim == 2 and _counts(value):
            return value
    return None


def _counts(x: torch.Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
