"""Placements that carry several streams, or every earlier output."""

from typing import Any

import torch
from torch import Tensor, nn

from normwise.errors import SettingError
from normwise.ops.functional import rms_norm
from normwise.residual.base import Branch, NormFactory, OneNorm, PerSublayer, Residual, Site

Pair = tuple[Tensor, Tensor]


class TwoStreams(PerSublayer):
    """A stack of two streams that both start as x; it ends with x + norm(y)."""

    def enter(self, x: Tensor) -> Pair:
        return x, x

    def exit(self, state: Pair) -> Tensor:
        x, y = state
        normed: Tensor = self.final_norm(y)
        return x + normed


class ResiDual(OneNorm):
    """x <- norm(x + F(x)), r <- r + F(x); ends with x + norm(r).

    A post-norm stream computes, a free one collects what the branches gave. The stream shown is x.
    Xie et al. 2023 (2304.14802), equation 4; its fp16 factor on r, which the norm undoes, is left
    out.
    """

    def forward(self, state: Pair, branch: Branch) -> Pair:
        x, dual = state
        out = branch(x)
        return self.norm(x + out), dual + out

    @staticmethod
    def stream(state: Pair) -> Tensor:
        return state[0]


class SiameseNorm(Residual):
    """o = F(x + norm_y(y)), x <- norm_x(x + o), y <- y + o; ends with x + norm(y).

    x is post-norm and y pre-norm, and every branch reads both. The stream shown is y. The form of
    the paper, 2026 (2602.08064).
    """

    def __init__(self, norm: NormFactory, site: Site) -> None:
        super().__init__(norm, site)
        self.norm_x = norm(site.kind, site.layer)
        self.norm_y = norm(site.kind, site.layer)

    def forward(self, state: Pair, branch: Branch) -> Pair:
        x, y = state
        out = branch(x + self.norm_y(y))
        return self.norm_x(x + out), y + out

    @staticmethod
    def stream(state: Pair) -> Tensor:
        return state[1]


class SiameseScaled(Residual):
    """x <- norm_x(x), o = F(norm_in(x + norm_y(y))), x <- x + o/sqrt(2 l), y <- y + o; ends with
    norm(norm(x) + norm(y)).

    l is the layer from 1. The stream shown is y. The form of the code published with the paper,
    2026 (2602.08064).
    """

    def __init__(self, norm: NormFactory, site: Site) -> None:
        super().__init__(norm, site)
        self.norm_x = norm(site.kind, site.layer)
        self.norm_y = norm(site.kind, site.layer)
        self.norm_in = norm(site.kind, site.layer)
        self.scale = (2.0 * (site.layer + 1)) ** -0.5

    def forward(self, state: Pair, branch: Branch) -> Pair:
        x, y = self.norm_x(state[0]), state[1]
        out = branch(self.norm_in(x + self.norm_y(y)))
        return x + self.scale * out, y + out

    @staticmethod
    def stream(state: Pair) -> Tensor:
        return state[1]

    def extra_repr(self) -> str:
        return f"scale={self.scale:.4f}"


class TwoNormedStreams(TwoStreams):
    """A stack of two streams that ends with norm(norm(x) + norm(y))."""

    def __init__(self, *args: Any, final_norm: bool, **options: Any) -> None:
        super().__init__(*args, final_norm=final_norm, **options)
        norm, stack = args[1], args[2]
        self.exit_x = norm("final", stack.depth - 1)
        self.exit_y = norm("final", stack.depth - 1)

    def exit(self, state: Pair) -> Tensor:
        x, y = state
        normed: Tensor = self.final_norm(self.exit_x(x) + self.exit_y(y))
        return normed


class Copies(PerSublayer):
    """A stack of n streams (n, ..., dim) that all start as x; it ends with a norm of their mean."""

    def enter(self, x: Tensor) -> Tensor:
        streams: int = self.connections[0].streams  # type: ignore[assignment]
        return x.expand(streams, *x.shape)

    def exit(self, state: Tensor) -> Tensor:
        normed: Tensor = self.final_norm(state.mean(0))
        return normed


