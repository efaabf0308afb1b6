"""Progress of a comparison on standard error: a bar in a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from normwise.lab.launch.local import Watcher
from normwise.lab.settings import RunSettings


def describe_run(run: RunSettings) -> str:
    """A run in a few words."""
    return (
        f"{run.norm} {run.placement} {run.init}, lr {run.lr:g}, warm-up {run.warmup}, "
        f"depth {run.depth}, seed {run.seed}"
    )


class PlainLines:
    """A line for each run that ends, with the time left."""

    def __init__(self, runs: Sequence[RunSettings], stored: int, console: Console) -> None:
        self.console = console
        self.total = len(runs) + stored
        self.ended = stored
        self.steps = sum(run.steps for run in runs)
        self.done: dict[str, int] = {}
        self.started = time.monotonic()

    def step(self, run: RunSettings, done: int) -> None:
        self.done[run.id] = done

    def finished(self, run: RunSettings, record: dict[str, Any]) -> None:
        self.done[run.id] = run.steps
        self._line(f"{describe_run(run)}: {outcome(record)}")

    def failed(self, run: RunSettings, reason: str) -> None:
        self.done[run.id] = run.steps
        self._line(f"{describe_run(run)}: failed, {reason.strip()}")

    def share_done(self) -> float:
        """Of all optimizer steps of this session."""
        return sum(self.done.values()) / self.steps if self.steps else 1.0

    def seconds_left(self) -> float | None:
        """From the pace so far; None before the first step."""
        share = self.share_done()
        return (time.monotonic() - self.started) * (1 - share) / share if share else None

    def _line(self, text: str) -> None:
        self.ended += 1
        self.console.print(
            f"{self.ended}/{self.total} {text}; {spell_seconds(self.seconds_left())} left",
            markup=False, highlight=False, soft_wrap=not self.console.is_terminal,
        )  # fmt: skip


class Bar(PlainLines):
    """The same lines above a bar that moves with every step."""

    def __init__(self, runs: Sequence[RunSettings], stored: int, progress: Progress) -> None:
        super().__init__(runs, stored, progress.console)
        self.progress = progress
        self.task = progress.add_task("", total=1.0, runs="", left="")

    def step(self, run: RunSettings, done: int) -> None:
        super().step(run, done)
        self.progress.update(
            self.task, completed=self.share_done(), runs=f"{self.ended}/{self.total} runs",
            left=f"{spell_seconds(self.seconds_left())} left",
        )  # fmt: skip


@contextmanager
def watching(runs: Sequence[RunSettings], stored: int) -> Iterator[Watcher[RunSettings]]:
    """A listener that shows `runs` going on, with `stored` runs already there."""
    console = Console(stderr=True)
    if runs:
        console.print(f"{len(runs)} runs to train, {stored} stored already", highlight=False)
    if not console.is_terminal or not runs:
        yield PlainLines(runs, stored, console)
        return
    columns = BarColumn(), TextColumn("{task.fields[runs]}"), TextColumn("{task.fields[left]}")
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bar(runs, stored, progress)


def outcome(record: dict[str, Any]) -> str:
    """How a run ended, in a few words."""
    if record["diverged_at"]:
        return f"diverged at step {record['diverged_at']}, loss not finite"
    return f"validation loss {record['validation_loss']:.3f} in {record['seconds']:.0f} s"


def spell_seconds(seconds: float | None) -> str:
    """45 s, 3 min 20 s, 2 h 05 min; "unknown time" for None."""
    if seconds is None:
        return "unknown time"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
