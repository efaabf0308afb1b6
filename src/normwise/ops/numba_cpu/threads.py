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
from typing import Any, NamedTuple

import torch

from normwise import LOADED_IN
from normwise.ops.numba_cpu.compiled import Kernel
from normwise.ops.numba_cpu.memory import LINE

_MAPS = Path("/proc/self/maps")


class Team(NamedTuple):
    """An OpenMP team: the function that runs work on it, and where a thread learns its number."""

    start: Callable[[int, int, int, int], None]
    thread_number: int


def run(kernel: Kernel, call: Any, *, threaded: bool) -> None:
    """Runs a call, a record of `calls.py`, to its end: in one thread or in as many as torch would
    use. For each thread there is a counter of the chunks taken of its share, on a line of its own;
    for one alone it is `taken`, the record's first field.
    """
    address = ctypes.addressof(call)
    call.done = 0
    threads = torch.get_num_threads() if threaded else 1
    if threads == 1 or os.getpid() != LOADED_IN:
        call.taken, call.threads, call.counters = 0, 1, address
        kernel.run(address)
        return
    counters = (ctypes.c_int64 * (threads * LINE // 8))()
    call.threads, call.counters = threads, ctypes.addressof(counters)
    call.arrived, call.thread_number = 0, 0
    if team := _team():
        call.thread_number = team.thread_number
        team.start(kernel.address, address, threads, 0)
    else:
        _run_on_pool(kernel, address, threads)


@cache
def _team() -> Team | None:
    """The team of the OpenMP library that torch has loaded, or None."""
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
    number = ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p).value
    return Team(start, number or 0)


def _run_on_pool(kernel: Kernel, address: int, threads: int) -> None:
    others = [_pool().submit(kernel.run, address) for _ in range(threads - 1)]
    kernel.run(address)
    for other in others:
        other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="normwise")
