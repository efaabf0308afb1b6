"""What an optimizer is about to do to each tensor, and did: from a sample of its entries."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normwise.anatomy.points import Points
from normwise.probe.record import ParameterUpdate
from normwise.schedules import norm_parameters

SAMPLE = 4096  # entries of a tensor
VANISHES = 2.0**-9  # of the weight: half of a bf16 step
FIELDS = ("count", "weight", "gradient", "surprise", "step", "vanishing", "seen")


@dataclass(frozen=True)
class Watched:
    """A trained tensor."""

    name: str
    parameter: nn.Parameter
    matrix: bool
    embedding: bool


def watched(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Watched]:
    """The tensors of a model that an optimizer has, each once."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    gains = norm_parameters(model)
    looked_up = {
        id(p) for module in model.modules() if isinstance(module, nn.Embedding)
        for p in module.parameters(recurse=False)
    }  # fmt: skip
    return [
        Watched(name, p, p.ndim >= 2 and id(p) not in gains, id(p) in looked_up)
        for name, p in model.named_parameters() if p.requires_grad and id(p) in held
    ]  # fmt: skip


class UpdateWatch:
    """Sums over a sample of the entries of every trained tensor, before and after a step.

    Nothing waits for the device: `rows` is one tensor (tensors, fields).
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.tensors = watched(model, optimizer)
        self.optimizer = optimizer
        self._before: list[Tensor] = []
        self.rows: Tensor | None = None

    @torch.no_grad()
    def before(self) -> None:
        """To be called before the optimizer's step: keeps a sample of the weights."""
        self._before = [_sample(one.parameter).clone() for one in self.tensors]

    @torch.no_grad()
    def after(self) -> None:
        """To be called after it, while the gradients are still there."""
        eps, states = _adam(self.optimizer)
        self.rows = torch.stack([
            _sums(one.parameter, before, states.get(id(one.parameter)), eps.get(id(one.parameter)))
            for one, before in zip(self.tensors, self._before, strict=True)
        ])  # fmt: skip
        self._before = []

    def read(self, rows: list[list[float]]) -> list[ParameterUpdate]:
        """What the sums say, once they are on the host."""
        eps, _ = _adam(self.optimizer)
        return [
            _update(one, dict(zip(FIELDS, row, strict=True)), eps.get(id(one.parameter)))
            for one, row in zip(self.tensors, rows, strict=True)
        ]


def _adam(
    optimizer: torch.optim.Optimizer,
) -> tuple[dict[int, float], dict[int, tuple[Tensor, Any]]]:
    """eps of every tensor, and its second moment with the share 1 - beta2^t that it has of the
    whole at step t; an optimizer without is no Adam.
    """
    eps: dict[int, float] = {}
    states: dict[int, tuple[Tensor, Any]] = {}
    for group in optimizer.param_groups:
        beta = group.get("betas", (0.0, 0.0))[1]
        for p in group["params"]:
            if "eps" in group:
                eps[id(p)] = float(group["eps"])
            state = optimizer.state.get(p, {})
            if "exp_avg_sq" in state:
                taken = state.get("step", group.get("step"))
                whole = 1.0 if taken is None else 1.0 - beta**taken
                states[id(p)] = state["exp_avg_sq"], whole
    return eps, states


def _local(x: Tensor) -> Tensor:
    """This process's part of a tensor."""
    return x.to_local() if hasattr(x, "to_local") else x


def _sample(x: Tensor) -> Tensor:
    flat = _local(x.detach()).reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLE)]


def _sums(
    weight: Tensor, before: Tensor, second: tuple[Tensor, Any] | None, eps: float | None
) -> Tensor:
    now = _sample(weight).double()
    old = before.double()
    step = now - old
    gradient = now.new_full(now.shape, math.nan) if weight.grad is None else _sample(weight.grad)
    gradient = gradient.double()
    seen = gradient != 0.0 if weight.grad is not None else torch.zeros_like(now, dtype=torch.bool)
    surprise = now.new_full((), math.nan)
    if second is not None and eps is not None and second[0].shape == weight.shape:
        floor = (_sample(second[0]).double() / second[1]).clamp_min(eps * eps)
        surprise = (gradient.square() / floor).sum()
    return torch.stack((
        now.new_tensor(float(now.numel())), old.square().sum(), gradient.square().sum(), surprise,
        step.square().sum(), (step.abs() < VANISHES * old.abs()).sum().double(),
        seen.sum().double(),
    ))  # fmt: skip


def _update(one: Watched, sums: Mapping[str, float], eps: float | None) -> ParameterUpdate:
    count = max(sums["count"], 1.0)
    weight, step = math.sqrt(sums["weight"] / count), math.sqrt(sums["step"] / count)
    # entries without any gradient are rows of tokens that did not occur
    seen = sums["seen"]
    gradient = math.sqrt(sums["gradient"] / seen) if seen else None
    surprise = None if math.isnan(sums["surprise"]) else math.sqrt(sums["surprise"] / count)
    return ParameterUpdate(
        one.name, one.matrix, one.embedding, weight, gradient,
        None if eps is None or gradient is None else gradient / eps if eps else math.inf,
        surprise, step / weight if weight else math.nan, sums["vanishing"] / count,
        str(one.parameter.dtype).removeprefix("torch."),
    )  # fmt: skip


def gradient_sums(model: nn.Module, points: Points) -> tuple[list[tuple[int, int]], Tensor]:
    """Entries and sum of squares of the gradients of each connection's parameters, (groups, 2), on
    the device; nothing of those without one.
    """
    modules = dict(model.named_modules())
    keys, rows = [], []
    for s, stack in enumerate(points.stacks):
        for c, connection in enumerate(stack.connections):
            owned = _parameters(modules[name] for name in connection.modules if name in modules)
            gradients = [_local(p.grad) for p in owned if p.grad is not None]
            keys.append((s, c))
            rows.append(_squares(gradients))
    device = next((row.device for row in rows), torch.device("cpu"))
    return keys, torch.stack([row.to(device) for row in rows]) if rows else torch.zeros(0, 2)


def _squares(gradients: list[Tensor]) -> Tensor:
    if not gradients:
        return torch.zeros(2, dtype=torch.float64)
    norms = torch._foreach_norm(gradients, dtype=torch.float32)
    square = torch.stack(norms).double().square().sum()
    return torch.stack((torch.full_like(square, sum(g.numel() for g in gradients)), square))


def frozen(model: nn.Module, points: Points) -> dict[tuple[int, int], bool]:
    """Connections of whose parameters none is trained."""
    modules = dict(model.named_modules())
    found = {}
    for s, stack in enumerate(points.stacks):
        for c, connection in enumerate(stack.connections):
            owned = list(_parameters(modules[n] for n in connection.modules if n in modules))
            found[s, c] = bool(owned) and not any(p.requires_grad for p in owned)
    return found


def _parameters(modules: Iterable[Any]) -> list[nn.Parameter]:
    """Parameters of leaf modules, each once."""
    owned = {id(p): p for module in modules for p in module.parameters(recurse=False)}
    return list(owned.values())
