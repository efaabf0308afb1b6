"""A process that measures cases: reads them from standard input, writes a line of JSON for each.

A process of its own, because the allocator reads its settings when a process starts.
"""

import json
import sys

import torch

from normwise.bench.measure import measure
from normwise.bench.settings import Case


def main() -> None:
    """Reads {"threads", "repeats", "cases"}."""
    task = json.load(sys.stdin)
    torch.set_num_threads(task["threads"])
    for case in task["cases"]:
        sys.stdout.write(json.dumps(measure(Case(**case), task["repeats"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
