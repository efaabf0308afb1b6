"""Times one case: all peers in turns in one process, with their errors beside."""

import random
import time
from collections.abc import Callable, Hashable
from dataclasses import asdict
from statistics import quantiles
from typing import Any, TypeVar

import torch
from torch import Tensor

from normwise.bench.cases import TORCH_DTYPES, Tensors, Truth, tensors_of, truth_of
from normwise.bench.kernels import kernels_alone
from normwise.bench.peers import PEERS, Op
from normwise.bench.settings import Case
from normwise.ops.dispatch import which_backend

Run = TypeVar("Run", bound=Hashable)
SAMPLE = 2e-4  # seconds that one sample lasts at least, so that the clock's own time is nothing
IN_A_ROW = 5  # calls of a sample at least, after one that is not timed: caches are the peer's own
ORDER = 0  # seed of the order within each turn


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """The case, and for each peer its times in seconds and its errors.

    Forward alone is timed without gradients, then forward and backward together. `clone` copies the
    input once and is the limit of a forward pass; the kernel alone writes into memory that it was
    given.
    """
    torch.compiler.reset()
    tensors = tensors_of(case)
    truth = truth_of(case, tensors)
    ops = {name: op for name, make in PEERS.items() if (op := make(case.op, tensors)) is not None}
    errors = {name: errors_of(case, op, tensors, truth) for name, op in ops.items()}
    forward = {name: _without_gradients(op) for name, op in ops.items()}
    x = tensors.x.detach()
    forward["clone"] = x.clone
    both = {name: with_gradients(case, op, tensors) for name, op in ops.items()}
    alone = kernels_alone(case.op, tensors)
    if alone is not None:
        forward["kernel alone"] = alone[0]
        both["kernel alone"] = lambda: (alone[0](), alone[1]())
    times = {"forward": take_turns(forward, repeats), "both": take_turns(both, repeats)}
    peers = [
        {"peer": name, "errors": errors.get(name), **{key: t.get(name) for key, t in times.items()}}
        for name in dict.fromkeys([*both, *forward])
    ]
    backend, reason = which_backend(*tensors.leaves(case.op))
    return {"case": asdict(case), "backend": backend, "reason": reason, "peers": peers}


def _without_gradients(op: Op) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return op()

    return run


def with_gradients(case: Case, op: Op, tensors: Tensors) -> Callable[[], object]:
    """Forward and backward of an op."""
    leaves, gradients = tensors.leaves(case.op), tensors.gradients(case.op)
    return lambda: torch.autograd.grad(op(), leaves, gradients)


def take_turns(runs: dict[Run, Callable[[], object]], repeats: int) -> dict[Run, dict[str, float]]:
    """Median and quartiles of the seconds of each; every turn has another order."""
    loops = {name: _loops(run) for name, run in runs.items()}
    seconds: dict[Run, list[float]] = {name: [] for name in runs}
    order = random.Random(ORDER)
    for _ in range(repeats):
        for name in order.sample(list(runs), len(runs)):
            seconds[name].append(_seconds(runs[name], loops[name]))
    return {name: _quartiles(samples) for name, samples in seconds.items()}


def _loops(run: Callable[[], object]) -> int:
    """How many calls make one sample; the first calls compile and warm up."""
    for _ in range(3):
        run()
    return max(IN_A_ROW, round(SAMPLE / _seconds(run, 1)))


def _seconds(run: Callable[[], object], loops: int) -> float:
    run()
    start = time.perf_counter()
    for _ in range(loops):
        run()
    return (time.perf_counter() - start) / loops


def _quartiles(samples: list[float]) -> dict[str, float]:
    if len(samples) == 1:
        return dict.fromkeys(("lower", "median", "upper"), samples[0])
    lower, median, upper = quantiles(samples, n=4, method="inclusive")
    return {"lower": lower, "median": median, "upper": upper}


def errors_of(case: Case, op: Op, tensors: Tensors, truth: Truth) -> dict[str, float]:
    """The largest error of each result.

    Of outputs and dx in units of the dtype's last place at max(1, |right|); of parameter gradients
    over the sum of the sizes of their terms.
    """
    outputs = op()
    dx, *rest = torch.autograd.grad(outputs, tensors.leaves(case.op), tensors.gradients(case.op))
    parameters = rest[-len(truth.parameters) :]
    dtype = TORCH_DTYPES[case.dtype]
    found = {
        "y": max(map(_ulps, outputs, truth.outputs, [dtype] * len(outputs))),
        "dx": _ulps(dx, truth.dx, dtype),
    }
    for name, got, right, size in zip(
        ("dw", "db"), parameters, truth.parameters, truth.sizes, strict=False
    ):
        found[name] = float(((got.double() - right).abs() / size).max())
    return found


def _ulps(got: Tensor, right: Tensor, dtype: torch.dtype) -> float:
    """The largest error in units in the last place."""
    mantissa, _ = torch.frexp(size := right.abs().clamp(min=1.0))
    place = torch.finfo(dtype).eps * size / (2 * mantissa)
    return float(((got.detach().double() - right).abs() / place).max())
