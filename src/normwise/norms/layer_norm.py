"""LayerNorm as a module."""

import torch
from torch import Tensor, nn

from normwise.norms.settings import DEFAULT_EPS, checked_eps, checked_offset
from normwise.ops.functional import Shape, layer_norm
from normwise.ops.rounding import ROUNDINGS


class LayerNorm(nn.LayerNorm):
    """g (x - mean)/sqrt(var + eps) + b over the trailing axes; see `nw.layer_norm`.

    torch's constructor, state dict and initial values: a drop-in for `torch.nn.LayerNorm`.
    x is (*, *normalized_shape), the result has its shape and dtype.

    Args:
        unit_offset: the gain is 1 + weight and the weight starts at 0, so weight decay pulls the
            gain to 1. The same function at the start as without it.
        rounding: a row of `ROUNDINGS`.

    Raises:
        SettingError: eps negative, NaN or infinite; unit_offset without a weight.
    """

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = DEFAULT_EPS["layer_norm"],
        elementwise_affine: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        bias: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        unit_offset: bool = False,
        rounding: str = "fp32",
    ) -> None:
        self.unit_offset = checked_offset(
            "LayerNorm", unit_offset=unit_offset, affine=elementwise_affine
        )
        self.rounding = ROUNDINGS.resolve(rounding)
        eps = checked_eps("LayerNorm", eps)
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)

    def reset_parameters(self) -> None:
        """Gain 1, bias 0."""
        super().reset_parameters()
        if self.unit_offset:
            nn.init.zeros_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        return layer_norm(
            input, self.normalized_shape, self.weight, self.bias, self.eps,
            unit_offset=self.unit_offset, rounding=self.rounding,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, unit_offset={self.unit_offset}, rounding={self.rounding}"
