"""Prose with formulas as HTML: Markdown, and LaTeX between dollars as MathML."""

from functools import cache
from typing import Any

from normwise.errors import MissingExtra

try:
    from latex2mathml.converter import convert
    from markdown_it import MarkdownIt
    from markupsafe import Markup
    from mdit_py_plugins.dollarmath import dollarmath_plugin
except ImportError as error:
    raise MissingExtra(str(error.name), "lab", "A page with formulas") from None


def html(markdown: str) -> Markup:
    """The prose as HTML. HTML in it is escaped."""
    return Markup(_renderer().render(markdown))


@cache
def _renderer() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).use(
        dollarmath_plugin, allow_labels=False, renderer=_mathml
    )


def _mathml(latex: str, options: dict[str, Any]) -> str:
    """A formula; HTML knows MathML without being told its name space."""
    display = "block" if options["display_mode"] else "inline"
    return str(convert(latex, display=display)).replace(
        ' xmlns="http://www.w3.org/1998/Math/MathML"', ""
    )
