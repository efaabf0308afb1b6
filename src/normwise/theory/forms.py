"""Placements as one formula with constants:

    x' = norm_out(skip x + scale norm_branch(F(entry norm_in(x))))

What is said here of a connection is what growth and gradients are computed from.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from normwise.theory.scaling import (
    branch_share,
    deep_norm_alpha,
    depth_scale,
    keel_alpha,
    layer_scale_start,
    post_norm_layers,
)
from normwise.theory.stack import Stack


@dataclass(frozen=True)
class Step:
    """What one residual connection needs to know.

    Args:
        stack: the stack it is part of.
        index: the connection, counted from 0.
        eps: of its norm.
        constants: of the placement, where they are not its own.
    """

    stack: Stack
    index: int = 0
    eps: float = 0.0
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def layer(self) -> int:
        return self.index // self.stack.branches

    @property
    def position(self) -> int:
        """The branch within its layer, counted from 0."""
        return self.index % self.stack.branches

    @property
    def feeds_forward(self) -> bool:
        return self.position == self.stack.branches - 1

    def constant(self, name: str, own: Any) -> Any:
        """A constant of the placement, or its own value."""
        given = self.constants.get(name)
        return own if given is None else given


@dataclass(frozen=True)
class Form:
    """One connection at initialisation.

    Args:
        skip: factor on x.
        scale: factor on the branch.
        entry: factor on what enters the branch.
        norm_in: a norm before the branch.
        norm_branch: a norm after the branch.
        norm_out: a norm of the sum.
        normed_skip: the skip starts from the normed x.
    """

    skip: float = 1.0
    scale: float = 1.0
    entry: float = 1.0
    norm_in: bool = False
    norm_branch: bool = False
    norm_out: bool = False
    normed_skip: bool = False


PRE = Form(norm_in=True)
POST = Form(norm_out=True)
PERI = Form(norm_in=True, norm_branch=True)
SUM = Form()


def _deep_norm(at: Step) -> Form:
    return Form(skip=deep_norm_alpha(at.stack), norm_out=True)


def _depth_scaled_norm(at: Step) -> Form:
    return Form(entry=depth_scale(at.layer), norm_in=True)


def _layer_scale(at: Step) -> Form:
    return Form(scale=at.constant("start", layer_scale_start(at.stack)), norm_in=True)


def _keel(at: Step) -> Form:
    if at.index == 0:
        return PRE
    return Form(skip=at.constant("alpha", keel_alpha(at.stack)), norm_in=True, norm_out=True)


def _mix_norm(at: Step) -> Form:
    return POST if at.layer < post_norm_layers(at.constant("share", 0.25), at.stack) else PRE


def _hybrid_norm(at: Step) -> Form:
    return Form(norm_in=True, normed_skip=True) if at.feeds_forward else SUM


def _scaled_residual(at: Step) -> Form:
    share = at.constant("share", branch_share(at.stack))
    return Form(skip=(1.0 - share) ** 0.5, scale=share**0.5, norm_in=True)


FORMS: dict[str, Callable[[Step], Form]] = {
    "pre_norm": lambda at: PRE,
    "post_norm": lambda at: POST,
    "deep_norm": _deep_norm,
    "peri_norm": lambda at: PERI,
    "output_norm": lambda at: Form(norm_branch=True),
    "depth_scaled_norm": _depth_scaled_norm,
    "rezero": lambda at: Form(scale=0.0),
    "skip_init": lambda at: Form(scale=0.0),
    "t_fixup": lambda at: SUM,
    "layer_scale": _layer_scale,
    "keel": _keel,
    "mix_norm": _mix_norm,
    "sub_norm": lambda at: PRE,
    "norm_former": lambda at: PRE if at.feeds_forward else PERI,
    "norm_former_fairseq": lambda at: PRE if at.feeds_forward else PERI,
    "hybrid_norm": _hybrid_norm,
    "hybrid_norm_star": lambda at: PRE if at.layer == 0 else _hybrid_norm(at),
    "scaled_residual": _scaled_residual,
    "gpas": lambda at: PRE,
    "hyper_connections": lambda at: PRE,
}
