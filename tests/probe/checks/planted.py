"""Models with one fault whose size is a knob, and what a check says of them."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import normwise as nw
from normwise.probe.findings import SEVERITIES, Check, Reading, worst
from normwise.probe.preflight import check

IDS = torch.randint(0, 256, (4, 32), generator=torch.Generator().manual_seed(0))
KINDS = ("attention", "feed_forward")


def model(depth: int = 8, width: int = 32, **settings: Any) -> nw.Transformer:
    return nw.Transformer(nw.TransformerConfig(depth=depth, width=width, **settings), seed=0)


def undeclared(made: nw.Transformer) -> nw.Transformer:
    """The same model, of which no initialisation is known."""
    made.recipes = lambda tokens: "none is declared"  # type: ignore[method-assign,misc,assignment]
    return made


@torch.no_grad()
def scaled(
    made: nw.Transformer, factor: float, layers: Iterable[int] | None = None,
    kinds: Iterable[str] = KINDS,
) -> nw.Transformer:  # fmt: skip
    """The last matrices of these branches times a factor."""
    for layer in range(len(made.layers)) if layers is None else layers:
        for kind in kinds:
            getattr(made.layers[layer], kind).output.weight.mul_(factor)
    return made


class Times(nn.Module):
    """A module whose output has a factor, and so the gradients of its parameters."""

    def __init__(self, inner: nn.Module, factor: float) -> None:
        super().__init__()
        self.inner = inner
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.factor * self.inner(x)
        return out


def times(made: nw.Transformer, factor: float, layer: int) -> nw.Transformer:
    """A factor on both branches of a layer."""
    for kind in KINDS:
        branch = getattr(made.layers[layer], kind)
        branch.output = Times(branch.output, factor)
    return made


def readings(asked: Check, made: nn.Module, batch: Any = IDS, **options: Any) -> list[Reading]:
    return check(made, batch, checks=[asked.name], **options).readings


def bad(found: Iterable[Reading]) -> list[Reading]:
    """Warnings and failures."""
    return [one for one in found if one.severity in SEVERITIES[2:]]


def severity(asked: Check, made: nn.Module, batch: Any = IDS, **options: Any) -> str:
    """The worst of a check's readings; what is worth a look alone is in order."""
    found = worst(readings(asked, made, batch, **options))
    return "ok" if found == "info" else found
