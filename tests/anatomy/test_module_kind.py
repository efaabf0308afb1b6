"""Modules that compute the same, and those that only look alike."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from normwise.anatomy.module_kind import module_key
from normwise.anatomy.trace import trace


class Applied(nn.Module):
    """A module that is the function it holds."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def unit(x: Tensor) -> Tensor:
    return x * x.square().mean(-1, keepdim=True).rsqrt()


def test_modules_of_one_class_differ_by_what_they_hold() -> None:
    """A function as a norm does not make another of the same class one."""
    model = nn.Sequential(Applied(unit), nn.Linear(8, 8), Applied(torch.tanh))
    kinds = {node.module: node.kind for node in trace(model, torch.randn(6, 8)).nodes}
    assert (kinds["0"], kinds["2"]) == ("norm", "other")


def test_parameters_do_not_matter_and_numbers_do() -> None:
    one, other, wide = nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8, eps=1e-3)
    nn.init.normal_(other.weight)
    assert module_key(one, 8) == module_key(other, 8)
    assert module_key(one, 8) != module_key(wide, 8)
    assert module_key(one, 8) != module_key(nn.LayerNorm(8, bias=False), 8)
