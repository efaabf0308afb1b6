"""A process that measures the cases it is given and writes a line of JSON for each.

A process of its own, because the allocator reads its settings when a process starts.
"""

import json
import sys

import torch

from normwise.bench.measure import measure
from normwise.bench.settings import Case


def main() -> None:
    """Takes {"threads", "repeats", "cases"} as its one argument."""
    task = json.loads(sys.argv[1])
    torch.set_num_threads(task["threads"])
    for case in task["cases"]:
        sys.stdout.write(json.dumps(measure(Case(**case), task["repeats"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
