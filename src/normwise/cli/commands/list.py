"""`normwise list`: the names that the other commands take."""

import click

TABLES = (
    "norms", "placements", "inits", "schedules", "roundings", "backends", "checks", "remedies",
)  # fmt: skip


@click.command("list")
@click.argument("what", type=click.Choice(TABLES))
@click.option("--explain", metavar="NAME", help="Show one placement in full.")
@click.option("--depth", default=12, show_default=True, help="Layers, for --explain.")
def list_rows(what: str, explain: str | None, depth: int) -> None:
    """Show the known norms, placements, inits and so on, each with what it is."""
    from rich.console import Console

    from normwise.errors import SettingError
    from normwise.report.explain import explain_placement
    from normwise.report.names import TABLES_OF_NAMES

    if explain is not None and what != "placements":
        raise SettingError(f"--explain is for placements. It came with {what}. Drop one of them.")
    table = TABLES_OF_NAMES[what]() if explain is None else explain_placement(explain, depth)
    Console().print(table)
