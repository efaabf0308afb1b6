"""One forward pass of a batch, and a loss for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normwise.anatomy.leaves import leaf, leaves
from normwise.errors import SettingError
from normwise.probe.points import token_ids

LossFunction = Callable[[Any, Any], Tensor]


@dataclass
class Pass:
    """One forward pass of the batch and its loss."""

    model: nn.Module
    call: tuple[tuple[Any, ...], Mapping[str, Any]]
    batch: Any
    loss_fn: LossFunction | None
    projected: bool = False  # the loss is a random projection, and none of the user's

    def __call__(self) -> tuple[Tensor, Any]:
        torch.clear_autocast_cache()  # or a second pass has the weights of the first
        args, options = self.call
        out = self.model(*args, **options)
        return self._loss(out), out

    def _loss(self, out: Any) -> Tensor:
        if self.loss_fn is not None:
            return self.loss_fn(out, self.batch)
        own = leaf(out, ("loss",)) if not isinstance(out, Tensor) else None
        if isinstance(own, Tensor):
            return own
        logits = out if isinstance(out, Tensor) else leaf(out, ("logits",))
        ids = token_ids(*self.call)
        if isinstance(logits, Tensor) and ids is not None and _is_of_next_token(logits, ids):
            return F.cross_entropy(
                logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten().long()
            )
        self.projected = True
        return _projection(out)


def _is_of_next_token(logits: Tensor, ids: Tensor) -> bool:
    return (
        logits.ndim == 3
        and logits.shape[:2] == ids.shape
        and ids.shape[1] > 1
        and int(ids.max()) < logits.shape[-1]
    )


def _projection(out: Any) -> Tensor:
    """A random linear function of the last hidden state, or of the first floats there are."""
    floats = [tensor for _, tensor in leaves(out) if tensor.is_floating_point()]
    if not floats:
        raise SettingError(
            "A gradient needs an output of floats. The model gave none. Pass loss_fn."
        )
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(floats[0].shape, generator=generator).to(floats[0].device)
    loss: Tensor = (floats[0].float() * direction).sum() / direction.numel() ** 0.5
    return loss
