"""`normwise bench`: time and error of the norms beside their peers."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from normwise.bench.settings import MEMORY, OPS, BenchSettings, Case
from normwise.cli.commands.compare import Command, Several

NAMES = Several(str)
DEFAULT = BenchSettings()


def _names(flag: str, default: tuple[str, ...], text: str) -> Callable[[Command], Command]:
    return click.option(flag, type=NAMES, default=",".join(default), show_default=True, help=text)


@click.command("bench")
@_names("--ops", DEFAULT.ops, f"Of {', '.join(OPS)}.")
@_names("--shapes", DEFAULT.shapes, "Rows and width.")
@_names("--dtypes", DEFAULT.dtypes, "Of fp32, bf16, fp16, fp64.")
@_names("--memory", DEFAULT.memory,
        f"Of {', '.join(MEMORY)}: freed memory, the system's allocator, that with huge "
        f"pages.")  # fmt: skip
@click.option("--threads", type=int, default=DEFAULT.threads, show_default=True,
              help="torch's threads, for every peer.")  # fmt: skip
@click.option("--repeats", type=int, default=DEFAULT.repeats, show_default=True,
              help="Times that each peer is timed, in turns.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default="bench.json", show_default=True,
              help="Result file.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def bench(*, out: Path, as_json: bool, **values: Any) -> int:
    """Time the norms beside torch, torch.compile and other packages, with the error of each.

    All peers of a case run in turns in one process, each turn in another order. Stopped with
    Ctrl-C, the same command goes on with the cases that are left.
    """
    from normwise.bench.run import run_bench
    from normwise.report.bench import document
    from normwise.report.terminal import write

    settings = BenchSettings(**values)

    def tell(case: Case, done: int) -> None:
        click.echo(f"{done}/{len(settings.cases())} {case}", err=True)

    try:
        result = run_bench(settings, out, tell)
    except KeyboardInterrupt:
        click.echo(
            f"\nnormwise: stopped. What was measured is kept in {out}.part; "
            f"the same command goes on from there.",
            err=True,
        )
        sys.exit(130)
    if as_json:
        click.echo(json.dumps(result, indent=1, allow_nan=False))
    else:
        write(document(result))
    click.echo(f"Result: {out}", err=as_json)
    return 0
