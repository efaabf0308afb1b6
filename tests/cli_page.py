"""docs/cli.md from the program: `python -m tests.cli_page` writes it, a test compares it."""

from collections.abc import Iterator
from pathlib import Path

import click

from normwise.cli.main import cli

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"


def page() -> str:
    """Every command with its help, 80 columns wide."""
    parts = [
        "# Command line",
        "Written by `python -m tests.cli_page`; a test compares it with the program.",
        "Exit codes: 0 fine, 1 a run failed, 2 wrong usage, 130 interrupted.",
    ]
    parts += [f"## {name}\n\n```\n{text}\n```" for name, text in helps(cli, "normwise")]
    return "\n\n".join(parts) + "\n"


def helps(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=name, terminal_width=80, max_content_width=80)
    yield name, command.get_help(context)
    if isinstance(command, click.Group):
        for word, child in sorted(command.commands.items()):
            yield from helps(child, f"{name} {word}")


if __name__ == "__main__":
    PAGE.write_text(page())
