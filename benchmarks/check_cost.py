"""What `nw.check` costs beside a training step of the same model, in turn.

    python benchmarks/check_cost.py FOLDER[::FILE.gguf] [--tokens 512] [--out FILE]

FOLDER is that of a causal language model of transformers, as of SmolLM2-135M.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import normwise as nw
from normwise.conditions import conditions


def main() -> None:
    """Measures, prints, and writes the result where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder, _, file = options.folder.partition("::")
    model = AutoModelForCausalLM.from_pretrained(folder, **({"gguf_file": file} if file else {}))
    ids = torch.randint(5, 40_000, (1, options.tokens))
    batch = {"input_ids": ids, "labels": ids}
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-6)
    seconds: dict[str, list[float]] = {"step": [], "check": []}
    for _ in range(options.times + 1):
        started = time.perf_counter()
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds["step"].append(time.perf_counter() - started)
        started = time.perf_counter()
        result = nw.check(model, batch, optimizer=optimizer)
        seconds["check"].append(time.perf_counter() - started)
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    print(f"step {medians['step']:.2f} s, check {medians['check']:.2f} s")
    print(f"ratio {medians['check'] / medians['step']:.2f}; {result.summary}")
    if options.out is not None:
        options.out.write_text(json.dumps({"seconds": seconds, "conditions": conditions()}))


if __name__ == "__main__":
    main()
