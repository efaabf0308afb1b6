"""Runs a benchmark, one process for each allocator setting, and keeps what is finished."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, cast

from normwise.bench.settings import BenchSettings, Case
from normwise.conditions import conditions
from normwise.errors import BenchFailed
from normwise.files import write_result

Result = dict[str, Any]

# Without mmap for large blocks and without trimming, glibc gives no memory back to the system, so
# that a tensor finds its pages mapped. With hugetlb=1 it asks for pages of 2 MiB, of which a new
# tensor needs few. Other systems ignore the names.
ENVIRONMENT = {
    "reused": {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
        "MALLOC_TOP_PAD_": str(64 << 20),
    },
    "default": {},
    "huge": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
}


def run_bench(
    settings: BenchSettings,
    out: Path,
    finished: Callable[[Case, int], None] = lambda case, done: None,
) -> Result:
    """Measures every case and writes the result file; what was measured survives an interruption.

    Args:
        settings: the cases.
        out: the result file. Until all cases are measured they are in OUT.part, from which the
            same call goes on.
        finished: told of each case that is measured, and how many are.

    Raises:
        BenchFailed: a process ended before its cases were measured.
        StoreError: the result cannot be written.
    """
    part = out.with_name(f"{out.name}.part")
    result = _begin(settings, part)
    done = [Case(**entry["case"]) for entry in result["cases"]]
    for memory in settings.memory:
        cases = [c for c in settings.cases() if c.memory == memory and c not in done]
        for entry in _measured(settings, memory, cases):
            result["cases"].append(entry)
            write_result(part, result)
            finished(Case(**entry["case"]), len(result["cases"]))
    write_result(out, result)
    part.unlink(missing_ok=True)
    return result


def _begin(settings: BenchSettings, part: Path) -> Result:
    """What an interrupted call of the same settings on the same versions has left, or a start."""
    result: Result = {
        "settings": settings.to_json(),
        "conditions": _conditions(),
        "cases": [],
    }
    if part.exists():
        left: Result = json.loads(part.read_text())
        same = left["settings"] == result["settings"]
        for key in result["conditions"].keys() - {"date"}:
            same &= left["conditions"].get(key) == result["conditions"][key]
        return left if same else result
    return result


def _conditions() -> dict[str, Any]:
    packages = {}
    for name in ("numba", "transformers"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    return {**conditions(), **packages}


def _measured(settings: BenchSettings, memory: str, cases: list[Case]) -> Iterator[Result]:
    task = {
        "threads": settings.threads,
        "repeats": settings.repeats,
        "cases": [asdict(case) for case in cases],
    }
    if not cases:
        return
    environment = {"OMP_NUM_THREADS": str(settings.threads), **ENVIRONMENT[memory]}
    with subprocess.Popen(
        [sys.executable, "-m", "normwise.bench.worker", json.dumps(task)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, **environment},
    ) as process:  # fmt: skip
        try:
            yield from map(json.loads, cast(IO[str], process.stdout))
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise BenchFailed(
            f"The measuring process must reach its end. It stopped with code "
            f"{process.returncode}; what it printed stands above. Measure fewer cases at a time."
        )
