"""`normwise report`: the page of stored runs, from one run folder or several."""

from pathlib import Path

import click

PATH = click.Path(path_type=Path)
EXISTING = click.Path(exists=True, path_type=Path)
OUT = "The page; by default page.html in the one run folder, else in the current folder."
EXPORT = "Folder for the charts as PNG and SVG, the tables as CSV and Markdown."


@click.command("report")
@click.argument("sources", nargs=-1, required=True, metavar="DIR|FILE...", type=EXISTING)
@click.option("--out", type=PATH, help=OUT)
@click.option("--export", type=PATH, help=EXPORT)
def report(*, sources: tuple[Path, ...], out: Path | None, export: Path | None) -> None:
    """Make the page of stored runs again, without training.

    DIR is a run folder, FILE a result in one. Several are merged: they must be on one text, and of
    a run that is in two of them the first counts.
    """
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
