"""Tasks as processes of this machine, each with one torch thread.

One thread, because two threads beside a busy core made a training step 70 times slower (986 to
1470 ms instead of 13 on 2 cores, torch 2.13). One process a task, because Accelerate keeps its
precision and device for the whole process.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Protocol, TypeVar

from normwise.errors import NormwiseError

Key = TypeVar("Key", bound=Hashable)
Hears = TypeVar("Hears", contravariant=True)
Step = Callable[[int], object]
Task = Callable[[Step], Any]
"""What a process does: tells of its steps, counted from 1, and returns plain values. It travels to
the process, so it is a function of a module, or a `partial` of one."""

# glibc gives large blocks back to the system after every step and faults them in again at the
# next. With these settings a step of the default model took 188 ms instead of 212 (medians of 5
# interleaved runs, 2 cores of an AMD EPYC with AVX2, torch 2.13, 2026-11-30). Other systems ignore
# the names.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


class Watcher(Protocol[Hears]):
    """Whoever wants to know how the tasks go, each known by its key."""

    def step(self, key: Hears, done: int, /) -> None: ...
    def finished(self, key: Hears, result: Any, /) -> None: ...
    def failed(self, key: Hears, reason: str, /) -> None: ...


@dataclass
class _Worker(Generic[Key]):
    key: Key
    process: BaseProcess
    inbox: Connection
    ended: bool = False


def launch(
    tasks: Mapping[Key, Task], workers: int, watcher: Watcher[Key], preload: Sequence[str] = ()
) -> dict[Key, str]:
    """Runs all tasks, at most `workers` at a time, and returns why some have no result.

    A task that fails does not stop the others. When this process is interrupted the workers are
    ended with it. Modules to `preload` are imported once for all processes of the first call.
    """
    context = _start_method(preload)
    with _environment(ALLOCATOR):
        return _run_all(context, tasks, workers, watcher)


def _run_all(
    context: BaseContext, tasks: Mapping[Key, Task], workers: int, watcher: Watcher[Key]
) -> dict[Key, str]:
    waiting = list(reversed(list(tasks.items())))
    active: dict[Connection, _Worker[Key]] = {}
    failures: dict[Key, str] = {}
    try:
        while waiting or active:
            while waiting and len(active) < workers:
                worker = _start(context, *waiting.pop())
                active[worker.inbox] = worker
            ready = wait(list(active))
            for inbox in [inbox for inbox in active if inbox in ready]:
                if _receive(active[inbox], watcher, failures):
                    del active[inbox]
    finally:
        for worker in active.values():
            worker.process.terminate()
        for worker in active.values():
            worker.process.join()
    return failures


def _start(context: BaseContext, key: Key, task: Task) -> _Worker[Key]:
    inbox, outbox = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(task, outbox))  # type: ignore[attr-defined]
    process.start()
    outbox.close()
    return _Worker(key, process, inbox)


def _receive(worker: _Worker[Key], watcher: Watcher[Key], failures: dict[Key, str]) -> bool:
    """Takes one message; True once the worker has ended."""
    try:
        kind, content = worker.inbox.recv()
    except (EOFError, OSError):  # the end, or the end in the middle of a message
        worker.process.join()
        if not worker.ended:
            code = worker.process.exitcode
            _fail(worker, watcher, failures, f"its process ended with code {code} and no word")
        return True
    if kind == "step":
        watcher.step(worker.key, content)
    elif kind == "finished":
        worker.ended = True
        watcher.finished(worker.key, content)
    else:
        _fail(worker, watcher, failures, content)
    return False


def _fail(
    worker: _Worker[Key], watcher: Watcher[Key], failures: dict[Key, str], reason: str
) -> None:
    worker.ended = True
    failures[worker.key] = reason
    watcher.failed(worker.key, reason)


def _work(task: Task, outbox: Connection) -> None:
    """A worker's whole life: do the task, say what came of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends us
    import torch

    torch.set_num_threads(1)
    try:
        result = task(lambda step: _send(outbox, "step", step))
    except Exception as error:  # noqa: BLE001 - whatever a task dies of, the others go on
        _send(outbox, "failed", _reason(error))
    else:
        _send(outbox, "finished", result)


def _send(outbox: Connection, kind: str, content: Any) -> None:
    try:
        outbox.send((kind, content))
    except BrokenPipeError:
        os._exit(1)  # the parent is gone, and nobody waits for this task


def _reason(error: Exception) -> str:
    """One line for an error that is the user's to mend, the whole traceback for any other."""
    if isinstance(error, NormwiseError | OSError):
        return f"{error}"
    return traceback.format_exc()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables that processes started meanwhile find, unless the user has set them."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _start_method(preload: Sequence[str]) -> BaseContext:
    """A forkserver that has torch loaded saves 5 s a run; elsewhere every worker starts afresh.

    Of these, 2 s are `torch._dynamo`, which torch imports when the first optimizer is made.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["normwise.lab.train", "torch._dynamo", *preload])
    return context
