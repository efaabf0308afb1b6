"""One placement in full: formula, what belongs to it, constants at a depth, what theory expects."""

import inspect
from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from normwise.errors import SettingError
from normwise.lab.prediction import (
    predicted_gradient,
    predicted_stream,
    why_no_gradient,
    why_no_stream,
)
from normwise.model.config import TransformerConfig, reference_config
from normwise.residual.registry import PLACEMENTS, Inside, PlacementRow, make_placement
from normwise.theory.moments import Moments
from normwise.weight_init import BRANCH_SCALED, INITS, initial_std

TOKENS = 32


def explain_placement(name: str, depth: int) -> RenderableType:
    """A placement for a terminal; constants and predictions at `depth` layers.

    Raises:
        UnknownName: no placement of this name.
        SettingError: a depth below 1.
    """
    if depth < 1:
        raise SettingError(f"depth must be at least 1. It is {depth}.")
    full = PLACEMENTS.resolve(name)
    row = PLACEMENTS[full]
    grid = Grid(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(style="bold")
    for title, text in _facts(full, row, depth):
        grid.add_row(title, text)
    return Group(Text(full, style="bold"), Text(), grid, Text(), _predicted(full, depth))


def _facts(name: str, row: PlacementRow, depth: int) -> Iterator[tuple[str, str]]:
    yield "formula", row.formula
    yield "about", _prose(row)
    if PLACEMENTS.aliases(name):
        yield "also called", ", ".join(PLACEMENTS.aliases(name))
    yield "last norm", "yes" if row.final_norm else "no"
    inside = _inside(row.inside)
    if inside:
        yield "inside branches", inside
    yield "warm-up", row.warm_up
    yield "initialisation", f"{row.init}: {INITS[row.init].summary}{_only(row)}"
    yield f"at {depth} layers", _constants(name, row, depth)
    if row.constants:
        yield "settings", ", ".join(f"{key}={value}" for key, value in row.constants.items())


def _prose(row: PlacementRow) -> str:
    """The docstring after its formula, up to the arguments, source included."""
    text = inspect.cleandoc(row.connection.__doc__ or "")
    paragraphs = text.split("\n\n")
    kept = [p for p in paragraphs[1:] if not p.startswith(("Args:", "Raises:"))]
    return " ".join(" ".join(kept).split()).replace("`", "")


def _only(row: PlacementRow) -> str:
    return "; its constants assume it" if row.only_own_init else ""


def _inside(inside: Inside) -> str:
    parts = {
        f"norms of queries and keys ({inside.query_key})": inside.query_key != "none",
        "a norm of values": inside.value,
        "a norm before attention's last matrix": inside.attention_output,
        "a norm before the feed-forward branch's last matrix": inside.ff_output,
        f"a factor for each head, {inside.head_scale} the last matrix": inside.head_scale != "none",
    }
    return ", ".join(text for text, there in parts.items() if there)


def _constants(name: str, row: PlacementRow, depth: int) -> str:
    placement = make_placement(name, 4, depth)
    first, last = (placement.connections[at].extra_repr() for at in (0, -1))
    own = [first] if first == last else [f"{first} (first branch)", f"{last} (last)"]
    config = reference_config("r1", placement=name, depth=depth)
    if row.only_own_init:
        own.append(f"Xavier {_gains(row.init, config)}")
    return "; ".join(filter(None, own)) or "no constant"


def _gains(init: str, config: TransformerConfig) -> str:
    """What Xavier's std is multiplied by, the roles of one factor together."""
    by_gain: dict[str, list[str]] = {}
    for role in (*BRANCH_SCALED, "query"):
        own = initial_std(init, role, 64, 64, config.stack)
        gain = own / initial_std("xavier", role, 64, 64, config.stack)
        by_gain.setdefault(f"{gain:.4f}", []).append(role)
    return ", ".join(f"times {gain} for {' '.join(roles)}" for gain, roles in by_gain.items())


def _predicted(name: str, depth: int) -> RenderableType:
    config = reference_config("r1", placement=name, depth=depth)
    grid = Grid("", *("entry", "1/4", "1/2", "3/4", "last"), box=box.SIMPLE_HEAD, pad_edge=False,
                title="Predicted at initialisation (model r1, Gaussian tokens)",
                title_justify="left", title_style="bold")  # fmt: skip
    grid.add_row("mean square of the stream", *_stream(config))
    grid.add_row("gradient of the stream, last = 1", *_gradient(config))
    reasons = filter(None, (why_no_stream(config), why_no_gradient(config)))
    return Group(grid, *(Text(f"No prediction where it says -: {reason}.") for reason in reasons))


def _stream(config: TransformerConfig) -> list[str]:
    found = predicted_stream(config, Moments(1.0, 0.0), TOKENS)
    return _five(None if found is None else [value**2 for value in found])


def _gradient(config: TransformerConfig) -> list[str]:
    found = predicted_gradient(config, Moments(1.0, 0.0), TOKENS)
    return _five(None if found is None else found.stream)


def _five(values: list[float] | None) -> list[str]:
    if values is None:
        return ["-"] * 5
    last = len(values) - 1
    return [f"{values[round(last * part / 4)]:.3g}" for part in range(5)]
