"""Placements without constants: a list of formulas."""

import torch
from torch import Tensor, nn

from normwise.residual.base import Branch, NormFactory, OneNorm, Residual, Site
from normwise.theory.scaling import post_norm_layers


class PreNorm(OneNorm):
    """x + F(norm(x)); one norm after the last layer.

    The stream grows: with unit branches its variance is 1 + s after s branches. Radford et al.
    2019 (GPT-2), section 2.3; Xiong et al. 2020 (2002.04745), figure 1b.
    """

    def forward(self, state: Tensor, branch: Branch) -> Tensor:
        return state + branch(self.norm(state))


class PostNorm(OneNorm):
    """norm(x + F(x)); nothing after the last layer, whose own norm is the last.

    The stream keeps unit variance. Needs warm-up from about 12 layers on. Vaswani et al. 2017
    (1706.03762), section 3.1; Xiong et al. 2020 (2002.04745), figure 1a.
    """

    def forward(self, state: Tensor, branch: Branch) -> Tensor:
        return self.norm(state + branch(state))  # type: ignore[no-any-return]


class PeriNorm(Residual):
    """x + norm_out(F(norm_in(x))); one norm after the last layer.

    Each branch adds variance 1 whatever its weights. Kim et al. 2025 (2502.02732);
    the sandwich of CogView and of Gemma 2.
    """

    def __init__(self, norm: NormFactory, site: Site) -> None:
        super().__init__(norm, site)
        self.norm_in = norm(site.kind, site.layer)
        self.norm_out = norm(site.kind, site.layer)

    def forward(self, state: Tensor, branch: Branch) -> Tensor:
        return state + self.norm_out(branch(self.norm_in(state)))  # type: ignore[no-any-return]


class OutputNorm(OneNorm):
    """x + norm(F(x)); one norm after the last layer, and norms of queries and keys.

    Each branch adds variance 1. Nothing stands before the branch, so without a query/key norm the
    attention logits would grow with the layer. OLMo et al. 2024 (2501.00656), section 3.2.
    """

    def forward(self, state: Tensor, branch: Branch) -> Tensor:
        return state + self.norm(branch(state))  # type: ignore[no-any-return]


class MixNorm(OneNorm):
    """norm(x + F(x)) in the first floor(share L) layers, then x + F(norm(x)); one norm after the
    last layer.

    The layers below keep post-norm's gradients and those above pre-norm's. With fewer than
    1/share layers none is post-norm. Li et al. 2024 (2412.13795), section 4.1.

    Args:
        share: of the layers that are post-norm.
    """

    def __init__(self, norm: NormFactory, site: Site, *, share: float = 0.25) -> None:
        super().__init__(norm, site)
        self.post = site.layer < post_norm_layers(share, site.stack)

    def forward(self, state: Tensor, branch: Branch) -> Tensor:
        rule = PostNorm.forward if self.post else PreNorm.forward
        return rule(self, state, branch)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        return "post" if self.post else "pre"


class SubNorm(PreNorm):
    """x + F(norm(x)), with one more norm before the last matrix of F; one norm after the last
    layer.

    Belongs with the initialisation `sub_norm`, which draws value, output and feed-forward matrices
    larger by sqrt(ln 2N). Wang et al. 2022 (2210.06423), figure 2.
    """


class NormFormer(PreNorm):
    """x + norm(F(norm(x))) for attention, g x + F(norm(x)) for feed-forward; one norm after the
    last layer.

    F scales each head by a learned number, and has a norm after its activation. g is a learned
    vector. All start at 1. Shleifer et al. 2021 (2110.09456), section 2.1.
    """

    def __init__(self, norm: NormFactory, site: Site) -> None:
        super().__init__(norm, site)
        self.after = norm(site.kind, site.layer) if site.kind != "feed_forward" else None
        self.skip = nn.Parameter(torch.ones(site.dim)) if site.kind == "feed_forward" else None

    def reset_parameters(self) -> None:
        """g is 1."""
        if self.skip is not None:
            nn.init.ones_(self.skip)

    def forward(self, state: Tensor, branch: Branch) -> Tensor:
        out = branch(self.norm(state))
        out = out if self.after is None else self.after(out)
        return out + (state if self.skip is None else self.skip * state)


class HybridNorm(Residual):
    """x + F(x) for attention, n + F(n) with n = norm(x) for feed-forward; one norm after the last
    layer.

    Attention has norms of queries, keys and values over each head in place of one before it. The
    skip of the feed-forward starts from n, not from x. Zhuo et al. 2025 (2503.04598), section 3.
    """

    star = False

    def __init__(self, norm: NormFactory, site: Site) -> None:
        super().__init__(norm, site)
        self.pre = self.star and site.layer == 0
        normed = self.pre or site.kind == "feed_forward"
        self.norm = norm(site.kind, site.layer) if normed else nn.Identity()

    def forward(self, state: Tensor, branch: Branch) -> Tensor:
        normed: Tensor = self.norm(state)
        return (state if self.pre else normed) + branch(normed)


class HybridNormStar(HybridNorm):
    """as hybrid_norm, but x + F(norm(x)) in the first layer; one norm after the last layer.

    HybridNorm* of Zhuo et al. 2025 (2503.04598), section 3.
    """

    star = True


class PlainSum(Residual):
    """x + F(x); no norm anywhere.

    T-Fixup: what keeps it stable is the initialisation `t_fixup` it belongs with, which draws
    value, output and feed-forward matrices smaller by 0.67 N^(-1/4) and embeddings by
    (9N)^(-1/4). Huang et al. 2020 (ICML, Improving Transformer Optimization Through Better
    Initialization), section 3.3.
    """

    def forward(self, state: Tensor, branch: Branch) -> Tensor:
        return state + branch(state)
