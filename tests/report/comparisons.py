"""Comparisons made up for the tests of what is shown of them."""

import dataclasses
from pathlib import Path
from typing import Any

from normwise.lab.comparison import Comparison, compare_stored
from normwise.lab.plan import Failure, Plan
from normwise.lab.settings import RunSettings
from normwise.lab.store import Contents, Damaged, Record

DATA: dict[str, Any] = {
    "source": "a text", "sha256": "0123456789abcdef" * 4, "tokenizer": "bytes", "tokens": 466195,
    "vocab_size": 256, "unigram_loss": 3.25, "collision": 0.06,
}  # fmt: skip
CONDITIONS: dict[str, Any] = {
    "date": "2026-11-30T05:00:00+00:00", "machine": "x86_64", "system": "Linux",
    "processor": "x86_64, AVX2", "cores": 2, "threads": 1, "python": "3.11.7", "torch": "2.13.0",
    "normwise": "0.1.0",
}  # fmt: skip
BRANCHES = 24


def settings(placement: str = "pre_norm", seed: int = 0, **changes: Any) -> RunSettings:
    """A run of the demonstration, changed."""
    grid: dict[str, Any] = {
        "norm": "layer_norm", "placement": placement, "init": "xavier_packed", "lr": 1e-3,
        "warmup": 150, "optimizer": "adamw", "depth": 12, "seed": seed,
    }  # fmt: skip
    return RunSettings(**{**grid, **changes})


def record(
    placement: str, seed: int, loss: float | None, *, step: int = 41, **changes: Any
) -> Record:
    """A finished run as `train` writes it; without a loss it diverged at `step`."""
    run = settings(placement, seed, **changes)
    falling = [5.5 - 3 * (i / 100) ** 0.5 + seed / 10 for i in range(100)]
    return {
        "id": run.id,
        "settings": dataclasses.asdict(run),
        "validation_loss": loss,
        "diverged_at": None if loss is not None else step,
        "train_loss": falling if loss is not None else falling[: step - 1],
        "initial": {
            "stream": [float(i) for i in range(1, BRANCHES + 2)],
            "branch": [1.0] * BRANCHES,
            "stream_gradient": [None] + [1.5e-4] * BRANCHES,
            "branch_gradient": [1e-4] * BRANCHES,
        },
        "predicted_stream": [2.0 * i for i in range(1, BRANCHES + 2)],
        "parameters": 628_000,
        "tokens_per_second": 6100.0,
        "peak_memory_bytes": 400 * 2**20,
        "seconds": 50.0,
        "data": DATA,
        "conditions": CONDITIONS,
    }


RECORDS = [
    record("pre_norm", 0, 2.35), record("pre_norm", 1, 2.37),
    record("post_norm", 0, 3.25), record("post_norm", 1, 3.26),
    record("deep_norm", 0, None), record("deep_norm", 1, 2.2),
]  # fmt: skip


def comparison(
    records: list[Record] | None = None,
    *,
    data: dict[str, Any] | None = None,
    failures: list[Failure] | None = None,
    damaged: list[Damaged] | None = None,
    plan: Plan | None = None,
) -> Comparison:
    """The comparison of these runs, of pre-, post- and deep-norm unless told otherwise."""
    records = RECORDS if records is None else records
    asked = Plan(tuple(RunSettings.from_json(item["settings"]) for item in records))
    contents = Contents(
        records={item["id"]: item for item in records},
        damaged=damaged or [],
        failures=failures or [],
        plans=[plan or asked],
    )
    return compare_stored({**DATA, **(data or {})}, contents)


def damaged_file(name: str = "abc.json") -> Damaged:
    return Damaged(Path("results") / name, "its checksum does not match its content")
