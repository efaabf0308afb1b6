"""Placements with constants that depend on depth."""

import math

from torch import Tensor, nn

from normwise.errors import SettingError
from normwise.residual.base import Branch, NormFactory, OneNorm, Residual, Site
from normwise.theory.scaling import branch_share, deep_norm_alpha, depth_scale, keel_alpha


class DeepNorm(OneNorm):
    """norm(alpha x + F(x)); nothing after the last layer, whose own norm is the last.

    alpha = (2N)^(1/4) stands on the skip, never on the branch, N being the number of layers.
    Belongs with the initialisation `deep_norm`, which draws value, output and feed-forward
    matrices smaller by beta = (8N)^(-1/4). Wang et al. 2022 (2203.00555), figure 2.
    """

    def __init__(self, norm: NormFactory, site: Site) -> None:
        super().__init__(norm, site)
        self.alpha = deep_norm_alpha(site.stack)

    def forward(self, state: Tensor, branch: Branch) -> Tensor:
        return self.norm(self.alpha * state + branch(state))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"alpha={self.alpha:.4f}"


class DepthScaledNorm(OneNorm):
    """x + F(norm(x)/sqrt(l)), l the layer from 1; one norm after the last layer, unscaled.

    The stream grows like the logarithm of the depth. Not with an initialisation that shrinks
    output matrices by depth. LayerNorm Scaling, Sun et al. 2025 (2502.05795), equation 4.
    """

    def __init__(self, norm: NormFactory, site: Site) -> None:
        super().__init__(norm, site)
        self.scale = depth_scale(site.layer)

    def forward(self, state: Tensor, branch: Branch) -> Tensor:
        return state + branch(self.scale * self.norm(state))

    def extra_repr(self) -> str:
        return f"scale={self.scale:.4f}"


class Keel(Residual):
    """norm_out(alpha x + F(norm_in(x))), x + F(norm_in(x)) at the first branch; nothing after the
    last layer, whose own norm is the last.

    alpha = S, the number of branches, unless given. Chen et al. 2026 (2601.19895).

    Args:
        alpha: the factor on the skip.
    """

    def __init__(self, norm: NormFactory, site: Site, *, alpha: float | None = None) -> None:
        super().__init__(norm, site)
        first = site.index == 0
        self.alpha = 1.0 if first else keel_alpha(site.stack) if alpha is None else alpha
        self.norm_in = norm(site.kind, site.layer)
        self.norm_out = nn.Identity() if first else norm(site.kind, site.layer)

    def forward(self, state: Tensor, branch: Branch) -> Tensor:
        total = self.alpha * state + branch(self.norm_in(state))
        return self.norm_out(total)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"alpha={self.alpha:.4g}"


class ScaledResidual(OneNorm):
    """lambda x + beta F(norm(x)) with lambda^2 + beta^2 = 1; one norm after the last layer.

    The stream keeps the variance of its entry where branches have it too, which the initialisation
    `scaled_residual` it belongs with sees to. Kedia et al. 2024 (2403.09635), section 4.2.

    Args:
        share: beta^2; 1/S unless given, S being the number of branches, and at most 1/2. The
            paper's code has 0.005.

    Raises:
        SettingError: a share that is not between 0 and 1.
    """

    def __init__(self, norm: NormFactory, site: Site, *, share: float | None = None) -> None:
        super().__init__(norm, site)
        share = branch_share(site.stack) if share is None else share
        if not 0.0 <= share <= 1.0:
            raise SettingError(f"scaled_residual: share must be from 0 to 1. It is {share}.")
        self.skip, self.scale = math.sqrt(1.0 - share), math.sqrt(share)

    def forward(self, state: Tensor, branch: Branch) -> Tensor:
        return self.skip * state + self.scale * branch(self.norm(state))

    def extra_repr(self) -> str:
        return f"lambda={self.skip:.4f}, beta={self.scale:.4f}"
