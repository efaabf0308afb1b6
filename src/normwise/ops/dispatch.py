"""Which code runs a norm, and why.

There are two backends. `reference` is plain PyTorch and runs everywhere. `numba` is the compiled
kernels of `numba_cpu`, for eager calls on tensors in this machine's memory; a compiled graph gets
them as operators (`graph.py`). Under a transform or a tracer the reference runs, so that they see
operations which they know.

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

# Each is asked at every call of a norm, and a look-up through modules costs as much as the answer.
_transforms = torch._C._functorch.peek_interpreter_stack
_batched = torch._C._functorch.is_legacy_batchedtensor  # by a vectorized Jacobian
_modes = torch._C._len_torch_dispatch_stack
_included = torch._C._dispatch_tls_is_dispatch_key_included
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch  # by make_fx(pre_dispatch=True)
_tracing = torch._C._get_tracing_state

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
_DTYPE = Choice("reference", "a dtype that the kernels do not know")


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
    choice = _TRANSFORM if _watched() else _automatic(tensors, rounding, None, traced=False)
    _insist(asked, choice)
    return choice


def kernels(
    *tensors: Tensor | None, rounding: str, out_dtype: torch.dtype | None = None
) -> ModuleType | None:
    """The kernels if they run a call, or None if the reference does."""
    asked = _asked.get()
    if asked == "reference":
        return None
    choice = _TRANSFORM if _watched() else _automatic(tensors, rounding, out_dtype, traced=False)
    if asked == "numba":
        _insist(asked, choice)
    return _load()[0] if choice is _KERNELS else None


def operators(
    *tensors: Tensor | None, rounding: str, out_dtype: torch.dtype | None = None
) -> ModuleType | None:
    """The kernels as operators of a graph that is being compiled, or None for the reference."""
    asked = _asked.get()
    if asked == "reference":
        return None
    choice = _TRANSFORM
    if not in_transform():
        choice = _automatic(tensors, rounding, out_dtype, traced=True)
    if choice.backend != "numba":
        _insist(asked, choice)
        return None
    from normwise.ops import graph

    return graph


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether a kernel may read these tensors now: a backward pass may run under what its forward
    pass did not.
    """
    return not _watched() and _obstacle(tensors, traced=False) is None


def in_transform() -> bool:
    """Whether a transform of torch.func is under way, or forward-mode differentiation."""
    return _transforms() is not None or forward_ad._current_level >= 0


def _watched() -> bool:
    """Whether somebody needs to see torch's operations."""
    return bool(
        _transforms() is not None
        or forward_ad._current_level >= 0
        or _modes()
        or _included(_PRE_DISPATCH)
        or _tracing()
    )


def _automatic(
    tensors: tuple[Tensor | None, ...],
    rounding: str,
    out_dtype: torch.dtype | None,
    *,
    traced: bool,
) -> Choice:
    obstacle = _obstacle(tensors, traced=traced)
    if obstacle is not None:
        return obstacle
    if out_dtype is not None and out_dtype not in KERNEL_DTYPES:
        return _DTYPE
    return _NATIVE if rounding == "native" else _load()[1] or _KERNELS


def _obstacle(tensors: tuple[Tensor | None, ...], *, traced: bool) -> Choice | None:
    """Why the kernels cannot read these tensors. Those of a graph stand for ordinary ones."""
    for tensor in tensors:
        if tensor is None:
            continue
        if not tensor.is_cpu:
            return _ELSEWHERE
        if not traced and (
            type(tensor) not in _ORDINARY or tensor.layout != torch.strided or _batched(tensor)
        ):
            return _ELSEWHERE
        if tensor.dtype not in KERNEL_DTYPES:
            return _DTYPE
        if not tensor.numel():
            return _EMPTY
    return None


def _insist(asked: str, choice: Choice) -> None:
    if asked == "numba" and choice.backend != "numba":
        raise BackendUnavailable(
            f"The numba backend cannot run this call: {choice.reason}. "
            f'Use nw.backend("auto"), which would run the {choice.backend} here.'
        )


_ORDINARY = frozenset({Tensor, torch.nn.Parameter, torch.nn.Buffer})


@cache
def _load() -> tuple[ModuleType | None, Choice | None]:
    """The kernels, or why there are none, which is said once."""
    try:
        from normwise.ops.numba_cpu import launch
    except (ImportError, OSError) as error:  # OSError: a shared library of llvmlite
        reason = f"Numba cannot be imported ({error})"
        warnings.warn(
            f"{reason}: normwise runs its norms in plain PyTorch, which takes several times as "
            f"long. Run: pip install numba",
            RuntimeWarning,
            stacklevel=2,
        )
        return None, Choice("reference", reason)
    return launch, None
