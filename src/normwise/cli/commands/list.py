"""`normwise list`: the names that the other commands take."""

import click

TABLES = ("norms", "placements", "inits", "schedules", "roundings", "backends")


@click.command("list")
@click.argument("what", type=click.Choice(TABLES))
def list_rows(what: str) -> None:
    """Show the known norms, placements, inits, schedules, roundings or backends."""
    from rich.console import Console

    from normwise.report.names import TABLES_OF_NAMES

    Console().print(TABLES_OF_NAMES[what]())
