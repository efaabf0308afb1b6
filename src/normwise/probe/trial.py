"""One step of an optimizer, taken back to the last bit."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from normwise.anatomy.leaves import leaves
from normwise.probe.batch_pass import Pass
from normwise.probe.record import ParameterUpdate, Trial
from normwise.probe.updates import UpdateWatch


@torch.no_grad()
def trial_step(
    run: Pass, optimizer: torch.optim.Optimizer, loss: Tensor, out: Any
) -> tuple[Trial, list[ParameterUpdate]]:
    """One step of the optimizer on the gradients that are there, taken back to the last bit."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    kept = [p.detach().clone() for p in weights]
    state = {p: _copied(values) for p, values in optimizer.state.items()}
    groups = [dict(group) for group in optimizer.param_groups]
    before = _logits(out)
    watch = UpdateWatch(run.model, optimizer)
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = (
        OrderedDict(), OrderedDict()
    )  # fmt: skip
    try:
        for group in optimizer.param_groups:
            group["lr"] = group.get("initial_lr", group["lr"])
        watch.before()
        with torch.enable_grad():
            optimizer.step()
        watch.after()
        after, moved = run()
        changed = sum(
            not torch.equal(p, old) for p, old in zip(weights, kept, strict=True)
        ) / max(len(weights), 1)  # fmt: skip
        found = Trial(
            float(loss), float(after), _change(before, _logits(moved)), changed,
            float(optimizer.param_groups[0]["lr"]),
        )  # fmt: skip
        rows = watch.rows.tolist() if watch.rows is not None else []
        return found, watch.read(rows)
    finally:
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = hooks
        for p, old in zip(weights, kept, strict=True):
            p.copy_(old)
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, old_group in zip(optimizer.param_groups, groups, strict=True):
            group.update(old_group)


def _copied(values: Any) -> Any:
    """An optimizer's state of one tensor, with tensors of its own."""
    if isinstance(values, Tensor):
        return values.clone()
    if isinstance(values, dict):
        return {key: _copied(value) for key, value in values.items()}
    return values


def _logits(out: Any) -> Tensor:
    floats = (t for _, t in leaves(out) if t.is_floating_point() and t.ndim)
    return next(floats).detach().float()


def _change(before: Tensor, after: Tensor) -> float:
    size = before.square().mean().sqrt()
    return float((after - before).square().mean().sqrt() / size.clamp_min(1e-30))
