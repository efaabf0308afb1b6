"""`normwise runs`: what a run folder holds."""

from pathlib import Path

import click

FOLDER = click.argument(
    "folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)


@click.group("runs")
def runs() -> None:
    """Look into a run folder."""


@runs.command("list")
@FOLDER
def list_runs(folder: Path) -> None:
    """Show every run and how it ended."""
    from normwise.lab.comparison import stored_comparison
    from normwise.report.runs import run_list
    from normwise.report.terminal import write

    write(run_list(stored_comparison([folder])))


@runs.command("status")
@FOLDER
def status(folder: Path) -> None:
    """Show what is missing, why, and the command that goes on."""
    from normwise.lab.comparison import stored_comparison
    from normwise.report.runs import run_status
    from normwise.report.terminal import write

    write(run_status(stored_comparison([folder])))


@runs.command("show")
@FOLDER
@click.argument("run", required=False)
def show_runs(folder: Path, run: str | None) -> None:
    """Show the comparison of all runs, or one RUN by the beginning of its id."""
    from normwise.lab.comparison import stored_comparison
    from normwise.report.comparison import document
    from normwise.report.runs import run_details
    from normwise.report.terminal import write

    comparison = stored_comparison([folder])
    write(document(comparison) if run is None else run_details(comparison, run))
