"""What a module without children does, told by trying it and by its weights."""

import copy

import torch
from torch import Tensor, nn

from normwise.anatomy.norm_kind import NormKind, norm_kind, probe_rows

PLAIN = (int, float, str, tuple, torch.Size)
EVERY_MODULE_S = frozenset(vars(nn.Module()))  # attributes


def module_key(module: nn.Module, width: int) -> object:
    """Equal for modules that compute the same, but for their parameters: of one class, with one
    `forward`, the same numbers and parameters' names, and the very same functions.
    """
    numbers = sorted(
        (name, repr(value) if isinstance(value, PLAIN) else str(id(value)))
        for name, value in vars(module).items() if name not in EVERY_MODULE_S
    )  # fmt: skip
    own = tuple(name for name, _ in module.named_parameters(recurse=False))
    forward = getattr(module.forward, "__func__", module.forward)
    return type(module), forward, width, tuple(numbers), own


def norm_of(module: nn.Module, x: Tensor, y: Tensor) -> NormKind | None:
    """The norm that a leaf module is: a copy in fp32 is tried on rows of many sizes, since the
    model's own may be few, rounded to bf16, or so small that eps makes a factor of the norm. One
    that does not take them is told from its own rows.
    """
    matrices = any(p.ndim >= 2 for p in module.parameters(recurse=False))
    if x.shape != y.shape or not x.is_floating_point() or matrices:
        return None
    probe = probe_rows(x.shape[-1]).reshape(*[1] * (x.ndim - 2), -1, x.shape[-1])
    try:
        made = copy.deepcopy(module).cpu().float().forward(probe)
    except Exception:  # noqa: BLE001 - a module may refuse these rows in any way
        return norm_kind(x, y)
    return norm_kind(probe, made) if isinstance(made, Tensor) else norm_kind(x, y)


def module_kind(module: nn.Module, inputs: list[Tensor], outputs: list[Tensor]) -> str:
    """What a leaf module does, by its weights and its input."""
    matrices = [p for p in module.parameters(recurse=False) if p.ndim >= 2]
    looked_up = inputs and not inputs[0].is_floating_point()
    if matrices and (looked_up or isinstance(module, nn.Embedding)):
        return "embedding"
    if matrices:
        return "linear"
    same = inputs and outputs and inputs[0].shape == outputs[0].shape
    return "carry" if same and torch.equal(inputs[0], outputs[0]) else "other"
