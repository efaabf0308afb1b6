"""A placement is one object for a stack of layers; a connection is one x + F(x) in it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Branch = Callable[[Tensor], Tensor]
NormFactory = Callable[[], nn.Module]


class Residual(nn.Module, ABC):
    """One residual connection: takes the stream (..., dim) and a branch, gives the new stream.

    A subclass makes its norms from `norm`, a factory that builds a fresh one at each call, and
    writes its formula in `forward`. `sublayers` is the number of connections in the stack, for
    constants that depend on depth; `index` counts them from 0.
    """

    def __init__(self, norm: NormFactory, sublayers: int, index: int) -> None:
        super().__init__()
        self.sublayers = sublayers
        self.index = index

    @abstractmethod
    def forward(self, x: Tensor, branch: Branch) -> Tensor: ...


class Placement(nn.Module, ABC):
    """How a whole stack joins its branches to the stream.

    `state = enter(x)`, then `state = layer(state, attention, feed_forward, index)` for each layer,
    then `x = exit(state)`. What the state is, is the placement's own business.
    """

    @abstractmethod
    def enter(self, x: Tensor) -> Any: ...

    @abstractmethod
    def layer(
        self, state: Any, attention: Branch | None, feed_forward: Branch, index: int
    ) -> Any: ...

    @abstractmethod
    def exit(self, state: Any) -> Tensor: ...


class PerSublayer(Placement):
    """A placement that treats every branch alike: one `Residual` each, and perhaps a last norm.

    Args:
        connection: the class of the connections.
        norm: factory of the norms.
        depth: number of layers.
        branches: residual branches in a layer, 2 with attention and 1 without.
        final_norm: end with a norm of the stream.
    """

    def __init__(
        self,
        connection: type[Residual],
        norm: NormFactory,
        depth: int,
        branches: int,
        *,
        final_norm: bool,
    ) -> None:
        super().__init__()
        self.branches = branches
        sublayers = depth * branches
        self.connections = nn.ModuleList(connection(norm, sublayers, s) for s in range(sublayers))
        self.final_norm = norm() if final_norm else nn.Identity()

    def enter(self, x: Tensor) -> Tensor:
        return x

    def layer(
        self, state: Tensor, attention: Branch | None, feed_forward: Branch, index: int
    ) -> Tensor:
        for offset, branch in enumerate(_present(attention, feed_forward)):
            state = self.connections[index * self.branches + offset](state, branch)
        return state

    def exit(self, state: Tensor) -> Tensor:
        normed: Tensor = self.final_norm(state)
        return normed


def _present(*branches: Branch | None) -> list[Branch]:
    return [branch for branch in branches if branch is not None]
