"""Size of the residual stream by depth, for each placement, at initialisation.

A rule takes what is known of the stream over one connection. Most placements are a `Form`, and
`Moments` of the stream are all there is to know. Where a placement adds parts that are not
independent, the rule carries their mean product too, as a `Moments` of its own: the mean product of
entries of one token, and of two.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normwise.theory.forms import FORMS, POST, Form, Step
from normwise.theory.moments import Branch, Moments
from normwise.theory.scaling import admin_omega
from normwise.theory.stack import Stack


def connected(
    form: Form, x: Moments, branch: Branch, eps: float = 0.0
) -> tuple[Moments, Moments, Moments, Moments]:
    """Moments of what enters the branch, of what it gives, of the sum, and of the new stream."""
    normed = x.normed(eps) if form.norm_in else x
    entry = normed.scaled(form.entry**2)
    out = branch(entry)
    added = (out.normed(eps) if form.norm_branch else out).scaled(form.scale**2)
    total = (normed if form.normed_skip else x).scaled(form.skip**2) + added
    return entry, out, total, total.normed(eps) if form.norm_out else total


@dataclass(frozen=True)
class Layered:
    """The stream, what its layer began with, and their mean product."""

    x: Moments
    entry: Moments
    product: Moments


def _b2t(state: Layered, branch: Branch, at: Step) -> Layered:
    if at.position == 0:
        state = Layered(state.x, entry=state.x, product=state.x)
    total, product = state.x + branch(state.x), state.product
    if at.feeds_forward and at.stack.branches > 1:
        total = total + state.entry + product.scaled(2.0)
        product = product + state.entry
    shrink = (total.square + at.eps) ** -0.5
    return Layered(total.scaled(shrink**2), state.entry, product.scaled(shrink))


def _parallel(state: Layered, branch: Branch, at: Step) -> Layered:
    entry = state.x if at.position == 0 else state.entry
    return Layered(state.x + branch(entry.normed(at.eps)), entry, entry)


@dataclass(frozen=True)
class Profiled:
    """Admin's stream, the square of the factor on its skip, and the post-norm stream that the
    factors are profiled on.
    """

    x: Moments
    omega_square: float
    post: Moments


def _admin(state: Profiled, branch: Branch, at: Step) -> Profiled:
    omega_square, growth = state.omega_square, at.constant("growth", "profiled")
    if growth != "profiled":
        omega_square = admin_omega(growth, at.stack) ** 2
    x = (state.x.scaled(omega_square) + branch(state.x)).normed(at.eps)
    added = branch(state.post).square
    following = omega_square * state.post.square + added
    return Profiled(x, following, connected(POST, state.post, branch, at.eps)[-1])


@dataclass(frozen=True)
class Twins:
    """Two streams and their mean product."""

    x: Moments
    y: Moments
    product: Moments


def _siamese_norm(state: Twins, branch: Branch, at: Step) -> Twins:
    shrink = (state.y.square + at.eps) ** -0.5
    entry = state.x + state.y.normed(at.eps) + state.product.scaled(2.0 * shrink)
    out = branch(entry)
    total = state.x + out
    shrink = (total.square + at.eps) ** -0.5
    return Twins(total.scaled(shrink**2), state.y + out, (state.product + out).scaled(shrink))


def _siamese_norm_scaled(state: Twins, branch: Branch, at: Step) -> Twins:
    x = state.x.normed(at.eps)
    product = state.product.scaled((state.x.square + at.eps) ** -0.5)
    shrink = (state.y.square + at.eps) ** -0.5
    entry = x + state.y.normed(at.eps) + product.scaled(2.0 * shrink)
    out, scale = branch(entry.normed(at.eps)), (2.0 * (at.layer + 1)) ** -0.5
    return Twins(x + out.scaled(scale**2), state.y + out, product + out.scaled(scale))


def _attention_residuals(
    state: tuple[Moments, ...], branch: Branch, at: Step
) -> tuple[Moments, ...]:
    """All outputs so far, with equal shares at the start."""
    return (*state, branch(_mean(state).normed(at.eps)))


def _mean(values: tuple[Moments, ...]) -> Moments:
    total = sum(values[1:], start=values[0])
    return total.scaled(1.0 / len(values) ** 2)


def _itself(x: Any) -> Any:
    return x


@dataclass(frozen=True)
class Rule:
    """How a placement's stream grows.

    Args:
        step: over one connection.
        enter: what is known at the entry.
        stream: the stream in what is known.
    """

    step: Callable[[Any, Branch, Step], Any]
    enter: Callable[[Moments], Any] = _itself
    stream: Callable[[Any], Moments] = _itself


def _layered(step: Callable[[Layered, Branch, Step], Layered]) -> Rule:
    return Rule(step, lambda x: Layered(x, x, x), lambda state: state.x)


def _twins(step: Callable[[Twins, Branch, Step], Twins]) -> Rule:
    return Rule(step, lambda x: Twins(x, x, x), lambda state: state.y)


def _formed(form: Callable[[Step], Form]) -> Rule:
    return Rule(lambda x, branch, at: connected(form(at), x, branch, at.eps)[-1])


RULES: dict[str, Rule] = {name: _formed(form) for name, form in FORMS.items()} | {
    "b2t": _layered(_b2t),
    "resi_dual": _formed(FORMS["post_norm"]),
    "admin": Rule(_admin, lambda x: Profiled(x, 1.0, x), lambda state: state.x),
    "parallel": _layered(_parallel),
    "parallel_norms": _layered(_parallel),
    "siamese_norm": _twins(_siamese_norm),
    "siamese_norm_scaled": _twins(_siamese_norm_scaled),
    "attention_residuals": Rule(_attention_residuals, lambda x: (x,), _mean),
}


def stream_moments(
    placement: str,
    entry: Moments,
    branches: Sequence[Branch],
    stack: Stack,
    *,
    eps: float = 0.0,
    constants: Mapping[str, Any] | None = None,
) -> list[Moments]:
    """Moments of the stream at entry and after each branch, `len(branches) + 1` of them.

    Args:
        placement: a row of `RULES`, the full name of a placement.
        entry: moments of what enters the stack.
        branches: the residual branches in order, as many as the stack has.
        stack: depth and branches.
        eps: of the norms.
        constants: of the placement, where they are not its own.
    """
    rule = RULES[placement]
    state = rule.enter(entry)
    profile = [entry]
    for index, branch in enumerate(branches):
        state = rule.step(state, branch, Step(stack, index, eps, constants or {}))
        profile.append(rule.stream(state))
    return profile


def plain_growth(placement: str, branch_variance: float, layers: int) -> float:
    """Stream variance after branches of one fixed variance on independent unit tokens.

    The textbook numbers: pre-norm 1 + n v, post-norm and DeepNorm 1, peri-norm 1 + n.
    """
    fixed = [lambda entry: Moments(branch_variance, 0.0)] * layers
    stack = Stack(layers, branches=1)
    return stream_moments(placement, Moments(1.0, 0.0), fixed, stack)[-1].square
