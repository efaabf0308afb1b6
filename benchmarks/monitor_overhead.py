"""What a monitor costs: steps without one, the step that one samples, the step after it in which
the sample is read and judged, and a step that has neither, in turn.

    python benchmarks/monitor_overhead.py [--pairs 30] [--out FILE]

Width 256, 12 layers, 8 sequences of 128 tokens, AdamW. Medians of pairs; the first two are left
out.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import normwise as nw
from normwise.conditions import conditions

EVERY = 50


def main() -> None:
    """Measures, prints, and writes the result where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    seconds = measured(options.pairs)
    plain = seconds["plain"]
    shares = {
        name: statistics.median(b / a - 1.0 for a, b in zip(plain, seconds[name], strict=True))
        for name in ("sampled", "after", "idle")
    }
    shares["amortised"] = (
        shares["sampled"] + shares["after"] + (EVERY - 2) * shares["idle"]
    ) / EVERY
    result = {"shares": shares, "seconds": seconds, "conditions": conditions()}
    for name, share in shares.items():
        print(f"{name:10} {100 * share:6.2f} %")
    print(f"a step     {statistics.median(plain):.3f} s")
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1))


def measured(pairs: int) -> dict[str, list[float]]:
    """Seconds of steps of each kind, taken in turn."""
    config = nw.TransformerConfig(width=256, depth=12, max_len=128, placement="pre_norm")
    model = nw.Transformer(config, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randint(0, 256, (8, 128), generator=torch.Generator().manual_seed(0))
    monitor = nw.Monitor(model, optimizer, batch=batch, max_overhead=1e9)
    seconds: dict[str, list[float]] = {kind: [] for kind in ("plain", "sampled", "after", "idle")}
    for _ in range(pairs + 2):
        for kind in seconds:
            monitor.pace.every = 10**9
            monitor.pace.dense_until = monitor.taken + (kind == "sampled")
            monitor._arm()
            seconds[kind].append(
                step(model, optimizer, batch, None if kind == "plain" else monitor)
            )
    monitor.close()
    return {kind: values[2:] for kind, values in seconds.items()}


def step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor,
    monitor: nw.Monitor | None,
) -> float:  # fmt: skip
    """Seconds of one training step."""
    started = time.perf_counter()
    loss = cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if monitor is not None:
        monitor.step(loss=loss)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
