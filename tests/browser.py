"""A page in headless Chromium: what it shows, what it says on the console, what it asks for.

NORMWISE_BROWSER names the browser; without it one on the path is taken. Continuous integration
sets it, so that no test of a page is skipped there.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

KNOWN = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
DRAWN = """() => {
  const MARKS = "svg.marks .role-mark path, svg.marks .role-mark line";
  const places = [...document.querySelectorAll("[data-chart]")];
  return places.length > 0 && places.every((place) => place.querySelector(MARKS));
}"""


@dataclass
class Opened:
    """A page, and what was heard from it."""

    page: Page
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def wait_for_charts(self) -> None:
        """Returns when every chart has marks; raises after 10 s."""
        self.page.wait_for_function(DRAWN, timeout=10_000)


def browser() -> str | None:
    """The browser to take, None where there is none."""
    named = os.environ.get("NORMWISE_BROWSER")
    return named or next(filter(None, map(shutil.which, KNOWN)), None)


@contextmanager
def opened(
    path: Path, *, width: int = 1200, height: int = 900, scheme: str = "light", scale: float = 1
) -> Iterator[Opened]:
    """The file in a window of its own."""
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=browser(), args=FLAGS)
        page = chromium.new_page(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
            device_scale_factor=scale,
        )
        found = Opened(page)
        page.on("console", lambda message: found.messages.append(message.text))
        page.on("pageerror", lambda error: found.messages.append(str(error)))
        page.on("request", lambda request: found.requests.append(request.url))
        page.on("dialog", lambda dialog: (found.dialogs.append(dialog.message), dialog.dismiss()))
        page.goto(path.as_uri())
        yield found
        chromium.close()
