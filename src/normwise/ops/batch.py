"""Statistics of a channel over a batch, over the valid entries only, and over processes.

Shapes: x (..., channels); a mask is True for valid tokens and broadcasts to x but for its last
axis. `axes` are the axes that a statistic is taken over. What the statistics are of is computed in
fp32, in fp64 where x is: every entry is first shifted by a rough mean of its channel, so that a
channel of 10^10 keeps the digits of its deviations. Padded entries are chosen away and never
multiplied by 0, so that a NaN in the padding stays there.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from normwise.errors import ShapeError
from normwise.ops.rounding import compute_dtype

Group = Any  # a process group of torch.distributed; None for this process alone


@dataclass(frozen=True)
class BatchStatistics:
    """Mean and biased variance over the valid entries of all processes.

    Args:
        count: valid entries, fp64.
        mean: of each channel, fp64.
        variance: biased, in the dtype of the computation.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def detached(self) -> "BatchStatistics":
        """The same without gradient."""
        return BatchStatistics(self.count.detach(), self.mean.detach(), self.variance.detach())

    @property
    def unbiased(self) -> Tensor:
        """n/(n - 1) times the variance, in fp64; the variance where n is 1."""
        return self.variance.double() * self.count / (self.count - 1.0).clamp_min(1.0)


def batch_statistics(
    x: Tensor, mask: Tensor | None, axes: tuple[int, ...], group: Group = None
) -> tuple[Tensor, BatchStatistics]:
    """x - mean, which is 0 at padding, and the statistics over `axes`, which are kept with size 1.

    Nothing valid gives mean and variance 0.

    With a group every process must call it, those whose batch is empty too, forward and backward.
    """
    wide = x.to(compute_dtype(x))
    valid = None if mask is None else mask.unsqueeze(-1)
    local = _counted(wide, valid, axes)
    divisor = local.clamp_min(1.0).to(wide.dtype)
    rough = (_summed(_chosen(wide, valid), axes) / divisor).detach()
    shifted = _chosen(wide - rough, valid)
    total = _summed(shifted, axes)
    if group is None:
        count, shift = local, total / divisor
        mean = rough.double() + shift.double()
    else:
        sums = torch.stack((local.expand(rough.shape), local * rough.double() + total.double()))
        count, summed = summed_over(sums, group)
        mean = summed / count.clamp_min(1.0)
        shift = (mean - rough.double()).to(wide.dtype)
    centred = _chosen(shifted - shift, valid)
    squares = _summed(centred.square(), axes)
    if group is not None:
        squares = summed_over(squares.double(), group).to(wide.dtype)
    variance = squares / count.clamp_min(1.0).to(wide.dtype)
    return centred, BatchStatistics(count, mean, variance)


def fused_batch_norm(
    rows: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, BatchStatistics]:
    """g (x - mean)/sqrt(var + eps) + b by torch's own kernel, for rows (N, channels) in fp32 or
    fp64, N at least 1, and the statistics without gradient.

    torch's kernel gives 1.04 for a channel filled with 123456.789 (pytorch#5410). Here each channel
    has its first entry taken off before.
    """
    first = rows[0].detach()
    mean, unbiased = torch.zeros_like(first), torch.zeros_like(first)  # 0 times them is added
    y, _, _ = torch.native_batch_norm(
        rows - first, gain, bias, mean, unbiased, training=True, momentum=1.0, eps=eps
    )
    count = torch.full_like(first, float(len(rows)), dtype=torch.float64)
    variance = unbiased * ((len(rows) - 1) / len(rows)) if len(rows) > 1 else torch.zeros_like(mean)
    return y, BatchStatistics(count, first.double() + mean.double(), variance)


def quadratic_means(x: Tensor, mask: Tensor | None, axes: tuple[int, ...]) -> Tensor:
    """mean(x^2) of each channel over the valid entries, in the dtype of the computation."""
    wide = x.to(compute_dtype(x))
    valid = None if mask is None else mask.unsqueeze(-1)
    count = _counted(wide, valid, axes).clamp_min(1.0)
    return _summed(_chosen(wide, valid).square(), axes) / count.to(wide.dtype)


def without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """x, 0 where the mask is False."""
    return x if mask is None else _chosen(x, mask.unsqueeze(-1))


def check_mask(owner: str, x: Tensor, mask: Tensor | None) -> None:
    """Raises `ShapeError` for a mask that does not tell of each token whether it is valid."""
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ShapeError(
            f"{owner}: a mask must be of dtype bool, True for valid tokens. It is {mask.dtype}. "
            f"Pass mask != 0."
        )
    sizes = zip(mask.shape[::-1], x.shape[-2::-1], strict=False)
    if mask.ndim >= x.ndim or any(one not in (1, other) for one, other in sizes):
        raise ShapeError(
            f"{owner}: a mask must have the shape of x without channels, {tuple(x.shape[:-1])}. "
            f"It is {tuple(mask.shape)}."
        )


def _chosen(x: Tensor, valid: Tensor | None) -> Tensor:
    return x if valid is None else torch.where(valid, x, torch.zeros((), dtype=x.dtype))


def _counted(x: Tensor, valid: Tensor | None, axes: tuple[int, ...]) -> Tensor:
    """Valid entries of each channel, fp64, with the axes kept."""
    if valid is None:
        size = 1
        for axis in axes:
            size *= x.shape[axis]
        shape = [1] * x.ndim
        return torch.full(shape, float(size), dtype=torch.float64, device=x.device)
    everywhere = valid.expand(*x.shape[:-1], 1)
    return _summed(everywhere.double(), axes)


def _summed(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The sum over the axes, kept; torch's own is over all axes where none is named."""
    return x.sum(axes, keepdim=True) if axes else x


def summed_over(x: Tensor, group: Group) -> Tensor:
    """The sum of x over the processes of a group, in every one of them; so is its gradient."""
    total: Tensor = _SumOver.apply(x, group)  # type: ignore[no-untyped-call]
    return total


class _SumOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return summed_over(gradient, ctx.group), None
