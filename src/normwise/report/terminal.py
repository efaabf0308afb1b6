"""A comparison as tables for a terminal of 80 columns and more."""

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from normwise.lab.compare import Comparison
from normwise.lab.estimate import Estimate
from normwise.lab.grid import Skipped
from normwise.lab.progress import describe_run, spell_seconds
from normwise.lab.summary import (
    CONFIDENCE,
    STUCK_WITHIN,
    InitialProfile,
    RateSummary,
    VariantSummary,
)

DEPTHS_SHOWN = ("entry", "1/4", "1/2", "3/4", "last")
AXIS_TITLES = {
    "norm": "norm", "placement": "placement", "init": "init", "warmup": "warm-up",
    "optimizer": "optimizer", "depth": "layers",
}  # fmt: skip


def show(comparison: Comparison, console: Console | None = None) -> None:
    """Prints a comparison to standard output, or to a console."""
    (console or Console()).print(render(comparison))


def render(comparison: Comparison) -> RenderableType:
    """The whole comparison: text, variants, initial signal, and what is missing."""
    parts = [_heading(comparison)]
    if comparison.variants:
        parts += [_variants(comparison), _notes(comparison)]
    if comparison.profiles:
        parts.append(_profiles(comparison))
    parts += map(_skipped, comparison.skipped)
    parts += [
        _line(f"Left out {item.path.name}: {item.reason}. Its run, if asked for, was made again.")
        for item in comparison.damaged
    ]
    parts += [
        _line(f"Failed {describe_run(item.run)}: {item.reason.strip()}", style="bold")
        for item in comparison.failed
    ]
    return Group(*parts)


def _heading(comparison: Comparison) -> RenderableType:
    data, settings = comparison.data, comparison.settings
    model = settings.builder or (
        f"width {settings.width}, {settings.heads} heads, {settings.positions} positions, "
        f"{settings.activation}"
    )
    return Group(
        _line(
            f"Text: {data['source']}, {data['tokens']:,} tokens ({data['tokenizer']}), "
            f"sha256 {data['sha256'][:12]}"
        ),
        _line(
            f"Model: {model}; {settings.steps} steps of "
            f"{settings.batch_size * settings.accumulate} x {settings.seq_len} tokens, "
            f"{settings.precision} on {settings.device}"
        ),
        Text(),
    )


def _variants(comparison: Comparison) -> Table:
    variants = comparison.variants
    axes = _varying([variant.axes for variant in variants])
    table = _table(*(AXIS_TITLES[axis] for axis in axes))
    table.add_column("loss", justify="right", no_wrap=True)
    table.add_column("rate", justify="right", no_wrap=True)
    table.add_column("outcome", min_width=9)
    for title in ("params", "tok/s", "MiB"):
        table.add_column(title, justify="right", no_wrap=True)
    for variant in variants:
        table.add_row(
            *(str(variant.axes[axis]) for axis in axes),
            _loss(variant.best),
            _rate(variant.best.lr),
            _outcome(variant),
            _short(variant.parameters),
            _short(variant.tokens_per_second),
            f"{variant.peak_memory_bytes / 2**20:.0f}",
        )
    return table


def _loss(rate: RateSummary) -> str:
    if rate.mean is None:
        return "-"
    spread = "" if rate.half_width is None else f" ±{rate.half_width:.2f}"
    return f"{rate.mean:.3f}{spread}"


def _rate(lr: float) -> str:
    return _exponent(lr) if lr < 0.01 else f"{lr:g}"


def _exponent(number: float) -> str:
    """0.00123 as 1.2e-3, 0.001 as 1e-3."""
    digits, exponent = f"{number:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


def _outcome(variant: VariantSummary) -> str:
    """What went wrong at the best rate, and how many rates went worse."""
    best = variant.best
    parts = []
    if best.diverged:
        steps = ", ".join(str(step) for step in sorted(best.diverged.values()))
        parts.append(f"diverged at {steps}")
    for what, seeds in (("stuck", best.stuck), ("untrained", best.untrained)):
        if seeds:
            parts.append(f"{what} {len(seeds)}/{variant.seeds}")
    lost = [rate.lr for rate in variant.rates if rate.diverged and rate is not best]
    if lost:
        parts.append("diverged at rate " + ", ".join(_rate(lr) for lr in lost))
    return "; ".join(parts) or "trained"


