"""What code that changes its own state must know of the pass that it runs in.

Activation checkpointing runs a forward pass once more inside the backward one, and a state that
moved in the first must not move again. A compiler fixes a Python answer when it traces, and may
copy in backward what forward has changed since, so a graph gets operators that it cannot open.
"""

import torch
from torch import Tensor

from normwise.ops import dispatch


def recomputing() -> bool:
    """Whether this runs inside a backward pass, in eager mode."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def transformed() -> bool:
    """Whether vmap, jacrev and the like run this; a compiler takes its own way."""
    return not torch.compiler.is_compiling() and dispatch.in_transform()


@torch.library.custom_op("normwise::in_backward", mutates_args=())
def in_backward(x: Tensor) -> Tensor:
    """Whether this runs inside a backward pass, as a graph asks; x gives the device."""
    return torch.tensor(torch._C._current_graph_task_id() != -1, device=x.device)


@in_backward.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty((), dtype=torch.bool)


@torch.library.custom_op("normwise::kept_copy", mutates_args=())
def kept_copy(x: Tensor) -> Tensor:
    """A copy that a graph keeps for its backward pass instead of making it anew there."""
    return x.clone()


@kept_copy.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def snapshot(x: Tensor) -> Tensor:
    """x as it is now, whatever is done to it later."""
    return kept_copy(x) if torch.compiler.is_compiling() else x.clone()
