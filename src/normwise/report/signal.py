"""The signal at initialisation by depth: measured, and as theory predicts it."""

import math
from collections.abc import Sequence
from typing import Any

from normwise.lab.comparison import Comparison
from normwise.lab.summary import InitialProfile
from normwise.report.document import Block, Column, Table
from normwise.report.losses import shown_variants
from normwise.report.naming import Naming, axis_title, varying

DEPTHS_SHOWN = ("entry", "1/4", "1/2", "3/4", "last")
POINTS_SHOWN = 100

Profile = Sequence[float | None]


def signal_blocks(comparison: Comparison) -> list[Block]:
    """Stream and gradient, each as a figure and a table of five depths."""
    profiles = comparison.profiles
    shown = _shown(comparison)
    naming = Naming([profile.axes for profile in profiles])
    predicted = any(profile.predicted is not None for profile in shown)
    line = " Broad pale line: predicted by theory." if predicted else ""
    some = f" {len(shown)} of {len(profiles)} models, those of the lowest losses."
    limited = some if len(shown) < len(profiles) else ""
    return [
        *naming.figures(
            "stream", "RMS of the stream by depth",
            [(p.axes, _points(p.stream, p.predicted)) for p in shown],
            caption=f"On one batch before the first step, mean over seeds.{line}{limited}",
        ),
        _depth_table("stream", "rms", "RMS of the stream", [
            (profile, what, values)
            for profile in profiles
            for what, values in (("measured", profile.stream), ("predicted", profile.predicted))
            if values is not None
        ]),
        *naming.figures(
            "gradient", "RMS of the gradient with respect to the stream by depth",
            [(p.axes, _points(p.stream_gradient, None)) for p in shown],
            caption=f"Of the loss, on the same batch.{limited}",
        ),
        _depth_table("gradient", "gradient", "RMS of the gradient with respect to the stream", [
            (profile, "measured", profile.stream_gradient) for profile in profiles
        ]),
    ]  # fmt: skip


def _shown(comparison: Comparison) -> list[InitialProfile]:
    """The models of the variants whose curves are shown."""
    variants = [comparison.variants[index].axes for index in shown_variants(comparison.variants)]
    return [
        profile for profile in comparison.profiles
        if any(profile.axes.items() <= axes.items() for axes in variants)
    ]  # fmt: skip


def _points(measured: Profile, predicted: Sequence[float] | None) -> list[dict[str, Any]]:
    """Points of both lines; none for an overflow or a zero, which a logarithmic axis has not."""
    step = math.ceil(len(measured) / POINTS_SHOWN)
    chosen = sorted({*range(0, len(measured), step), len(measured) - 1})
    return [
        {"at": at, what: values[at]}
        for what, values in (("measured", measured), ("predicted", predicted or []))
        for at in (chosen if values else [])
        if values[at]
    ]


def _depth_table(
    name: str, kind: str, title: str, lines: Sequence[tuple[InitialProfile, str, Profile]]
) -> Table:
    axes = varying([profile.axes for profile, _, _ in lines])
    return Table(
        name=name,
        title=f"{title} at initialisation",
        columns=[
            *(Column(axis_title(axis)) for axis in axes), Column(""),
            *(Column(depth, kind) for depth in DEPTHS_SHOWN),
        ],
        rows=[
            (*(str(profile.axes[axis]) for axis in axes), what, *five(values))
            for profile, what, values in lines
        ],
    )  # fmt: skip


def five(values: Profile) -> list[float]:
    """Values at five depths, infinity for an overflow."""
    step = (len(values) - 1) / (len(DEPTHS_SHOWN) - 1)
    picked = [values[round(step * i)] for i in range(len(DEPTHS_SHOWN))]
    return [math.inf if value is None else value for value in picked]
