"""Large results: in memory that is given, and past the caches with whoever reads them behind.

    python benchmarks/large_results.py [--turns 15] [--out FILE]

Both ways of a call in turns, in random order, two calls a sample. A ratio is the median over turns
of the second way's time to the first's: results in given memory to new ones, past the caches to in
them. Run it under the allocator settings of docs/tour.md, and without them.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu

import normwise as nw
from normwise.conditions import conditions
from normwise.ops.numba_cpu import launch

SHAPES = [(1024, 768), (2048, 768), (4096, 768), (8192, 768), (4096, 4096)]
OWN = dict(launch._BEYOND_CACHES)
IN_CACHES, PAST = (dict.fromkeys(OWN, size) for size in (1 << 60, 0))
Way = tuple[dict[launch.Use, int], Callable[[], object]]  # the limits, and what is called


def main() -> None:
    """Measures, prints, and writes the result where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for shape in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            for name, ways in cases(shape, dtype).items():
                found = in_turn(ways, options.turns)
                rows.append({"case": name, "shape": shape, "dtype": str(dtype)[6:], **found})
                print(f"{dtype} {shape} {name:32} {found['ms']:8.3f} ms {found['ratio']:6.3f}")
    if options.out is not None:
        options.out.write_text(json.dumps({"rows": rows, "conditions": conditions()}, indent=1))


def cases(shape: tuple[int, int], dtype: torch.dtype) -> dict[str, list[Way]]:
    """For each case the two ways."""
    x, residual, dy = (torch.randn(shape).to(dtype).requires_grad_(k < 2) for k in range(3))
    weight = torch.ones(shape[1], dtype=dtype, requires_grad=True)
    place = torch.empty(shape, dtype=dtype)
    norm = partial(nw.rms_norm, x, shape[1], weight)
    add = partial(nw.add_rms_norm, x, residual, shape[1], weight)

    def read(normed: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        return gelu(normed), stream

    def gradients(outputs: Callable[[], Any], leaves: list[Tensor]) -> object:
        found = outputs()
        found = found if isinstance(found, tuple) else (found,)
        return torch.autograd.grad(found, leaves, [dy] * len(found))

    calls: dict[str, Callable[[], object]] = {
        "norm, gelu": torch.no_grad()(lambda: gelu(norm())),
        "add norm, gelu": torch.no_grad()(lambda: read(*add())),
        "norm, gelu, backward": partial(gradients, lambda: gelu(norm()), [x, weight]),
        "add norm, gelu, backward": partial(gradients, lambda: read(*add()), [x, residual, weight]),
    }
    given: list[Way] = [
        (OWN, torch.no_grad()(norm)),
        (OWN, torch.no_grad()(partial(norm, out=place))),
    ]
    past = {name: [(IN_CACHES, run), (PAST, run)] for name, run in calls.items()}
    return {"given: norm": given, **{f"past: {name}": ways for name, ways in past.items()}}


def in_turn(ways: list[Way], turns: int) -> dict[str, float]:
    """Milliseconds of the first way, and the second's share of it. Calls are planned anew under
    each way's limits, in a call that is not timed.
    """
    seconds: list[list[float]] = [[], []]
    for turn in range(turns + 2):
        for k in random.sample((0, 1), 2):
            limits, run = ways[k]
            launch._BEYOND_CACHES.update(limits)
            launch._plan_forward.cache_clear()
            launch._plan_backward.cache_clear()
            run()
            started = time.perf_counter()
            run()
            run()
            if turn < 2:
                continue
            seconds[k].append((time.perf_counter() - started) / 2)
    ratio = statistics.median(b / a for a, b in zip(*seconds, strict=True))
    return {"ms": 1e3 * statistics.median(seconds[0]), "ratio": ratio}


if __name__ == "__main__":
    main()
