"""Compiles kernels when they are first needed, and keeps them on disk for the next process."""

import ctypes
import warnings
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from pickle import UnpicklingError
from types import ModuleType
from typing import Any, NamedTuple

import torch
from numba import types
from numba.core.caching import FunctionCache, NullCache
from numba.core.ccallback import CFunc

from normwise.ops.forms import Form
from normwise.ops.numba_cpu import layer_norm, rms_norm
from normwise.ops.numba_cpu.backward import backward_kernel
from normwise.ops.numba_cpu.forward import forward_kernel
from normwise.ops.numba_cpu.memory import STORAGE

NORMS: dict[str, ModuleType] = {"layer_norm": layer_norm, "rms_norm": rms_norm}

_SOURCES = sha256(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()


class Kernel(NamedTuple):
    """Machine code: its address, and the function that calls it with the address of a call.

    The call releases Python's global lock.
    """

    address: int
    run: Callable[[int], None]


class Source(NamedTuple):
    """What a backward kernel starts from."""

    is_sum: bool
    has_dstream: bool


@cache
def forward(norm: str, form: Form, dtypes: tuple[torch.dtype, ...]) -> Kernel:
    """The forward kernel for the dtypes of x, residual, y, stream and arithmetic."""
    body = forward_kernel(NORMS[norm], form, *_stored(dtypes))
    return _compile(body, f"{norm}_forward_{form.name}", dtypes)


@cache
def backward(norm: str, source: Source, dtypes: tuple[torch.dtype, ...]) -> Kernel:
    """The backward kernel for the dtypes of x, residual, dy, dstream, dx, n and arithmetic."""
    body = backward_kernel(NORMS[norm], source, *_stored(dtypes))
    return _compile(body, f"{norm}_backward_{source.is_sum}_{source.has_dstream}", dtypes)


def _stored(dtypes: tuple[torch.dtype, ...]) -> list[Any]:
    return [STORAGE[dtype] for dtype in dtypes]


class _Cache(FunctionCache):
    """Numba's cache of machine code on disk, with two differences.

    Its key holds the text of every file of this folder: numba looks only at the file in which a
    kernel is written, and would go on using old code when a formula changes in another. And a
    folder that is full or holds a damaged file costs the time to compile again, not the call.
    """

    def _index_key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        return signature, codegen.magic_tuple(), _SOURCES

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(signature, target_context)
        except (EOFError, UnpicklingError):
            self.flush()
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        try:
            super().save_overload(signature, data)
        except OSError as error:
            _warn_of_no_cache(str(error.strerror))

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            _warn_of_no_cache(str(error.strerror))


def _compile(body: Any, name: str, dtypes: tuple[torch.dtype, ...]) -> Kernel:
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    body.__qualname__ = body.__name__ = "_".join([name, *names])
    options = {"nopython": True, "error_model": "numpy"}
    function: Any = CFunc(body, ((types.int64,), types.void), {}, options)
    function._cache = _cache_of(body)
    function.compile()
    return Kernel(function.address, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function.address))


def _cache_of(body: Any) -> Any:
    try:
        return _Cache(body)
    except RuntimeError:  # numba found no folder that it may write
        _warn_of_no_cache("Numba found no folder to write to")
        return NullCache()


@cache
def _warn_of_no_cache(reason: str) -> None:
    warnings.warn(
        f"normwise cannot keep its compiled kernels: {reason}. It makes them anew in each process, "
        f"which takes some seconds. Set NUMBA_CACHE_DIR to a folder that can be written.",
        RuntimeWarning,
        stacklevel=2,
    )
