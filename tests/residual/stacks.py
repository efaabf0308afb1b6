"""Small stacks to hold against formulas: drawn tensors, branches, and a run through a placement."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normwise.residual.base import PerSublayer, Residual
from normwise.residual.registry import PLACEMENTS, make_placement

DIM, EPS = 16, 1e-5
NAMES = sorted(PLACEMENTS)
Branch = Callable[[Tensor], Tensor]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer_norm(
    x: Tensor, weight: Tensor | float = 1.0, bias: Tensor | float = 0.0, eps: float = EPS
) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    normed: Tensor = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    return normed * weight + bias


def built(name: str, depth: int = 3, branches: int = 2, **options: Any) -> PerSublayer:
    return make_placement(name, DIM, depth, branches=branches, **options).double()


def moved(placement: PerSublayer) -> PerSublayer:
    """Every parameter away from its start, no two alike, so that a shared or lost one shows."""
    with torch.no_grad():
        for seed, parameter in enumerate(placement.parameters()):
            parameter.add_(0.3 * drawn(*parameter.shape, seed=100 + seed))
    return placement


def reset(placement: PerSublayer) -> PerSublayer:
    for module in placement.modules():
        if isinstance(module, (Residual, nn.LayerNorm)):
            module.reset_parameters()
    return placement


def matrices(count: int, width: int = DIM) -> Tensor:
    pairs: Tensor = drawn(count, 2, width, width, seed=200) / width**0.5
    return pairs


def relu_branches(pairs: Tensor) -> list[Branch]:
    """Two-matrix ReLU branches; with Xavier weights of variance 1/2 on a unit stream."""
    return [partial(_two_matrices, pair) for pair in pairs]


def _two_matrices(pair: Tensor, x: Tensor) -> Tensor:
    return torch.relu(x @ pair[0]) @ pair[1]


def layer(placement: PerSublayer, state: Any, own: Sequence[Branch], index: int) -> Any:
    """One layer of 1, 2 or 3 branches in their order."""
    attention, cross_attention = (*own[:-1], None, None)[:2]
    return placement.layer(state, attention, own[-1], index, cross_attention=cross_attention)


def last_state(placement: PerSublayer, x: Tensor, branches: Sequence[Branch]) -> Any:
    state, each = placement.enter(x), placement.branches
    for index in range(len(branches) // each):
        state = layer(placement, state, branches[index * each : (index + 1) * each], index)
    return state


def run(placement: PerSublayer, x: Tensor, branches: Sequence[Branch]) -> Tensor:
    return placement.exit(last_state(placement, x, branches))


def connections(placement: PerSublayer) -> list[Any]:
    return list(placement.connections)


def norms_of(module: nn.Module) -> list[nn.LayerNorm]:
    return [part for part in module.modules() if isinstance(part, nn.LayerNorm)]
