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
        "Exit codes: 0 fine, 1 a run or a check failed, 2 wrong usage, 130 interrupted.",
    ]
    context = cli.make_context("normwise", ["list"], resilient_parsing=True)
    parts += [f"## {name}\n\n```\n{text}\n```" for name, text in helps(context)]
    return "\n\n".join(parts) + "\n"


def helps(context: click.Context) -> Iterator[tuple[str, str]]:
    """A command's help, then that of the commands below it."""
    context.terminal_width = context.max_content_width = 80
    yield context.command_path, context.get_help()
    if isinstance(context.command, click.Group):
        for word, child in sorted(context.command.commands.items()):
            yield from helps(click.Context(child, parent=context, info_name=word))


if __name__ == "__main__":
    PAGE.write_text(page())
