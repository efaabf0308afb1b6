"""What an optimizer is about to do to each tensor, and did: from a sample of its entries."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from normwise.anatomy.points import Points
from normwise.probe.record import UNSEEN_IN_BF16, ParameterUpdate
from normwise.schedules import norm_parameters

SAMPLE = 512  # entries of a tensor: the RMS of Gaussian ones is within 3.1 %
FIELDS = ("count", "weight", "gradient", "surprise", "step", "vanishing", "seen")


@dataclass(frozen=True)
class Watched:
    """A trained tensor."""

    name: str
    parameter: nn.Parameter
    matrix: bool
    embedding: bool


def watched(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Watched]:
    """The tensors of two axes or more that an optimizer has, each once: gains and biases, often two
    thirds of all tensors, start at 0 or 1 and say little by their size.
    """
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    gains = norm_parameters(model)
    looked_up = {
        id(p) for module in model.modules() if isinstance(module, nn.Embedding)
        for p in module.parameters(recurse=False)
    }  # fmt: skip
    return [
        Watched(name, p, id(p) not in gains, id(p) in looked_up)
        for name, p in model.named_parameters()
        if p.requires_grad and p.ndim >= 2 and id(p) in held
    ]  # fmt: skip


class UpdateWatch:
    """Sums over a sample of the entries of every trained matrix, before and after a step.

    Nothing waits for the device: `rows` is one tensor (tensors, fields).
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.tensors = watched(model, optimizer)
        self.optimizer = optimizer
        self.device = next((one.parameter.device for one in self.tensors), torch.device("cpu"))
        self._before: Tensor | None = None
        self.rows: Tensor | None = None

    @torch.no_grad()
    def before(self) -> None:
        """To be called before the optimizer's step: keeps a sample of the weights."""
        if self.tensors:  # none of them is an optimizer's of another model
            self._before = self._sampled(one.parameter for one in self.tensors)

    @torch.no_grad()
    def after(self) -> None:
        """To be called after it, while the gradients are still there."""
        weights, old = [one.parameter for one in self.tensors], self._before
        if old is None:
            return
        now = self._sampled(weights)
        gradient = self._sampled(
            _no_gradient(p) if p.grad is None or p.grad.is_sparse else p.grad for p in weights
        ).double()
        floor = self._floors(weights)
        now, old = now.double(), old.double()
        step = now - old
        self.rows = torch.stack((
            self._counts, old.square().sum(1), gradient.square().sum(1),
            (gradient.square() / floor).sum(1), step.square().sum(1),
            (step.abs() < UNSEEN_IN_BF16 * old.abs()).sum(1), (gradient != 0.0).sum(1),
        ), 1)  # fmt: skip
        self._before = None

    def _sampled(self, tensors: Iterable[Tensor]) -> Tensor:
        """A row (SAMPLE,) for each tensor, on the device of the first; short ones end in zeros."""
        return torch.stack([_padded(one).to(self.device, torch.float32) for one in tensors])

    def _floors(self, weights: Sequence[Tensor]) -> Tensor:
        """max(v, eps^2) of Adam's second moment; not-a-number where an optimizer is no Adam."""
        adam = _adam(self.optimizer)
        found = [adam.get(id(p), _Adam(math.nan)) for p in weights]
        moments = self._sampled(
            _no_gradient(p) if one.second is None else one.second
            for p, one in zip(weights, found, strict=True)
        )  # fmt: skip
        eps = _tensor([math.nan if one.second is None else one.eps for one in found], self.device)
        beta, taken = (
            _tensor([getattr(one, name) for one in found], self.device)
            for name in ("beta", "taken")
        )
        moments = moments.double() / (1.0 - beta**taken)[:, None]
        return torch.maximum(moments, eps.square()[:, None])

    @cached_property
    def _counts(self) -> Tensor:
        """Entries of each sample."""
        counts = [len(_sample(one.parameter)) for one in self.tensors]
        return torch.tensor(counts, dtype=torch.float64, device=self.device)

    def read(self, rows: list[list[float]]) -> list[ParameterUpdate]:
        """What the sums say, once they are on the host."""
        adam = _adam(self.optimizer)
        return [
            _update(one, dict(zip(FIELDS, row, strict=True)), adam.get(id(one.parameter)))
            for one, row in zip(self.tensors, rows, strict=True)
        ]


@dataclass(frozen=True)
class _Adam:
    """What Adam knows of a tensor: eps, its second moment (None before the first step), and beta2
    and the steps taken, by which 1 - beta2^t is the share that it has of the whole.
    """

    eps: float
    second: Tensor | None = None
    beta: float = 0.0
    taken: Any = 1.0


