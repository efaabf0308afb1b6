"""BatchNorm for sequences, with padding left out: two forms that differ in what a batch is."""

import math
import warnings
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from normwise.errors import SettingError, ShapeError
from normwise.norms.affine import AffineNorm
from normwise.norms.settings import DEFAULT_EPS, checked_eps
from normwise.ops.batch import (
    BatchStatistics,
    batch_statistics,
    check_mask,
    fused_batch_norm,
    without_padding,
)
from normwise.ops.recompute import in_backward, recomputing, transformed
from normwise.ops.reference import NormSpec, affine, gain
from normwise.ops.rounding import compute_dtype


class BatchNorm(AffineNorm):
    """g (x - mean)/sqrt(var + eps) + b with mean and variance of each channel over a batch.

    x is (..., tokens, num_features). In training the statistics are the batch's, with the biased
    variance; in evaluation the running ones, which are fp32 whatever the module is cast to:
    running <- (1 - momentum) running + momentum batch, with the unbiased variance, as in torch. A
    statistic of fewer than two values, or one that is not finite, is not kept. Padded tokens are no
    part of any statistic and come out as 0.

    Neither a batch without a valid token nor the second pass of activation checkpointing changes
    anything. Ioffe and Szegedy 2015 (1502.03167), algorithm 1. A subclass says what a batch is.

    Args:
        num_features: channels, the last axis of x.
        momentum: weight of the new batch; None for the mean of all batches.
        affine: with a gain, and with a bias unless `bias` is False.
        track_running_stats: keep running statistics; without them evaluation uses the batch's.
        unit_offset: the gain is 1 + weight and the weight starts at 0.
        synchronized: statistics over all processes, weighted with their counts; every one of them
            must call the module, forward and backward.
        process_group: those that are synchronized; None for all.

    Raises:
        SettingError: eps or momentum out of range; unit_offset without a weight.
    """

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    wide_buffers = ("running_mean", "running_var")
    statistics_shape: tuple[int, ...] = ()  # of a running statistic, channels aside

    def __init__(  # noqa: PLR0913 - torch's signature and three of ours
        self,
        num_features: int,
        eps: float = DEFAULT_EPS["batch_norm"],
        momentum: float | None = 0.1,
        affine: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        track_running_stats: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        unit_offset: bool = False,
        synchronized: bool = False,
        process_group: Any = None,
    ) -> None:
        super().__init__(
            num_features, elementwise_affine=affine, bias=bias, unit_offset=unit_offset,
            device=device, dtype=dtype,
        )  # fmt: skip
        name = type(self).__name__
        self.eps = checked_eps(name, eps)
        if momentum is not None and not 0.0 <= momentum <= 1.0:
            raise SettingError(
                f"{name}: momentum is the weight of the new batch, from 0 to 1, or None for the "
                f"mean of all batches. It is {momentum}."
            )
        self.num_features = num_features
        self.momentum = momentum
        self.track_running_stats = track_running_stats
        self.synchronized = synchronized
        self.process_group = process_group
        self.frozen = False
        self.mask: Tensor | None = None
        kept = torch.float64 if dtype == torch.float64 else torch.float32
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "running_mean": ((*self.statistics_shape, num_features), kept),
            "running_var": ((*self.statistics_shape, num_features), kept),
            "num_batches_tracked": (self.statistics_shape, torch.long),
        }
        for key, (shape, kind) in shapes.items():
            buffer = torch.empty(shape, dtype=kind, device=device) if track_running_stats else None
            self.register_buffer(key, buffer)
        self.reset_parameters()

    def axes(self, x: Tensor) -> tuple[int, ...]:
        """The axes of x that a batch is made of."""
        raise NotImplementedError

    def reset_running_stats(self) -> None:
        """Mean 0, variance 1, no batch seen."""
        if self.running_mean is None or self.running_var is None:
            return
        self.running_mean.zero_()
        self.running_var.fill_(1.0)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Gain 1, bias 0, and the running statistics as they start."""
        super().reset_parameters()
        self.reset_running_stats()

    def freeze(self) -> Self:
        """Evaluation from now on, whatever `train()` says: statistics and counter stay."""
        if self.running_mean is None:
            raise SettingError(
                f"{type(self).__name__}: freeze needs running statistics. There are none. Build it "
                f"with track_running_stats=True."
            )
        self.frozen = True
        return self

    def unfreeze(self) -> Self:
        """Undoes `freeze`."""
        self.frozen = False
        return self

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Normalizes x; `mask` (..., tokens) is True for the valid ones, and without it `self.mask`
        holds.
        """
        mask = self.mask if mask is None else mask
        spec = self.spec(x, self.eps)
        self._check(x, mask)
        if self.running_mean is not None and (self.frozen or not self.training):
            y = affine(self._evaluated(without_padding(x, mask)), self.weight, self.bias, spec)
        elif not x.numel() and not self.synchronized:
            y = affine(x.to(compute_dtype(x)), self.weight, self.bias, spec)
        elif self._fits_torch(mask):
            y = self._by_torch(x, mask, spec)
        else:
            y = self._composed(x, mask, spec)
        return without_padding(y, mask)

    def _composed(self, x: Tensor, mask: Tensor | None, spec: NormSpec) -> Tensor:
        centred, found = batch_statistics(x, mask, self.axes(x), self._group())
        self._keep(found)
        return affine(centred * self._inverse(found.variance), self.weight, self.bias, spec)

    def _by_torch(self, x: Tensor, mask: Tensor | None, spec: NormSpec) -> Tensor:
        wide = compute_dtype(x, self.weight, self.bias)
        rows = self._rows(x, mask)
        if not len(rows):  # nothing valid: all of it becomes 0, with a gradient of 0
            return affine(without_padding(x.to(wide), mask), self.weight, self.bias, spec)
        repeats = rows.shape[1] // self.num_features
        own = None if self.weight is None else gain(self.weight, wide, spec).repeat(repeats)
        bias = None if self.bias is None else self.bias.to(wide).repeat(repeats)
        y, found = fused_batch_norm(rows.to(wide), own, bias, self.eps)
        self._keep(found)
        return self._from_rows(y.to(x.dtype), x, mask)

    def _fits_torch(self, mask: Tensor | None) -> bool:
        """Whether the valid entries are rows that torch's kernel can take."""
        return mask is None and not self.synchronized and not transformed()

    def _rows(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The valid entries as (entries of a statistic, statistics)."""
        return x.reshape(-1, math.prod(x.shape[-1 - len(self.statistics_shape) :]))

    def _from_rows(self, rows: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        return rows.reshape(x.shape)

    def _inverse(self, variance: Tensor) -> Tensor:
        """What a deviation is multiplied by."""
        return torch.rsqrt(variance + self.eps)

    def _evaluated(self, x: Tensor) -> Tensor:
        mean, variance = self._running(x)
        return (x.to(compute_dtype(x, mean)) - mean) * self._inverse(variance)

    def _running(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Running mean and variance as they meet x."""
        return self.running_mean, self.running_var  # type: ignore[return-value]

    def _keep(self, found: BatchStatistics) -> None:
        """One step of the running statistics of those channels that have one, in training."""
        self._check_count(found.count)
        if self.running_mean is None or self.running_var is None or not self.training:
            return
        if recomputing():
            return
        if transformed():
            raise SettingError(
                f"{type(self).__name__} in training changes its running statistics, which a "
                f"transform such as vmap or jacrev cannot follow. Call eval() or freeze() first, "
                f"or build it with track_running_stats=False."
            )
        found = found.detached()
        count = self._fitted(found.count.expand_as(found.mean))
        mean = self._fitted(found.mean)
        variance = self._fitted(self._kept_variance(found))
        finite = (mean.isfinite() & variance.isfinite()).all(-1, keepdim=True)
        self._report(finite)
        keep = (count > 1.0) & finite
        if torch.compiler.is_compiling():
            keep = keep & ~in_backward(mean)
        self.num_batches_tracked += keep[..., 0]  # type: ignore[operator]
        weight = self._weight_of_new()
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            moved = torch.lerp(running.double(), new, weight)
            running.copy_(torch.where(keep, moved, running))

    def _kept_variance(self, found: BatchStatistics) -> Tensor:
        return found.unbiased

    def _weight_of_new(self) -> Tensor | float:
        if self.momentum is not None:
            return self.momentum
        seen: Tensor = self.num_batches_tracked  # type: ignore[assignment]
        return (1.0 / seen.clamp_min(1).double()).unsqueeze(-1)

    def _fitted(self, statistic: Tensor) -> Tensor:
        """A statistic in the shape of the running ones."""
        return statistic.reshape(-1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """As torch: a state dict from before the counter leaves it as it is."""
        counter = self.num_batches_tracked
        if counter is not None and not counter.is_meta:
            state_dict.setdefault(prefix + "num_batches_tracked", counter.clone())
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _check_count(self, count: Tensor) -> None:
        """Refuses what cannot be trained on, before anything is changed."""

    def _report(self, finite: Tensor) -> None:
        if not torch.compiler.is_compiling() and not bool(finite.all()):
            warnings.warn(
                f"{type(self).__name__}: a batch with values that are not finite was normalized; "
                f"its statistics are not kept.",
                RuntimeWarning,
                stacklevel=7,
            )

    def _group(self) -> Any:
        if not self.synchronized:
            return None
        return dist.group.WORLD if self.process_group is None else self.process_group

    def _check(self, x: Tensor, mask: Tensor | None) -> None:
        check_mask(type(self).__name__, x, mask)

    def extra_repr(self) -> str:
        state = ", frozen" if self.frozen else ""
        return f"{super().extra_repr()}, eps={self.eps}, momentum={self.momentum}{state}"


class BatchNormTokens(BatchNorm):
    """`BatchNorm` over all valid tokens of a batch, as PowerNorm's and RegularizedBN's code has it.

    In a causal model it leaks the future: a token is normalized with the ones after it.

    Raises:
        ShapeError: a batch of one valid token in training.
    """

    def axes(self, x: Tensor) -> tuple[int, ...]:
        return tuple(range(x.ndim - 1))

    def _fits_torch(self, mask: Tensor | None) -> bool:
        packs = mask is None or not torch.compiler.is_compiling()  # a graph has no shape for it
        return packs and super()._fits_torch(None)

    def _rows(self, x: Tensor, mask: Tensor | None) -> Tensor:
        rows = super()._rows(x, mask)
        return rows if mask is None else rows.index_select(0, _valid(x, mask))

    def _from_rows(self, rows: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            rows = x.new_zeros(x.shape).flatten(0, -2).index_copy(0, _valid(x, mask), rows)
        return super()._from_rows(rows, x, mask)

    def _check_count(self, count: Tensor) -> None:
        if torch.compiler.is_compiling() or transformed():
            return
        if bool((count == 1.0).any()):
            raise ShapeError(
                f"{type(self).__name__}: training needs two valid tokens or more in a batch. "
                f"There is 1. Pass a larger batch, or call eval()."
            )


class BatchNormPosition(BatchNorm):
    """`BatchNorm` over the sequences of a batch, for each position by itself.

    x is (..., tokens, num_features). A position with one valid token comes out as the bias, and its
    running statistics stay.

    Args:
        max_len: positions with running statistics of their own.

    Raises:
        ShapeError: a sequence longer than that.
    """

    def __init__(self, num_features: int, max_len: int, *args: Any, **options: Any) -> None:
        self.statistics_shape = (max_len,)
        super().__init__(num_features, *args, **options)

    def axes(self, x: Tensor) -> tuple[int, ...]:
        return tuple(range(x.ndim - 2))

    def _check(self, x: Tensor, mask: Tensor | None) -> None:
        super()._check(x, mask)
        longest = self.statistics_shape[0]
        if x.ndim < 2 or x.shape[-2] > longest:
            raise ShapeError(
                f"BatchNormPosition: x must be (..., tokens, channels) with at most max_len = "
                f"{longest} tokens. It is {tuple(x.shape)}. Build it with a larger max_len."
            )

    def _running(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = super()._running(x)
        return mean[: x.shape[-2]], variance[: x.shape[-2]]

    def _fitted(self, statistic: Tensor) -> Tensor:
        """Continued to all positions with 0, a count that is not kept."""
        rows = statistic.reshape(-1, self.num_features)
        return nn.functional.pad(rows, (0, 0, 0, self.statistics_shape[0] - len(rows)))


def _valid(x: Tensor, mask: Tensor) -> Tensor:
    """Indices of the valid tokens among all."""
    return mask.expand(x.shape[:-1]).flatten().nonzero().squeeze(1)
