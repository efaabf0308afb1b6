"""`normwise compare`: train every variant of a grid on one text, and compare them."""

import dataclasses
import json
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from normwise.lab.settings import CompareSettings, SharedSettings

Command = Callable[..., Any]


class Several(click.ParamType[tuple[Any, ...]]):
    """Values separated by commas."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.name = {int: "INT,...", float: "NUMBER,...", str: "NAME,..."}[kind]

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self.kind(part.strip()) for part in value.split(",") if part.strip())
        except ValueError:
            self.fail(f"{value!r} is not a list of {self.kind.__name__} values", param, ctx)


def options_from_settings(command: Command) -> Command:
    """An option for each field of `CompareSettings`, the grid first."""
    hints = typing.get_type_hints(CompareSettings)
    shared = {field.name for field in dataclasses.fields(SharedSettings)}
    fields = sorted(dataclasses.fields(CompareSettings), key=lambda field: field.name in shared)
    for field in reversed(fields):
        command = _option(field, hints[field.name])(command)
    return command


def _option(field: "dataclasses.Field[Any]", hint: Any) -> Callable[[Command], Command]:
    flag = "--" + field.name.replace("_", "-")
    shared = {"default": field.default, "help": field.metadata["help"], "show_default": True}
    if hint is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", **shared)
    if typing.get_origin(hint) is tuple:
        shared["default"] = ",".join(map(str, typing.cast(Any, field.default)))
        return click.option(flag, type=Several(typing.get_args(hint)[0]), **shared)
    return click.option(flag, type=hint if hint in (int, float) else str, **shared)


@click.command("compare")
@options_from_settings
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--dry-run", is_flag=True, help="Print runs, tokens, time and memory; train nothing.")
def compare(*, as_json: bool, dry_run: bool, **values: Any) -> int:
    """Train small Transformers that differ only in what is compared, and show how they do.

    Options with several values, separated by commas, span the grid. Finished runs are kept in the
    run folder: the same command goes on where it was stopped, a wider grid only adds runs.
    """
    settings = CompareSettings(**values)
    if dry_run:
        return _dry_run(settings, as_json=as_json)
    return _compare(settings, as_json=as_json)


def _dry_run(settings: CompareSettings, *, as_json: bool) -> int:
    from rich.console import Console

    from normwise.lab.estimate import estimate
    from normwise.report.estimate import render_estimate

    found = estimate(settings)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=1))
    else:
        Console().print(render_estimate(found))
    return 0


def _compare(settings: CompareSettings, *, as_json: bool) -> int:
    from normwise.lab.compare import compare as run_comparison
    from normwise.report.page import write_page
    from normwise.report.terminal import show

    try:
        comparison = run_comparison(settings)
    except KeyboardInterrupt:
        click.echo(
            f"\nnormwise: stopped. Finished runs are kept in {settings.out}; "
            f"the same command goes on from there.",
            err=True,
        )
        sys.exit(130)
    if as_json:
        click.echo(json.dumps(comparison.to_json(), indent=1, allow_nan=False))
    else:
        show(comparison)
    page = Path(settings.out) / "page.html"
    write_page(comparison, page)
    click.echo(f"Page: {page}", err=as_json)
    return 1 if comparison.failed else 0
