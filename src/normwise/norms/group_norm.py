"""LayerNorm in groups of channels, within each token."""

import math

import torch
from torch import Tensor

from normwise.errors import SettingError
from normwise.norms.affine import AffineNorm
from normwise.norms.settings import DEFAULT_EPS, checked_eps
from normwise.ops.functional import Shape
from normwise.ops.variants import group_norm


class GroupNorm(AffineNorm):
    """g (x - mean)/sqrt(var + eps) + b with mean and variance of each group of channels.

    Channels are the trailing axes, as of every norm here, so no token sees another:
    `torch.nn.GroupNorm` has them second and takes its statistics over all that follows, tokens
    too. One group is LayerNorm. Wu and He 2018 (1803.08494).

    Args:
        groups: must divide the number of channels.

    Raises:
        SettingError: groups that do not divide; eps negative, NaN or infinite.
    """

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = DEFAULT_EPS["group_norm"],
        elementwise_affine: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        bias: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        groups: int = 4,
        unit_offset: bool = False,
    ) -> None:
        super().__init__(
            normalized_shape, elementwise_affine=elementwise_affine, bias=bias,
            unit_offset=unit_offset, device=device, dtype=dtype,
        )  # fmt: skip
        self.eps = checked_eps("GroupNorm", eps)
        size = math.prod(self.normalized_shape)
        if groups < 1 or size % groups:
            raise SettingError(
                f"GroupNorm: groups must divide the number of channels. There are {groups} groups "
                f"and {size} channels. Pass a divisor of {size}."
            )
        self.groups = groups
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return group_norm(x, self.weight, self.bias, self.groups, self.spec(x, self.eps))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, eps={self.eps}, groups={self.groups}"
