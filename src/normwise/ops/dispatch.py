"""Which code runs a norm, and why.

There are two backends. `reference` is plain PyTorch and runs everywhere. `numba` is the compiled
kernels of `numba_cpu`, for eager calls on tensors in this machine's memory. Under a transform, a
tracer or a compiler the reference runs, so that they see operations which they know.

A choice that was asked for by name and cannot be met is an error; nothing is switched in silence.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from normwise.errors import BackendUnavailable
from normwise.table import Table

BACKENDS = Table(
    "backend",
    {
        "auto": "the kernels where they can run, else the reference",
        "numba": "compiled CPU kernels; an error where they cannot run",
        "reference": "plain PyTorch",
    },
)

KERNEL_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.float64})

_asked: ContextVar[str] = ContextVar("normwise backend", default="auto")


class Choice(NamedTuple):
    """A backend, and why it was chosen."""

    backend: str
    reason: str


_KERNELS = Choice("numba", "eager call on CPU tensors")
_ASKED = Choice("reference", "asked for by nw.backend")
_NATIVE = Choice("reference", "native rounding is by definition what torch's own operations do")
_EMPTY = Choice("reference", "there is nothing to compute")
_TRANSFORM = Choice("reference", "a transform needs operations that it can differentiate or trace")
_ELSEWHERE = Choice("reference", "a tensor is not an ordinary one in this machine's memory")
_DTYPE = Choice("reference", "a dtype that the kernels do not read")


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Within this context every norm runs on one backend, a row of `normwise list backends`.

    Errors: `UnknownName`, and `BackendUnavailable` at the first call that "numba" cannot run.

    >>> with nw.backend("reference"):
    ...     nw.rms_norm(torch.tensor([3.0, 4.0]), 2, eps=0.0)
    tensor([0.8485, 1.1314])
    """
    token = _asked.set(BACKENDS.resolve(name))
    try:
        yield
    finally:
        _asked.reset(token)


def which_backend(*tensors: Tensor | None, rounding: str = "fp32") -> Choice:
    """The backend that a norm of these tensors would run on now, and the reason.

    >>> nw.which_backend(torch.zeros(2, 4)).backend
    'numba'
    """
    asked = _asked.get()
    if asked == "reference":
        return _ASKED
    choice = _automatic(tensors, rounding)
    if asked == "numba" and choice.backend != "numba":
        raise BackendUnavailable(
            f"The numba backend cannot run this call: {choice.reason}. "
            f'Use nw.backend("auto"), which would run the {choice.backend} here.'
        )
    return choice


def kernels(*tensors: Tensor | None, rounding: str) -> ModuleType | None:
    """The kernels if they run a call, or None if the reference does."""
    if _asked.get() == "auto":
        choice = _automatic(tensors, rounding)
    else:
        choice = which_backend(*tensors, rounding=rounding)
    return _load()[0] if choice.backend == "numba" else None


def operators() -> ModuleType | None:
    """The kernels as operators for a graph that is being compiled, or None for the reference."""
    if _asked.get() == "reference" or _load()[0] is None:
        return None
    from normwise.ops import graph

    return graph


def operator_fits(tensors: tuple[Tensor | None, ...], rounding: str) -> bool:
    """Whether the operators run a call of a compiled graph, as far as its tensors say."""
    if rounding == "native":
        return False
    for tensor in tensors:
        if tensor is not None and not (tensor.is_cpu and tensor.dtype in KERNEL_DTYPES):
            return False
    return True


def in_transform() -> bool:
    """Whether a transform of torch.func is under way, or forward-mode differentiation."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    )


def _automatic(tensors: tuple[Tensor | None, ...], rounding: str) -> Choice:
    if in_transform() or torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state():
        return _TRANSFORM
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in _ORDINARY or not tensor.is_cpu or tensor.layout != torch.strided:
            return _ELSEWHERE
        if tensor.dtype not in KERNEL_DTYPES:
            return _DTYPE
        if not tensor.numel():
            return _EMPTY
    if rounding == "native":
        return _NATIVE
    missing = _load()[1]
    return missing or _KERNELS


_ORDINARY = frozenset({Tensor, torch.nn.Parameter, torch.nn.Buffer})


@cache
def _load() -> tuple[ModuleType | None, Choice | None]:
    """The kernels, or why there are none, which is said once."""
    try:
        from normwise.ops.numba_cpu import launch
    except ImportError as error:
        reason = f"Numba cannot be imported ({error})"
        warnings.warn(
            f"{reason}: normwise runs its norms in plain PyTorch, which takes several times as "
            f"long. Run: pip install numba",
            RuntimeWarning,
            stacklevel=2,
        )
        return None, Choice("reference", reason)
    return launch, None