def _notes(comparison: Comparison) -> Text:
    seeds = sorted({variant.seeds for variant in comparison.variants})
    counts = " to ".join(str(count) for count in seeds)
    level = comparison.data["unigram_loss"]
    return _line(
        f"Loss: validation, nats a token, mean ± half the {100 * CONFIDENCE:.0f} % Student-t "
        f"interval over {counts} seed(s), at the best rate of each variant. Stuck: within "
        f"{STUCK_WITHIN} of {level:.2f}, the loss of a model that knows only how frequent each "
        f"token is. Untrained: above that.\n"
    )


def _profiles(comparison: Comparison) -> Table:
    """Stream and gradient at initialisation, at five depths of each model."""
    profiles = comparison.profiles
    axes = _varying([profile.axes for profile in profiles])
    table = _table(*(AXIS_TITLES[axis] for axis in axes), title="At initialisation, by layer")
    table.add_column("RMS of", no_wrap=True)
    for title in DEPTHS_SHOWN:
        table.add_column(title, justify="right", no_wrap=True)
    for profile in profiles:
        names = [str(profile.axes[axis]) for axis in axes]
        for index, (what, values) in enumerate(_rows(profile)):
            shown = names if index == 0 else [""] * len(names)
            table.add_row(*shown, what, *values)
    return table


def _rows(profile: InitialProfile) -> list[tuple[str, list[str]]]:
    rows = [("stream", _picked(profile.stream, "{:.2f}".format))]
    if profile.predicted is not None:
        rows.append(("predicted", _picked(profile.predicted, "{:.2f}".format)))
    return [*rows, ("gradient", _picked(profile.stream_gradient, _exponent))]


def _picked(values: Sequence[float | None], spell: Callable[[float], str]) -> list[str]:
    step = (len(values) - 1) / (len(DEPTHS_SHOWN) - 1)
    picked = [values[round(step * i)] for i in range(len(DEPTHS_SHOWN))]
    return ["overflow" if value is None else spell(value) for value in picked]


def render_estimate(estimate: Estimate) -> RenderableType:
    """What `--dry-run` shows."""
    if estimate.stored == estimate.runs:
        return _line(f"Runs: {estimate.runs}, all stored already. There is nothing to train.")
    low, high = estimate.parameters
    size = _short(low) if low == high else f"{_short(low)} to {_short(high)}"
    return Group(
        _line(f"Runs: {estimate.runs}, of which {estimate.stored} are stored already"),
        _line(f"Tokens to train on: {estimate.tokens:,}"),
        _line(f"Parameters: {size}"),
        _line(f"Time: about {spell_seconds(estimate.seconds)}, from a few measured steps"),
        _line(f"Memory: about {estimate.peak_memory_bytes / 2**20:,.0f} MiB for all workers"),
        *map(_skipped, estimate.skipped),
    )


def _skipped(item: Skipped) -> Text:
    return _line(f"Skipped {item.what}: {item.reason}.")


def _varying(rows: Sequence[dict[str, str | int]]) -> list[str]:
    """Axes on which the rows differ, or the placement where they differ on none."""
    axes = [axis for axis in rows[0] if len({row[axis] for row in rows}) > 1]
    return axes or ["placement"]


def _table(*left_columns: str, title: str | None = None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=0,
                  title_style="none", show_edge=False)  # fmt: skip
    for column in left_columns:
        table.add_column(column, no_wrap=True)
    return table


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style)


def _short(number: float) -> str:
    """1234 as 1.2k, 12345678 as 12.3M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            digits = 1 if number < 100 * size else 0
            return f"{number / size:.{digits}f}{letter}"
    return f"{number:.0f}"
