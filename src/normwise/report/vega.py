"""Vega as the package vl-convert carries it: charts drawn without a browser, and the script that
draws them in one.
"""

from contextlib import suppress
from functools import cache
from importlib.metadata import version
from typing import Any

from normwise.errors import MissingExtra, StoreError
from normwise.report.files import save

try:
    import platformdirs
    import vl_convert
except ImportError as error:
    raise MissingExtra(str(error.name), "lab", "A report") from None

PIXELS_PER_POINT = 2


def svg(spec: dict[str, Any]) -> str:
    """A chart drawn."""
    return vl_convert.vegalite_to_svg(spec)


def png(spec: dict[str, Any]) -> bytes:
    """A chart drawn, at twice the resolution of a plain screen."""
    return vl_convert.vegalite_to_png(spec, scale=PIXELS_PER_POINT)


@cache
def script() -> str:
    """Vega, Vega-Lite and `vegaEmbed` in one script that loads nothing.

    Making it takes 2 to 3 s, more than the rest of a page, so it is kept in the user's cache
    folder. Where nothing can be kept, that is all that is lost.
    """
    kept = platformdirs.user_cache_path("normwise") / f"vega-{version('vl-convert-python')}.js"
    if kept.exists():
        return kept.read_text(encoding="utf-8")
    made = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    with suppress(StoreError):
        save(kept, made.encode())
    return made
