"""The row brought to one length, with one learned number."""

import math

import torch
from torch import Tensor, nn

from normwise.norms.settings import DEFAULT_EPS, checked_eps, checked_offset
from normwise.ops.functional import Shape, axes_of, spec_of
from normwise.ops.variants import scale_norm


class ScaleNorm(nn.Module):
    """g x/max(norm2(x), eps) with one g, which starts at sqrt(d): the output's RMS is then 1.

    Nguyen and Salazar 2019 (1910.05895), equation 5.

    Args:
        normalized_shape: sizes of the trailing axes, of d entries together.
        eps: least length that a row is divided by.
        elementwise_affine: with a learned g; else it is sqrt(d).
        unit_offset: g is sqrt(d) (1 + weight) and the weight starts at 0.

    Raises:
        SettingError: eps negative, NaN or infinite; unit_offset without a weight.
    """

    weight: nn.Parameter | None

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = DEFAULT_EPS["scale_norm"],
        elementwise_affine: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        unit_offset: bool = False,
    ) -> None:
        super().__init__()
        self.normalized_shape = axes_of(normalized_shape)
        self.eps = checked_eps("ScaleNorm", eps)
        self.unit_offset = checked_offset(
            "ScaleNorm", unit_offset=unit_offset, affine=elementwise_affine
        )
        gain = torch.empty((), device=device, dtype=dtype)
        self.register_parameter("weight", nn.Parameter(gain) if elementwise_affine else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """g = sqrt(d)."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 0.0 if self.unit_offset else self._root())

    def forward(self, x: Tensor) -> Tensor:
        spec = spec_of("ScaleNorm", x, self.normalized_shape, None, None, self.eps,
                       unit_offset=False, rounding="fp32")  # fmt: skip
        spec = spec._replace(unit_offset=self.unit_offset)
        return scale_norm(x, self.weight, self._root(), spec)

    def _root(self) -> float:
        return math.sqrt(math.prod(self.normalized_shape))

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.weight is not None}, unit_offset={self.unit_offset}"
        )
