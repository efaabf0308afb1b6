"""`normwise report`: the page of stored runs, from one run folder or several, or of a log."""

from pathlib import Path

import click

PATH = click.Path(path_type=Path)
EXISTING = click.Path(exists=True, path_type=Path)
OUT = "The page; by default page.html in the one run folder, else in the current folder."
SEVERITIES = click.Choice(["warn", "fail", "never"])
EXPORT = "Folder for the charts as PNG and SVG, the tables as CSV and Markdown."


@click.command("report")
@click.argument("sources", nargs=-1, required=True, metavar="DIR|FILE...", type=EXISTING)
@click.option("--out", type=PATH, help=OUT)
@click.option("--export", type=PATH, help=EXPORT)
@click.option("--fail-severity", type=SEVERITIES, default="fail", show_default=True,
              help="Of a log: exit with 1 where its training had such a finding.")  # fmt: skip
def report(
    *, sources: tuple[Path, ...], out: Path | None, export: Path | None, fail_severity: str
) -> int:
    """Make the page of stored runs again, without training; or that of a monitored training.

    DIR is a run folder, FILE a result in one. Several are merged: they must be on one text, and of
    a run that is in two of them the first counts. A FILE that ends in .jsonl is the log of a
    monitor: what moved first, and all findings.
    """
    if len(sources) == 1 and sources[0].suffix == ".jsonl":
        return _training(sources[0], out, export, fail_severity)
    from normwise.lab.comparison import stored_comparison
    from normwise.report.comparison import document
    from normwise.report.export import export as write_files
    from normwise.report.page import write_page

    comparison = stored_comparison(sources)
    folder = sources[0] if len(sources) == 1 and sources[0].is_dir() else Path()
    page = out or folder / "page.html"
    if export is not None:
        files = write_files(document(comparison), export)
        click.echo(f"Exported: {len(files)} files to {export}")
    write_page(comparison, page)
    click.echo(f"Page: {page}")
    return 0


def _training(log: Path, out: Path | None, export: Path | None, fail_severity: str) -> int:
    from normwise.report.export import export as write_files
    from normwise.report.files import save
    from normwise.report.page import page
    from normwise.report.terminal import write
    from normwise.report.training import document, read_training, worst_of

    lines = read_training(log)
    told = document(lines)
    write(told)
    if export is not None:
        click.echo(f"Exported: {len(write_files(told, export))} files to {export}")
    path = out or log.with_suffix(".html")
    save(path, page(told).encode())
    click.echo(f"Page: {path}")
    bad = {"warn": ("warn", "fail"), "fail": ("fail",), "never": ()}[fail_severity]
    return int(worst_of(lines) in bad)
