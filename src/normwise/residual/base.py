"""A placement is one object for a stack of layers; a connection is one x + F(x) in it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from normwise.theory.stack import Stack

Branch = Callable[[Tensor], Tensor]
NormFactory = Callable[[str, int], nn.Module]
"""Builds a fresh norm for a kind of place, "attention" or "final", and a layer counted from 0."""


@dataclass(frozen=True)
class Site:
    """Where a connection stands.

    Args:
        stack: the stack it belongs to.
        dim: width of the stream.
        index: the connection, counted from 0.
    """

    stack: Stack
    dim: int
    index: int

    @property
    def layer(self) -> int:
        """The layer, counted from 0."""
        return self.index // self.stack.branches

    @property
    def kind(self) -> str:
        """What its branch is: "attention", "cross_attention" or "feed_forward"."""
        return self.stack.kinds[self.index % self.stack.branches]

    @property
    def begins_layer(self) -> bool:
        return self.index % self.stack.branches == 0

    @property
    def ends_layer(self) -> bool:
        return (self.index + 1) % self.stack.branches == 0


class Residual(nn.Module, ABC):
    """One residual connection: takes the state of the stream and a branch, gives the new state.

    The state is the stream (..., dim) itself, unless the placement carries more than that. A
    subclass makes its norms from `norm` and writes its formula in `forward`; its first docstring
    clause is the formula that `normwise list placements` shows. Its parameters, whatever their
    shape, are gains: they take no weight decay.
    """

    weight_decay_exempt = True

    def __init__(self, norm: NormFactory, site: Site) -> None:
        super().__init__()
        self.site = site

    @abstractmethod
    def forward(self, state: Any, branch: Branch) -> Any: ...

    @staticmethod
    def stream(state: Any) -> Tensor:
        """The residual stream in a state, (..., dim)."""
        return state  # type: ignore[no-any-return]

    def reset_parameters(self) -> None:
        """Its own parameters, norms aside, as they start."""


class OneNorm(Residual):
    """A connection with one norm."""

    def __init__(self, norm: NormFactory, site: Site) -> None:
        super().__init__(norm, site)
        self.norm = norm(site.kind, site.layer)


class Placement(nn.Module, ABC):
    """How a whole stack joins its branches to the stream.

    `state = enter(x)`, then `state = layer(state, attention, feed_forward, index)` for each layer,
    then `x = exit(state)`. What the state is, is the placement's own business.
    """

    @abstractmethod
    def enter(self, x: Tensor) -> Any: ...

    @abstractmethod
    def layer(
        self,
        state: Any,
        attention: Branch | None,
        feed_forward: Branch,
        index: int,
        *,
        cross_attention: Branch | None = None,
    ) -> Any: ...

    @abstractmethod
    def exit(self, state: Any) -> Tensor: ...


class PerSublayer(Placement):
    """A placement of one `Residual` for each branch, and perhaps a last norm.

    Args:
        connection: makes a connection from the norm factory and its site.
        norm: factory of the norms.
        stack: depth and branches.
        dim: width of the stream.
        final_norm: end with a norm of the stream.
    """

    def __init__(
        self,
        connection: Callable[[NormFactory, Site], Residual],
        norm: NormFactory,
        stack: Stack,
        dim: int,
        *,
        final_norm: bool,
    ) -> None:
        super().__init__()
        self.branches = stack.branches
        sites = [Site(stack, dim, index) for index in range(stack.sublayers)]
        self.connections = nn.ModuleList(connection(norm, site) for site in sites)
        self.final_norm = norm("final", stack.depth - 1) if final_norm else nn.Identity()

    def enter(self, x: Tensor) -> Any:
        return x

    def layer(
        self,
        state: Any,
        attention: Branch | None,
        feed_forward: Branch,
        index: int,
        *,
        cross_attention: Branch | None = None,
    ) -> Any:
        for offset, branch in enumerate(_present(attention, cross_attention, feed_forward)):
            state = self.connections[index * self.branches + offset](state, branch)
        return state

    def exit(self, state: Any) -> Tensor:
        normed: Tensor = self.final_norm(state)
        return normed


def _present(*branches: Branch | None) -> list[Branch]:
    return [branch for branch in branches if branch is not None]