def _adam(optimizer: torch.optim.Optimizer) -> dict[int, _Adam]:
    """What Adam knows of each tensor; nothing of an optimizer that is none."""
    found: dict[int, _Adam] = {}
    for group in optimizer.param_groups:
        if "betas" not in group or not isinstance(group.get("eps"), int | float):
            continue
        beta, eps = group["betas"][1], float(group["eps"])
        for p in group["params"]:
            state = optimizer.state.get(p, {})
            second = state.get("exp_avg_sq")
            taken = state.get("step", group.get("step"))
            if second is None or second.shape != p.shape:
                found[id(p)] = _Adam(eps)
            elif taken is None:
                found[id(p)] = _Adam(eps, second)
            else:
                found[id(p)] = _Adam(eps, second, beta, taken)
    return found


def _tensor(values: Sequence[Any], device: torch.device) -> Tensor:
    """Numbers, or tensors of one, as one tensor."""
    if any(isinstance(value, Tensor) for value in values):
        return torch.stack([torch.as_tensor(v, device=device).double().reshape(()) for v in values])
    return torch.tensor(values, dtype=torch.float64, device=device)


def local(x: Tensor) -> Tensor:
    """This process's part of a tensor."""
    return x.to_local() if hasattr(x, "to_local") else x


def _sample(x: Tensor) -> Tensor:
    flat = local(x.detach()).reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLE)][:SAMPLE]


def _padded(x: Tensor) -> Tensor:
    sample = _sample(x)
    short = SAMPLE - len(sample)
    return torch.cat((sample, sample.new_zeros(short))) if short else sample


def _no_gradient(p: Tensor) -> Tensor:
    """The gradient of a tensor that got none."""
    return torch.zeros_like(local(p.detach()))


def _update(one: Watched, sums: Mapping[str, float], adam: _Adam | None) -> ParameterUpdate:
    count = max(sums["count"], 1.0)
    weight, step = math.sqrt(sums["weight"] / count), math.sqrt(sums["step"] / count)
    # entries without any gradient are rows of tokens that did not occur
    seen = sums["seen"]
    gradient = math.sqrt(sums["gradient"] / seen) if seen else None
    surprise = None if math.isnan(sums["surprise"]) else math.sqrt(sums["surprise"] / count)
    return ParameterUpdate(
        one.name, one.matrix, one.embedding, weight, gradient,
        _over_eps(gradient, adam),
        surprise, step / weight if weight else math.nan, sums["vanishing"] / count,
        str(one.parameter.dtype).removeprefix("torch."),
    )  # fmt: skip


def _over_eps(gradient: float | None, adam: _Adam | None) -> float | None:
    if adam is None or gradient is None:
        return None
    return gradient / adam.eps if adam.eps else math.inf


def gradient_sums(model: nn.Module, points: Points) -> tuple[list[tuple[int, int]], Tensor]:
    """Entries and sum of squares of the gradients of each connection's parameters, (groups, 2), on
    the device; nothing of those without one.
    """
    modules = dict(model.named_modules())
    keys, rows = [], []
    for s, stack in enumerate(points.stacks):
        for c, connection in enumerate(stack.connections):
            owned = _parameters(modules[name] for name in connection.modules if name in modules)
            gradients = [
                local(p.grad) for p in owned if p.grad is not None and not p.grad.is_sparse
            ]
            keys.append((s, c))
            rows.append(_squares(gradients))
    device = next((row.device for row in rows), torch.device("cpu"))
    return keys, torch.stack([row.to(device) for row in rows]) if rows else torch.zeros(0, 2)


def _squares(gradients: list[Tensor]) -> Tensor:
    if not gradients:
        return torch.zeros(2, dtype=torch.float64)
    double = any(g.dtype == torch.float64 for g in gradients)
    norms = torch._foreach_norm(gradients, dtype=torch.float64 if double else torch.float32)
    square = torch.stack(norms).double().square().sum()
    return torch.stack((torch.full_like(square, sum(g.numel() for g in gradients)), square))


def frozen(model: nn.Module, points: Points) -> dict[tuple[int, int], bool]:
    """Connections of whose matrices none is trained, or no parameter where it has no matrix."""
    modules = dict(model.named_modules())
    found = {}
    for s, stack in enumerate(points.stacks):
        for c, connection in enumerate(stack.connections):
            owned = list(_parameters(modules[n] for n in connection.modules if n in modules))
            weights = [p for p in owned if p.ndim > 1] or owned
            found[s, c] = bool(owned) and not any(p.requires_grad for p in weights)
    return found


def _parameters(modules: Iterable[Any]) -> list[nn.Parameter]:
    """Parameters of leaf modules, each once."""
    owned = {id(p): p for module in modules for p in module.parameters(recurse=False)}
    return list(owned.values())