class HyperConnection(OneNorm):
    """H <- R H + b F(norm(a H)), H being n streams; ends with the norm of their mean.

    a reads one stream out of n, R mixes the streams, b writes the branch to each. At the start the
    branch s reads stream s mod n, R = I and b = 1: pre-norm. Each also has a part that depends on
    the token, 0.01 tanh(norm(H) W) with W = 0 at the start, if `dynamic`. Zhu et al. 2024
    (2409.19606), equations 1 to 13.

    Args:
        streams: n.
        dynamic: with the parts that depend on the token.

    Raises:
        SettingError: fewer than one stream.
    """

    def __init__(
        self, norm: NormFactory, site: Site, *, streams: int = 4, dynamic: bool = True
    ) -> None:
        super().__init__(norm, site)
        if streams < 1:
            raise SettingError(f"hyper_connections: streams must be at least 1. It is {streams}.")
        self.streams = streams
        self.read = nn.Parameter(torch.empty(streams))
        self.mix = nn.Parameter(torch.empty(streams, streams))
        self.write = nn.Parameter(torch.empty(streams))
        self.dynamic = norm(site.kind, site.layer) if dynamic else None
        outputs = streams + 2  # a row of R, and an entry of a and of b, for each stream
        self.weight = nn.Parameter(torch.empty(site.dim, outputs)) if dynamic else None
        self.factor = nn.Parameter(torch.empty(outputs)) if dynamic else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reads one stream, keeps all, writes to all; no part depends on the token yet."""
        nn.init.zeros_(self.read)
        with torch.no_grad():
            self.read[self.site.index % self.streams] = 1.0
        nn.init.eye_(self.mix)
        nn.init.ones_(self.write)
        if self.weight is not None and self.factor is not None:
            nn.init.zeros_(self.weight)
            nn.init.constant_(self.factor, 0.01)

    def forward(self, state: Tensor, branch: Branch) -> Tensor:
        read, write, mix = self.coefficients(state)
        out = branch(self.norm((read.unsqueeze(-1) * state).sum(0)))
        mixed = (mix.unsqueeze(-1) * state.unsqueeze(0)).sum(1)
        return mixed + write.unsqueeze(-1) * out

    def coefficients(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """a (n, ...), b (n, ...) and R (n to, n from, ...) for each token of (n, ..., dim)."""
        ones = (1,) * (state.ndim - 2)
        read, write = self.read.reshape(-1, *ones), self.write.reshape(-1, *ones)
        mix = self.mix.reshape(self.streams, self.streams, *ones)
        if self.dynamic is None or self.weight is None or self.factor is None:
            return read, write, mix
        found = self.factor * torch.tanh(self.dynamic(state) @ self.weight)
        rows = found[..., 2:].movedim(-1, 0)  # (n to, n from, ...)
        return read + found[..., 0], write + found[..., 1], mix + rows

    @staticmethod
    def stream(state: Tensor) -> Tensor:
        return state.mean(0)


class Attended(PerSublayer):
    """A stack whose state is (h, values): what the next branch reads, and all outputs so far."""

    def enter(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return x, (x,)

    def exit(self, state: tuple[Tensor, tuple[Tensor, ...]]) -> Tensor:
        normed: Tensor = self.final_norm(state[0])
        return normed


class AttentionResidual(OneNorm):
    """h = sum a_i v_i over x and all outputs v = F(norm(h)) so far, a = softmax(w v_i/rms(v_i));
    one norm after the last layer.

    w is a learned vector for each h, 0 at the start: then h is the mean, and the stack is pre-norm
    up to the scale that its norms remove. The stream shown is h. Kimi 2026 (2603.15031),
    section 3.
    """

    def __init__(self, norm: NormFactory, site: Site) -> None:
        super().__init__(norm, site)
        self.query = nn.Parameter(torch.zeros(site.dim))

    def reset_parameters(self) -> None:
        """w is 0."""
        nn.init.zeros_(self.query)

    def forward(
        self, state: tuple[Tensor, tuple[Tensor, ...]], branch: Branch
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        h, values = state
        values = (*values, branch(self.norm(h)))
        sources = torch.stack(values, dim=-2)  # (..., S, dim)
        scores = rms_norm(sources, sources.shape[-1:], eps=1e-6) @ self.query
        shares = torch.softmax(scores, dim=-1)
        return (shares.unsqueeze(-2) @ sources).squeeze(-2), values

    @staticmethod
    def stream(state: tuple[Tensor, tuple[Tensor, ...]]) -> Tensor:
        return state[0]
