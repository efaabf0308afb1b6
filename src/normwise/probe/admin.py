"""Admin's profiling: the factors on the skips, from one batch before training."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from normwise.errors import SettingError
from normwise.probe.stream import StreamRecorder
from normwise.residual.base import PerSublayer
from normwise.residual.learned import Admin


@torch.no_grad()
def profile_admin(model: nn.Module, *inputs: Any, **named: Any) -> list[float]:
    """Sets omega of every Admin connection from one forward pass, and gives the values.

    With all omega at 1 the pass measures the mean squares of the streams x_i that enter the
    connections and of the branches f_i. Then omega_1 = 1 and omega_(i+1)^2 = omega_i^2 Var[x_i] +
    Var[f_i]: the skip weighs as much as all branches before it. Liu et al. 2020 (2004.08249),
    section 4.2. The values are in the state dict; a checkpoint brings them back.

    Args:
        model: with placements `admin`.
        inputs: what `model` is called with, a batch like those it will be trained on.
        named: the same by keyword.

    Raises:
        SettingError: the model has no such placement.

    >>> model = nw.Transformer(nw.TransformerConfig(depth=2, placement="admin"), seed=0)
    >>> omegas = nw.profile_admin(model, torch.zeros(1, 8, dtype=torch.long))
    >>> len(omegas), omegas[0]
    (4, 1.0)
    """
    stacks = [m for m in model.modules() if isinstance(m, PerSublayer)]
    found = [stack for stack in stacks if isinstance(stack.connections[0], Admin)]
    if not found:
        raise SettingError(
            "profile_admin needs a model with the placement admin. This one has none."
        )
    for connection in _connections(*found):
        nn.init.ones_(connection.omega)
    with ExitStack() as open_recorders:
        recorders = [open_recorders.enter_context(StreamRecorder(stack)) for stack in found]
        model(*inputs, **named)
    for stack, recorder in zip(found, recorders, strict=True):
        profile = recorder.profile()
        square = 1.0
        for index, connection in enumerate(_connections(stack)):
            nn.init.constant_(connection.omega, square**0.5)
            square = square * profile.stream[index] ** 2 + profile.branch[index] ** 2
    return [connection.omega.flatten()[0].item() for connection in _connections(*found)]


def _connections(*stacks: PerSublayer) -> list[Admin]:
    return [c for stack in stacks for c in stack.connections if isinstance(c, Admin)]
