"""What the norms that torch does not have share: a shape, a gain, a bias."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from normwise.norms.settings import checked_offset
from normwise.ops.functional import Shape, axes_of, spec_of
from normwise.ops.reference import NormSpec


class AffineNorm(nn.Module):
    """g n(x) + b over the trailing axes; a subclass writes n in `forward`.

    Args:
        normalized_shape: sizes of the trailing axes.
        elementwise_affine: with a gain, and with a bias unless `bias` is False.
        unit_offset: the gain is 1 + weight and the weight starts at 0.

    Raises:
        SettingError: unit_offset without a weight.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    wide_buffers: tuple[str, ...] = ()  # that stay in fp32 where the rest becomes a half

    def __init__(
        self,
        normalized_shape: Shape,
        *,
        elementwise_affine: bool,
        bias: bool,
        unit_offset: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.normalized_shape = axes_of(normalized_shape)
        self.unit_offset = checked_offset(
            type(self).__name__, unit_offset=unit_offset, affine=elementwise_affine
        )
        for name, present in (
            ("weight", elementwise_affine),
            ("bias", elementwise_affine and bias),
        ):
            empty = torch.empty(self.normalized_shape, device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(empty) if present else None)

    def reset_parameters(self) -> None:
        """Gain 1, bias 0."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 0.0 if self.unit_offset else 1.0)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:  # noqa: FBT001, FBT002
        before = {name: getattr(self, name) for name in self.wide_buffers}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, kept in before.items():
            now = getattr(self, name)
            if kept is not None and now.dtype in (torch.bfloat16, torch.float16):
                setattr(self, name, kept.to(now.device))
        return self

    def spec(self, x: Tensor, eps: float = 0.0) -> NormSpec:
        """The call for x, checked."""
        return spec_of(
            type(self).__name__, x, self.normalized_shape, self.weight, self.bias, eps,
            unit_offset=self.unit_offset, rounding="fp32",
        )  # fmt: skip

    def extra_repr(self) -> str:
        with_bias, affine = self.bias is not None, self.weight is not None
        return (
            f"{self.normalized_shape}, elementwise_affine={affine}, bias={with_bias}, "
            f"unit_offset={self.unit_offset}"
        )
