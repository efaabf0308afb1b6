"""A document as one page that needs nothing but itself, and as a fragment for a notebook."""

from functools import cache
from pathlib import Path

from normwise.errors import MissingExtra
from normwise.report.charts import spec
from normwise.report.document import Document
from normwise.report.documents import Result, document_of
from normwise.report.files import save
from normwise.report.prose import html
from normwise.report.spelling import KINDS, spell
from normwise.report.vega import script, svg

try:
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup
except ImportError as error:
    raise MissingExtra(str(error.name), "lab", "A report") from None

HERE = Path(__file__).parent
FRAGMENT_WIDTH = 680


def write_page(result: Result, path: str | Path) -> None:
    """Writes the page of a comparison or a diagnosis: one HTML file that opens without a network.

    Raises:
        StoreError: the file cannot be written; what was there before is still there.
    """
    save(Path(path), page(document_of(result)).encode())


def page(report: Document) -> str:
    """The whole page, its charts drawn by Vega when it opens.

    Every text of the document is escaped. Chart data is JSON in which `<` stands as an escape
    sequence, so that no name can end the script element that holds it.
    """
    return _templates().get_template("page.html").render(
        report=report,
        charts={figure.name: spec(figure) for figure in report.figures()},
        style=_own("page.css"),
        script=_own("page.js"),
        vega=Markup(script()),
    )  # fmt: skip


def fragment(report: Document) -> str:
    """The same without scripts, its charts already drawn."""
    charts = {figure.name: spec(figure, width=FRAGMENT_WIDTH) for figure in report.figures()}
    return _templates().get_template("fragment.html").render(
        report=report,
        drawn={name: Markup(svg(chart)) for name, chart in charts.items()},
        style=_own("page.css"),
    )  # fmt: skip


@cache
def _templates() -> Environment:
    """Jinja's environment; everything is escaped."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(
        kinds=KINDS, spell=spell, zip=zip, html=html, kind=lambda block: type(block).__name__
    )
    return environment


def _own(name: str) -> Markup:
    """A file of ours, which needs no escaping."""
    return Markup((HERE / name).read_text(encoding="utf-8"))
