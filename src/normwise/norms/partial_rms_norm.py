"""RMSNorm whose root mean square is estimated from the first coordinates."""

import math

import torch
from torch import Tensor

from normwise.errors import SettingError
from normwise.norms.affine import AffineNorm
from normwise.norms.settings import DEFAULT_EPS, checked_eps
from normwise.ops.functional import Shape
from normwise.ops.variants import partial_rms_norm


class PartialRMSNorm(AffineNorm):
    """g x/sqrt(mean(x_1^2 ... x_k^2) + eps), k = floor(partial d); see `RMSNorm`.

    For Gaussian x the estimate errs by a relative sqrt((1/k - 1/d)/2): 8.6 % at d = 1024 and
    partial = 0.0625. Zhang and Sennrich 2019 (1910.07467), section 3.2.

    Args:
        partial: share of the coordinates, above 0 and at most 1.

    Raises:
        SettingError: a share that leaves no coordinate; eps negative, NaN or infinite.
    """

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = DEFAULT_EPS["partial_rms_norm"],
        elementwise_affine: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        partial: float = 0.0625,
        bias: bool = False,
        unit_offset: bool = False,
    ) -> None:
        super().__init__(
            normalized_shape, elementwise_affine=elementwise_affine, bias=bias,
            unit_offset=unit_offset, device=device, dtype=dtype,
        )  # fmt: skip
        self.eps = checked_eps("PartialRMSNorm", eps)
        self.partial = partial
        size = math.prod(self.normalized_shape)
        if not (0 < partial <= 1 and int(partial * size) >= 1):
            raise SettingError(
                f"PartialRMSNorm: partial must be above 0 and at most 1 and give at least one of "
                f"the {size} coordinates. It is {partial}. Pass {1 / size:.4g} or more."
            )
        self.first = int(partial * size)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return partial_rms_norm(x, self.weight, self.bias, self.first, self.spec(x, self.eps))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, eps={self.eps}, partial={self.partial}"
