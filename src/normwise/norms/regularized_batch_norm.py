"""BatchNorm whose training and running statistics are drawn together by a penalty."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normwise.norms.batch_norm import BatchNormTokens
from normwise.norms.settings import DEFAULT_EPS
from normwise.ops.batch import BatchStatistics
from normwise.ops.recompute import recomputing, snapshot
from normwise.table import Table

SMALLEST = 1e-30  # variance, below which a root has no slope to speak of
Deviation = Callable[[Tensor, Tensor], Tensor]


def _of_variance(running: Tensor, batch: Tensor) -> Tensor:
    return (running - batch).abs()


def _of_deviation(running: Tensor, batch: Tensor) -> Tensor:
    return (running.sqrt() - batch.clamp_min(SMALLEST).sqrt()).abs()


DEVIATIONS: Table[Deviation] = Table(
    "compared statistic", {"variance": _of_variance, "deviation": _of_deviation}
)


class RegularizedBatchNorm(BatchNormTokens):
    """`BatchNormTokens` with a penalty lambda_mean |mu_run - mu|^2 + lambda_var |var_run - var|_1.

    The penalty of the last training batch is asked for by `batch_penalty` and belongs into the
    loss. Running statistics are constants in it, those of the batch carry gradient. The variance
    has a floor of eps instead of an eps that is added, and the running one is biased, as in the
    paper's code. Wu et al. 2022 (2210.05153), equation 6.

    Args:
        num_features: channels, the last axis of x.
        penalties: lambda_mean and lambda_var; the paper has (0.1, 0.01) in pre-norm and (60, 0) in
            post-norm.
        compared: "variance", or "deviation" for |sigma_run - sigma|_1 as the paper writes it.
        options: further keywords of `BatchNorm`.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = DEFAULT_EPS["batch_norm"],
        momentum: float | None = 0.05,
        *,
        penalties: tuple[float, float] = (0.1, 0.01),
        compared: str = "variance",
        **options: Any,
    ) -> None:
        self.penalties = penalties
        self.compared = DEVIATIONS.resolve(compared)
        self._penalty: Tensor | None = None
        self._before = (torch.empty(0), torch.empty(0))  # running statistics before the batch
        super().__init__(num_features, eps, momentum, **options)

    def take_penalty(self) -> Tensor | None:
        """The penalty of the last training batch, once; None where there is none."""
        penalty, self._penalty = self._penalty, None
        return penalty

    def _fits_torch(self, mask: Tensor | None) -> bool:
        return False  # torch's kernel gives statistics without gradient

    def _inverse(self, variance: Tensor) -> Tensor:
        return torch.rsqrt(variance.clamp_min(self.eps))

    def _kept_variance(self, found: BatchStatistics) -> Tensor:
        return found.variance.double()

    def _keep(self, found: BatchStatistics) -> None:
        self._check_count(found.count)
        if self.training and self.running_mean is not None and self.running_var is not None:
            again = recomputing()
            if not again:
                self._before = snapshot(self.running_mean), snapshot(self.running_var)
            penalty = self._penalty_of(found)  # in a second pass too, which must be like the first
            if not again:
                self._penalty = penalty
        super()._keep(found)

    def _penalty_of(self, found: BatchStatistics) -> Tensor:
        """In fp32, against the running statistics before the batch; 0 without a valid token."""
        of_mean, of_variance = self.penalties
        mean, variance = self._before
        apart = (mean - found.mean.flatten().to(mean.dtype)).square().sum()
        deviation = DEVIATIONS[self.compared](variance, found.variance.flatten())
        total = of_mean * apart + of_variance * deviation.sum()
        return torch.where(found.count.max() > 0, total, 0.0)

    def __getstate__(self) -> dict[str, Any]:
        """Without the penalty, a tensor of a graph that no copy can have."""
        return {**self.__dict__, "_penalty": None}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, penalties={self.penalties}, compared={self.compared}"


def batch_penalty(model: nn.Module) -> Tensor | float:
    """Sum of the penalties of a model's `RegularizedBatchNorm` layers for the last training batch.

    Each is given once, so that none is kept with its graph. Add it to the loss; it is 0 for a model
    without such layers.
    """
    layers = [m for m in model.modules() if isinstance(m, RegularizedBatchNorm)]
    penalties = [p for layer in layers if (p := layer.take_penalty()) is not None]
    return torch.stack(penalties).sum() if penalties else 0.0
