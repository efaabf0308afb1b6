"""Who is measured: each peer gives an op on the tensors of a case, or None where it has none."""

import importlib.util
import os
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from normwise.bench.cases import EPS, Tensors, uses
from normwise.ops import functional as ours

Outputs = tuple[Tensor, ...]
Op = Callable[[], Outputs]


def _torch(op: str, tensors: Tensors) -> Op:
    return partial(_composed, op, _torch_norm(op), *tensors.leaves(op))


def _compiled(op: str, tensors: Tensors) -> Op | None:
    """torch.compile of the same; it needs a C++ compiler."""
    if not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
        return None
    function = torch.compile(partial(_composed, op, _torch_norm(op)), dynamic=False)
    return partial(function, *tensors.leaves(op))


def _transformers(op: str, tensors: Tensors) -> Op | None:
    """Hugging Face's RMSNorm of Llama; it has no other norm."""
    if uses(op)[3] or importlib.util.find_spec("transformers") is None:
        return None
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    module: Any = LlamaRMSNorm(len(tensors.weight), EPS)
    del module.weight
    module.weight = tensors.weight
    return partial(_composed, op, lambda x, weight: module(x), *tensors.leaves(op))


def _normwise(op: str, tensors: Tensors) -> Op:
    return partial(_ours, op, *tensors.leaves(op))


PEERS: dict[str, Callable[[str, Tensors], Op | None]] = {
    "normwise": _normwise,
    "torch": _torch,
    "torch.compile": _compiled,
    "transformers": _transformers,
}


def _torch_norm(op: str) -> Callable[..., Tensor]:
    return _torch_layer_norm if uses(op)[3] else _torch_rms_norm


def _torch_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, tuple(weight.shape), weight, bias, EPS)


def _torch_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, tuple(weight.shape), weight, EPS)


def _composed(op: str, norm: Callable[..., Tensor], x: Tensor, *rest: Tensor) -> Outputs:
    """The forms with a residual, made of a norm and an addition."""
    if op.startswith("add"):
        stream = x + rest[0]
        return norm(stream, *rest[1:]), stream
    if op.endswith("add"):
        return (rest[0] + norm(x, *rest[1:]),)
    return (norm(x, *rest),)


def _ours(op: str, x: Tensor, *rest: Tensor) -> Outputs:
    residual = rest[:1] if "add" in op else ()
    weight, *bias = rest[len(residual) :]
    extra: dict[str, Any] = {"bias": bias[0]} if bias else {}
    result = getattr(ours, op)(x, *residual, tuple(weight.shape), weight, eps=EPS, **extra)
    return result if isinstance(result, tuple) else (result,)
