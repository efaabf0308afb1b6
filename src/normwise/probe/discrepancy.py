"""How far the statistics that a batch norm trains with are from those that it evaluates with."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normwise.norms.batch_norm import BatchNorm
from normwise.ops.batch import batch_statistics
from normwise.table import Table
from normwise.theory.batch import null_discrepancy

Form = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _by_channel(
    mean: Tensor, variance: Tensor, batch_mean: Tensor, batch_variance: Tensor
) -> tuple[Tensor, Tensor]:
    deviation = batch_variance.sqrt()
    of_mean = ((mean - batch_mean).abs() / deviation).mean()
    return of_mean, (variance.sqrt() / deviation - 1.0).abs().mean()


def _by_norm(
    mean: Tensor, variance: Tensor, batch_mean: Tensor, batch_variance: Tensor
) -> tuple[Tensor, Tensor]:
    size = variance.sqrt().norm()
    return (batch_mean - mean).norm() / size, (
        batch_variance.sqrt() - variance.sqrt()
    ).norm() / size


FORMS: Table[Form] = Table("discrepancy", {"code": _by_channel, "paper": _by_norm})


def discrepancy(
    mean: Tensor,
    variance: Tensor,
    batch_mean: Tensor,
    batch_variance: Tensor,
    form: str = "code",
) -> tuple[Tensor, Tensor]:
    """Training/inference discrepancy of mean and of deviation (Wu et al. 2022, 2210.05153).

        code    mean_c |m - m_B|/s_B               mean_c |s/s_B - 1|
        paper   norm2(m_B - m)/norm2(s)            norm2(s_B - s)/norm2(s)

    The two differ where channels have unequal deviations, or the batch another than the running
    one.

    Args:
        mean: running mean of each channel, m.
        variance: running variance, s^2.
        batch_mean: of the batch, m_B.
        batch_variance: of the batch, s_B^2.
        form: "code", of the code published with the paper, or "paper", its equations 4 and 5.
    """
    return FORMS[form](mean, variance, batch_mean, batch_variance)


@dataclass(frozen=True)
class Discrepancy:
    """What `batch_discrepancy` finds at one layer.

    Args:
        layer: its name in the model.
        tokens: valid ones behind a statistic.
        mean: discrepancy of the mean.
        deviation: discrepancy of the deviation.
        chance: both, as they would be for exact running statistics and independent tokens.
    """

    layer: str
    tokens: int
    mean: float
    deviation: float
    chance: tuple[float, float]


@torch.no_grad()
def batch_discrepancy(
    model: nn.Module, *inputs: Any, form: str = "code", **named: Any
) -> list[Discrepancy]:
    """Discrepancy of every `BatchNorm` over tokens in a model, on one batch in evaluation.

    Args:
        model: called with `inputs` and `named`; the mode of every module is restored.
        form: a row of `FORMS`.

    Returns:
        One for each call of a layer with running statistics and a valid token.
    """
    found: list[Discrepancy] = []

    def watch(name: str) -> Callable[[BatchNorm, tuple[Any, ...], dict[str, Any]], None]:
        def hook(layer: BatchNorm, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            given = dict(zip(("x", "mask"), args, strict=False)) | options
            one = _compared(name, layer, given["x"], given.get("mask"), form)
            if one.tokens:
                found.append(one)

        return hook

    modes = [(module, module.training) for module in model.modules()]
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if _comparable(module):
                handle = module.register_forward_pre_hook(watch(name), with_kwargs=True)
                hooks.callback(handle.remove)
        try:
            model.eval()(*inputs, **named)
        finally:
            for module, training in modes:
                module.training = training
    return found


def _comparable(module: nn.Module) -> bool:
    """Whether one mean of each channel is kept."""
    return (
        isinstance(module, BatchNorm)
        and module.running_mean is not None
        and not module.statistics_shape
    )


def _compared(
    name: str, layer: BatchNorm, x: Tensor, mask: Tensor | None, form: str
) -> Discrepancy:
    _, batch = batch_statistics(x, layer.mask if mask is None else mask, layer.axes(x))
    of_mean, of_deviation = discrepancy(
        layer.running_mean.double(),  # type: ignore[union-attr]
        layer.running_var.double(),  # type: ignore[union-attr]
        batch.mean.flatten(), batch.variance.double().flatten(), form,
    )  # fmt: skip
    tokens = int(batch.count.max())
    return Discrepancy(
        name, tokens, of_mean.item(), of_deviation.item(), null_discrepancy(max(tokens, 1))
    )
