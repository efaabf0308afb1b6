"""Placements with constants that depend on depth."""

from torch import Tensor

from normwise.residual.base import Branch, NormFactory, Residual
from normwise.theory.scaling import deep_norm_alpha


class DeepNorm(Residual):
    """norm(alpha x + F(x)); nothing after the last layer, whose own norm is the last.

    alpha = (2N)^(1/4) stands on the skip, never on the branch, N being the number of layers.
    Belongs with the initialisation `deep_norm`, which draws value, output and feed-forward
    matrices smaller by beta = (8N)^(-1/4). Wang et al. 2022 (2203.00555), figure 2.
    """

    def __init__(self, norm: NormFactory, sublayers: int, index: int) -> None:
        super().__init__(norm, sublayers, index)
        self.alpha = deep_norm_alpha(sublayers)
        self.norm = norm()

    def forward(self, x: Tensor, branch: Branch) -> Tensor:
        return self.norm(self.alpha * x + branch(x))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"alpha={self.alpha:.4f}"
