"""RMSNorm as a module."""

import torch
from torch import Tensor, nn

from normwise.norms.settings import DEFAULT_EPS, checked_eps, checked_offset
from normwise.ops.functional import Shape, rms_norm
from normwise.ops.rounding import ROUNDINGS


class RMSNorm(nn.RMSNorm):
    """g x/sqrt(mean(x^2) + eps) over the trailing axes; see `nw.rms_norm`.

    torch's constructor and state dict: a drop-in for `torch.nn.RMSNorm`, but for the default eps,
    which is a fixed 1e-6 here; eps=None keeps torch's meaning. x is (*, *normalized_shape), the
    result has its shape and dtype.

    Args:
        bias: add a learned bias, which RMSNorm does not have unless asked.
        unit_offset: the gain is 1 + weight and the weight starts at 0, so weight decay pulls the
            gain to 1. The same function at the start as without it.
        rounding: a row of `ROUNDINGS`.

    Raises:
        SettingError: eps negative, NaN or infinite; unit_offset without a weight.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float | None = DEFAULT_EPS["rms_norm"],
        elementwise_affine: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = False,
        unit_offset: bool = False,
        rounding: str = "fp32",
    ) -> None:
        self.unit_offset = checked_offset(
            "RMSNorm", unit_offset=unit_offset, affine=elementwise_affine
        )
        self.rounding = ROUNDINGS.resolve(rounding)
        eps = None if eps is None else checked_eps("RMSNorm", eps)
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        with_bias = bias and elementwise_affine
        self.bias = nn.Parameter(torch.zeros_like(self.weight)) if with_bias else None

    def reset_parameters(self) -> None:
        """Gain 1, bias 0."""
        super().reset_parameters()
        if self.unit_offset:
            nn.init.zeros_(self.weight)
        bias = getattr(self, "bias", None)  # torch's constructor resets before there is one
        if bias is not None:
            nn.init.zeros_(bias)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(
            x, self.normalized_shape, self.weight, self.eps,
            bias=self.bias, unit_offset=self.unit_offset, rounding=self.rounding,
        )  # fmt: skip

    def extra_repr(self) -> str:
        own = f"bias={self.bias is not None}, unit_offset={self.unit_offset}"
        return f"{super().extra_repr()}, {own}, rounding={self.rounding}"
