"""Placements without constants: a list of formulas."""

from torch import Tensor

from normwise.residual.base import Branch, NormFactory, Residual


class PreNorm(Residual):
    """x + F(norm(x)); one norm after the last layer.

    The stream grows: with unit branches its variance is 1 + s after s branches. Radford et al.
    2019 (GPT-2), section 2.3; Xiong et al. 2020 (2002.04745), figure 1b.
    """

    def __init__(self, norm: NormFactory, sublayers: int, index: int) -> None:
        super().__init__(norm, sublayers, index)
        self.norm = norm()

    def forward(self, x: Tensor, branch: Branch) -> Tensor:
        return x + branch(self.norm(x))


class PostNorm(Residual):
    """norm(x + F(x)); nothing after the last layer, whose own norm is the last.

    The stream keeps unit variance. Needs warm-up from about 12 layers on. Vaswani et al. 2017
    (1706.03762), section 3.1; Xiong et al. 2020 (2002.04745), figure 1a.
    """

    def __init__(self, norm: NormFactory, sublayers: int, index: int) -> None:
        super().__init__(norm, sublayers, index)
        self.norm = norm()

    def forward(self, x: Tensor, branch: Branch) -> Tensor:
        return self.norm(x + branch(x))  # type: ignore[no-any-return]


class PeriNorm(Residual):
    """x + norm_out(F(norm_in(x))); one norm after the last layer.

    Each branch adds variance 1 whatever its weights. Kim et al. 2025 (2502.02732);
    the sandwich of CogView and of Gemma 2.
    """

    def __init__(self, norm: NormFactory, sublayers: int, index: int) -> None:
        super().__init__(norm, sublayers, index)
        self.norm_in = norm()
        self.norm_out = norm()

    def forward(self, x: Tensor, branch: Branch) -> Tensor:
        return x + self.norm_out(branch(self.norm_in(x)))  # type: ignore[no-any-return]
