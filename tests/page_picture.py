"""The README's picture: the upper part of a run folder's page.

`make picture` trains the demonstration if it has to, and writes docs/demo.png.
"""

import sys
import tempfile
from pathlib import Path

import normwise as nw
from tests.browser import opened

WIDTH = 1000
PICTURE = Path(__file__).parents[1] / "docs" / "demo.png"


def take(folder: str, target: Path) -> None:
    """Photographs the page from its verdict to the end of its first chart."""
    with tempfile.TemporaryDirectory() as place:
        page = Path(place) / "page.html"
        nw.write_page(nw.stored_comparison([folder]), page)
        with opened(page, width=WIDTH) as found:
            found.wait_for_charts()
            first = found.page.locator("figure").first.bounding_box()
            if first is None:
                raise SystemExit(f"{folder} has no chart")
            bottom = first["y"] + first["height"]
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": bottom}
            found.page.screenshot(path=target, full_page=True, clip=clip)


if __name__ == "__main__":
    take(sys.argv[1], PICTURE)
