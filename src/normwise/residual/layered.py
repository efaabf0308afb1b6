"""Placements whose branches share something of their layer: its entry, or a number of its own.

The state is (x, shared): the stream, and what the first branch of the layer hands to the others.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from normwise.residual.base import Branch, NormFactory, OneNorm, PerSublayer, Residual, Site

State = tuple[Tensor, Tensor]
GATE_GRADIENT = 0.01


class LayerState(PerSublayer):
    """A stack that carries beside the stream what a layer shares."""

    def enter(self, x: Tensor) -> State:
        return x, x

    def exit(self, state: State) -> Tensor:
        normed: Tensor = self.final_norm(state[0])
        return normed


class BottomToTop(OneNorm):
    """norm(x + F(x)), and norm(x + entry + F(x)) at the end of a layer, entry being what the layer
    began with; nothing after the last layer, whose own norm is the last.

    The entry goes around all norms of the layer but the last. A layer of one branch has nothing to
    go around, and is post-norm. B2T connection, Takase et al. 2022 (2206.00330), figure 2.
    """

    def forward(self, state: State, branch: Branch) -> State:
        x, entry = state
        if self.site.begins_layer:
            entry = x
        total = x + branch(x)
        if self.site.ends_layer and not self.site.begins_layer:
            total = total + entry
        return self.norm(total), entry

    @staticmethod
    def stream(state: State) -> Tensor:
        return state[0]


class Parallel(OneNorm):
    """x + F1(n) + F2(n) with n = norm(x), for the branches of a layer; one norm after the last
    layer.

    One norm for all branches of a layer, as in GPT-J, PaLM and Cohere. Wang and Komatsuzaki 2021
    (GPT-J-6B); Chowdhery et al. 2022 (2204.02311), section 2.
    """

    def __init__(self, norm: NormFactory, site: Site) -> None:
        super().__init__(norm, site)
        if not site.begins_layer:
            self.norm = nn.Identity()

    def forward(self, state: State, branch: Branch) -> State:
        x, entry = state
        if self.site.begins_layer:
            entry = self.norm(x)
        return x + branch(entry), entry

    @staticmethod
    def stream(state: State) -> Tensor:
        return state[0]


class ParallelNorms(OneNorm):
    """x + F1(norm1(x)) + F2(norm2(x)) for the branches of a layer; one norm after the last layer.

    A norm for each branch of a layer, as in GPT-NeoX (Black et al. 2022, 2204.06745, section 2.3).
    """

    def forward(self, state: State, branch: Branch) -> State:
        x, entry = state
        if self.site.begins_layer:
            entry = x
        return x + branch(self.norm(entry)), entry

    @staticmethod
    def stream(state: State) -> Tensor:
        return state[0]


class LayerNumber(Residual):
    """A connection with a number that its layer has once, 0 at the start."""

    def __init__(self, norm: NormFactory, site: Site) -> None:
        super().__init__(norm, site)
        self.number = nn.Parameter(torch.zeros(())) if site.begins_layer else None

    def reset_parameters(self) -> None:
        """The number is 0."""
        if self.number is not None:
            nn.init.zeros_(self.number)

    @staticmethod
    def stream(state: State) -> Tensor:
        return state[0]


class ReZero(LayerNumber):
    """x + alpha F(x), one alpha for each layer, 0 at the start; no norm anywhere.

    The stack starts as the identity, and at the first step only alpha moves. Bachlechner et al.
    2020 (2003.04887), equation 2 and section 4.
    """

    def forward(self, state: State, branch: Branch) -> State:
        x, shared = state
        alpha = shared if self.number is None else self.number
        return x + alpha * branch(x), alpha


class GPAS(LayerNumber):
    """h - silu(g) stop(h) with h = x + F(norm(x)), one gate g for each layer, 0 at the start; one
    norm after the last layer.

    stop(h) is h without its gradient: the gate scales the stream and leaves the gradient as it is.
    The gate's own gradient is clipped at 0.01. Chen et al. 2025 (2506.22049), equation 5.
    """

    def __init__(self, norm: NormFactory, site: Site) -> None:
        super().__init__(norm, site)
        self.norm = norm(site.kind, site.layer)

    def forward(self, state: State, branch: Branch) -> State:
        x, gate = state
        if self.number is not None:
            gate = _ClippedGradient.apply(self.number)  # type: ignore[no-untyped-call]
        total = x + branch(self.norm(x))
        return total - silu(gate) * total.detach(), gate


class _ClippedGradient(torch.autograd.Function):
    """x, whose gradient, the sum over all its uses, is clipped entry by entry."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clamp(-GATE_GRADIENT, GATE_GRADIENT)
