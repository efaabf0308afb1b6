"""The absence of a norm, as a norm."""

from torch import nn

from normwise.ops.functional import Shape


class NoNorm(nn.Identity):
    """x itself: what a norm is compared with. It has no parameters and no eps."""

    def __init__(self, normalized_shape: Shape) -> None:
        super().__init__()
        self.normalized_shape = normalized_shape
