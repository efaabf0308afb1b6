"""The absence of a norm, as a norm."""

from torch import nn

from normwise.ops.functional import Shape


class NoNorm(nn.Identity):
    """x itself: what a norm is compared with. It has no parameters and no eps.

    It takes the keywords of the norms it stands in for, and has no use for them.
    """

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float | None = None,
        elementwise_affine: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        *,
        unit_offset: bool = False,
        rounding: str = "fp32",
    ) -> None:
        super().__init__()
        self.normalized_shape = normalized_shape
