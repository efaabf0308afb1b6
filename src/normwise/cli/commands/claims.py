"""`normwise claims`: the statements of the notes on normalization, as experiments."""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from normwise.claims.run import Judged
    from normwise.lab.launch.local import Watcher
    from normwise.lab.settings import RunSettings

LANGUAGES = click.Choice(["en", "zh"])


@click.group("claims", invoke_without_command=True)
@click.option("--lang", "language", type=LANGUAGES, default="en", show_default=True,
              help="Language of the statements, and of a run's page.")  # fmt: skip
@click.pass_context
def claims(context: click.Context, language: str) -> None:
    """Statements about normalization, each an experiment; without a command, list them."""
    from rich.console import Console

    from normwise.report.claims import statements
    from normwise.report.terminal import table

    if context.invoked_subcommand is None:
        Console().print(table(statements(language)))


@claims.command("run")
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--quick", is_flag=True, help="Two minutes, one seed; some claims need the full run.")
@click.option("--seeds", type=int, help="Seeds of a training run.  [default: 3; 1 with --quick]")
@click.option("--workers", type=int, default=2, show_default=True,
              help="Processes, one torch thread each.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default="runs/claims", show_default=True,
              help="Folder; what is finished in it is not repeated.")  # fmt: skip
@click.option("--lang", "language", type=LANGUAGES, help="Language of the page.  [default: en]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def run(
    context: click.Context,
    /,
    *,
    ids: tuple[str, ...],
    language: str | None,
    as_json: bool,
    **values: Any,
) -> int:
    """Measure and judge the claims named by ID, or all.

    Leaves claims.json and page.LANG.html in the folder. Claims share their training runs, and the
    same command goes on where it was stopped.
    """
    from normwise.claims.run import run_claims
    from normwise.claims.settings import ClaimSettings
    from normwise.report.claims import document
    from normwise.report.files import save
    from normwise.report.page import page
    from normwise.report.terminal import write

    language = language or (context.parent.params["language"] if context.parent else "en")
    settings = ClaimSettings(ids=ids, **values)
    try:
        result = run_claims(settings, Lines())
    except KeyboardInterrupt:
        click.echo(
            f"\nnormwise: stopped. What is finished is kept in {settings.out}; "
            f"the same command goes on from there.",
            err=True,
        )
        sys.exit(130)
    report = document(result, language)
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=1, allow_nan=False))
    else:
        write(report)
    path = settings.out / f"page.{language}.html"
    save(path, page(report).encode())
    click.echo(f"Page: {path}", err=as_json)
    return 1 if result.failed else 0


class Lines:
    """A line on standard error for each claim that ends, and the training's own progress.

    Time left is reckoned from what has ended since the first claim did: a training run takes about
    five times as long as a claim's own measurement (8 and 1.5 s on 2 cores, 2 at a time).
    """

    RUN = 5

    def begins(self, claims: int, stored: int, runs: int) -> None:
        self.total, self.ended = claims, stored
        self.left, self.done, self.started = claims - stored + self.RUN * runs, 0, 0.0
        click.echo(f"{claims - stored} claims to measure, {stored} measured already", err=True)

    def measured(self, claim: "Judged") -> None:
        self._line(f"{claim.id}: {claim.verdict}, {claim.seconds:.0f} s")

    def failed(self, claim: str, reason: str) -> None:
        self._line(f"{claim}: failed, {reason}")

    def training(
        self, runs: "Sequence[RunSettings]", stored: int
    ) -> "AbstractContextManager[Watcher[RunSettings]]":
        from normwise.lab.progress import watching

        self._worked(self.RUN * len(runs))
        return watching(runs, stored)

    def _line(self, text: str) -> None:
        from normwise.lab.progress import spell_seconds

        now = time.monotonic()
        left = (now - self.started) * (self.left - 1) / self.done if self.done else None
        self.started = self.started or now
        self._worked(1)
        self.ended += 1
        click.echo(f"{self.ended}/{self.total} {text}; {spell_seconds(left)} left", err=True)

    def _worked(self, share: int) -> None:
        self.done += share
        self.left -= share
