"""Curves in the place of a norm: they bound each entry and know nothing of the row."""

import torch
from torch import Tensor, nn

from normwise.norms.affine import AffineNorm
from normwise.ops.functional import Shape
from normwise.ops.variants import derf, dynamic_tanh

ALPHA = 0.5


class DynamicTanh(AffineNorm):
    """g tanh(alpha x) + b with one learned alpha. It has no eps and is not scale-invariant.

    For a place before a branch: it does not bring the stream back to one size. Zhu et al. 2025
    (2503.10622), equation 1.

    Args:
        normalized_shape: sizes of the trailing axes.
        elementwise_affine: with alpha, gain and bias learned; else alpha stays as it is.
        alpha: where it starts. The paper takes 0.5, in language models of 7B parameters 0.8 for
            attention and 0.2 elsewhere.
        unit_offset: the gain is 1 + weight and the weight starts at 0.

    Raises:
        SettingError: unit_offset without a weight.
    """

    alpha: nn.Parameter | None
    shift: nn.Parameter | None
    shifted = False  # whether there is a number to add to alpha x

    def __init__(
        self,
        normalized_shape: Shape,
        elementwise_affine: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        bias: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        alpha: float = ALPHA,
        unit_offset: bool = False,
    ) -> None:
        super().__init__(
            normalized_shape, elementwise_affine=elementwise_affine, bias=bias,
            unit_offset=unit_offset, device=device, dtype=dtype,
        )  # fmt: skip
        self.initial_alpha = alpha
        for name, present in (("alpha", True), ("shift", self.shifted)):
            number = nn.Parameter(torch.empty((), device=device, dtype=dtype))
            self.register_parameter(name, number if elementwise_affine and present else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """alpha as it was asked for, s 0, gain 1, bias 0."""
        super().reset_parameters()
        if self.alpha is not None:
            nn.init.constant_(self.alpha, self.initial_alpha)
        if self.shift is not None:
            nn.init.zeros_(self.shift)

    def forward(self, x: Tensor) -> Tensor:
        return dynamic_tanh(x, self._alpha(), self.weight, self.bias, self.spec(x))

    def _alpha(self) -> Tensor | float:
        return self.initial_alpha if self.alpha is None else self.alpha

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, alpha={self.initial_alpha}"


class Derf(DynamicTanh):
    """g erf(alpha x + s) + b with one learned alpha and one s, which starts at 0.

    Otherwise as `DynamicTanh`. Chen et al. 2025 (2512.10938).
    """

    shifted = True

    def forward(self, x: Tensor) -> Tensor:
        shift = 0.0 if self.shift is None else self.shift
        return derf(x, self._alpha(), shift, self.weight, self.bias, self.spec(x))
