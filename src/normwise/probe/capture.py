"""The residual stream and its branches as tensors, for what an RMS does not tell."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from normwise.residual.base import Branch, Residual


@dataclass
class Capture:
    """One pass through a stack of S connections.

    Args:
        stream: S + 1 tensors (..., dim), from the entry on.
        branch: S tensors, each branch as it leaves its sublayer.
    """

    stream: list[Tensor] = field(default_factory=list)
    branch: list[Tensor] = field(default_factory=list)


@contextmanager
def capture(model: nn.Module) -> Iterator[Capture]:
    """Keeps the tensors of the pass that is made while it is open, detached.

        with capture(model) as seen:
            model(batch)
        seen.stream[-1]

    Of several passes the last one is kept.
    """
    seen = Capture()
    connections = [module for module in model.modules() if isinstance(module, Residual)]
    with ExitStack() as hooks:
        for index, connection in enumerate(connections):
            before = connection.register_forward_pre_hook(
                _before(seen, connection, first=not index)
            )
            after = connection.register_forward_hook(_after(seen, connection))
            hooks.callback(before.remove)
            hooks.callback(after.remove)
        yield seen


def _before(
    seen: Capture, connection: Residual, *, first: bool
) -> Callable[[nn.Module, tuple[Any, Branch]], tuple[Any, Branch]]:
    def hook(module: nn.Module, args: tuple[Any, Branch]) -> tuple[Any, Branch]:
        state, branch = args
        if first:
            seen.stream[:] = [connection.stream(state).detach()]
            seen.branch.clear()

        def kept(x: Tensor) -> Tensor:
            out = branch(x)
            seen.branch.append(out.detach())
            return out

        return state, kept

    return hook


def _after(seen: Capture, connection: Residual) -> Callable[[nn.Module, object, Any], None]:
    def hook(module: nn.Module, args: object, out: Any) -> None:
        seen.stream.append(connection.stream(out).detach())

    return hook


def angular_distance(x: Tensor, y: Tensor) -> float:
    """arccos(cos(x, y))/pi over the last axis, in [0, 1]; mean over all others. Gromov et al. 2024
    (2403.17887), equation 6.
    """
    cosine = cosine_similarity(x.double(), y.double(), dim=-1).clamp(-1.0, 1.0)
    return float(cosine.arccos().mean()) / math.pi
