"""The sentences of the claims and of their page, in English and in Chinese.

A text is a Markdown file: a title, what comes before the first `##`, and sections of lines
`- key: words`, or of prose.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from normwise.table import Table

TEXTS = Path(__file__).parent / "text"
LANGUAGES = Table("language", {"en": "English", "zh": "中文"})
LINE = re.compile(r"^- (?P<key>.+?): (?P<words>.+)$")

Words = dict[str, str]


@dataclass(frozen=True)
class Text:
    """One file.

    Args:
        title: its first line.
        body: Markdown with formulas in dollars.
        lists: words by key, for each section of such lines.
        prose: the other sections.
    """

    title: str
    body: str
    lists: dict[str, Words]
    prose: dict[str, str]

    def words(self, section: str, key: str) -> str:
        """Words of a section, or the key itself where there are none."""
        return self.lists.get(section, {}).get(key, key)


def read_text(name: str, language: str) -> Text:
    """The text of a claim, or of the page itself, whose name is "page"."""
    path = TEXTS / f"{name}.{LANGUAGES.resolve(language)}.md"
    head, *parts = re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    title, _, body = head.removeprefix("# ").partition("\n")
    lists: dict[str, Words] = {}
    prose: dict[str, str] = {}
    for part in parts:
        section, _, content = part.partition("\n")
        lines = [LINE.match(line) for line in content.strip().splitlines()]
        if lines and all(lines):
            lists[section] = {line["key"]: line["words"] for line in lines if line}
        else:
            prose[section] = content.strip()
    return Text(title, body.strip(), lists, prose)
