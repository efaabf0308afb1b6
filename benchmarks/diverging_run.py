"""Trainings that diverge on purpose, and what a monitor says of them: pre-norm at a rate far too
high, from a healthy start.

    python benchmarks/diverging_run.py [--seeds 3] [--rate 0.1] [--out FILE]

12 layers of width 64 on bytes, AdamW without clipping, 60 steps at a sound rate of 1e-3 before.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import normwise as nw
from normwise.conditions import conditions
from normwise.lab.data import load_corpus
from normwise.probe.checks.spike_score import left_band

SOUND, STEADY, TENFOLD, STEPS, EVERY = 1e-3, 200, 100, 600, 5


def main() -> None:
    """Trains, prints, and writes the result where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokens = torch.from_numpy(load_corpus().train.astype("int64"))
    runs = [diverged(tokens, seed, options.rate) for seed in range(options.seeds)]
    for run in runs:
        print(json.dumps(run, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps({"runs": runs, "conditions": conditions()}, indent=1))


def diverged(tokens: torch.Tensor, seed: int, rate: float) -> dict[str, Any]:
    """One training: its story, what alarmed when, and when the loss left its band."""
    torch.manual_seed(seed)
    config = nw.TransformerConfig(width=64, depth=6, max_len=64, init="gpt2")
    model = nw.Transformer(config, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=SOUND)
    losses: list[tuple[int, float]] = []
    with nw.Monitor(model, optimizer, every=EVERY, steps=STEPS, max_overhead=1.0) as monitor:
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = min(rate, SOUND * 10 ** max(0.0, (step - STEADY) / TENFOLD))
            starts = torch.randint(0, len(tokens) - 65, (16,))
            batch = tokens[starts[:, None] + torch.arange(65)]
            loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append((step, loss.item()))
            monitor.step(loss=loss)
            left = left_band(losses)
            if not math.isfinite(losses[-1][1]) or (left is not None and step > left + 20):
                break
    story = monitor.story
    return {
        "seed": seed, "left_band": left_band(losses), "steps": len(losses),
        "last_loss": losses[-1][1],
        "cause": story.cause.title if story else None, "line": story.line if story else None,
        "events": list(story.events) if story else [],
        "alarms": [(step, one.check, one.where, one.value) for step, one in monitor.alarms],
        "sampled": [record.step for record in monitor.run.records],
    }  # fmt: skip


if __name__ == "__main__":
    main()
