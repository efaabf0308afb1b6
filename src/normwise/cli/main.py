"""`normwise`: the group of commands, and the one place that turns errors into a line."""

import sys
from collections.abc import Sequence

import click

from normwise.cli.commands.bench import bench
from normwise.cli.commands.check import check
from normwise.cli.commands.claims import claims
from normwise.cli.commands.compare import compare
from normwise.cli.commands.list import list_rows
from normwise.cli.commands.report import report
from normwise.cli.commands.runs import runs
from normwise.errors import NormwiseError

WRONG_USAGE = 2
INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="normwise", message="%(prog)s %(version)s")
def cli() -> None:
    """Normalization for Transformers: which norm, and where, tried on your text."""


for command in (bench, check, claims, compare, list_rows, report, runs):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command. Exit code 0 fine, 1 something failed, 2 wrong usage, 130 interrupted."""
    try:
        code = cli.main(arguments, prog_name="normwise", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        code = 0
    except click.ClickException as error:
        code = _complain(error.format_message())
    except NormwiseError as error:
        code = _complain(str(error))
    except click.Abort:
        code = INTERRUPTED
    sys.exit(code)


def _complain(message: str) -> int:
    click.echo(f"normwise: {message}", err=True)
    return WRONG_USAGE
