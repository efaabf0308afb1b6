"""Runs a kernel on torch's own threads.

Torch's OpenMP team is awake between operations; a call of it costs 2 us here where a pool of our
own cost 25, and 50 behind a matrix product, whose waiting threads it has to push aside (2 cores,
2026-11-30). Where torch has no such team, a pool serves. After a fork neither survives in the
child: it works in one thread.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch

from normwise import LOADED_IN
from normwise.ops.numba_cpu.compiled import Kernel

_MAPS = Path("/proc/self/maps")


def run(kernel: Kernel, call: ctypes.Structure, *, threaded: bool) -> None:
    """Runs a call to its end, in one thread or in as many as torch would use."""
    address = ctypes.addressof(call)
    threads = torch.get_num_threads() if threaded else 1
    if threads == 1 or os.getpid() != LOADED_IN:
        kernel.run(address)
    elif team := _team():
        team(kernel.address, address, threads, 0)
    else:
        _run_on_pool(kernel, address, threads)


@cache
def _team() -> Callable[[int, int, int, int], None] | None:
    """GOMP_parallel of the OpenMP library that torch has loaded, or None."""
    if not sys.platform.startswith("linux") or not torch.backends.openmp.is_available():
        return None
    loaded = [Path(line.split(maxsplit=5)[-1]) for line in _MAPS.read_text().splitlines()]
    teams = [path for path in loaded if path.name.startswith(("libgomp", "libiomp5", "libomp"))]
    if not teams:
        return None
    own = Path(torch.__file__).parents[1]
    library = ctypes.CDLL(str(max(teams, key=lambda path: path.is_relative_to(own))))
    start: ctypes._NamedFuncPointer | None = getattr(library, "GOMP_parallel", None)
    if start is None:
        return None
    start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    start.restype = None
    return start


def _run_on_pool(kernel: Kernel, address: int, threads: int) -> None:
    others = [_pool().submit(kernel.run, address) for _ in range(threads - 1)]
    kernel.run(address)
    for other in others:
        other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="normwise")
