"""Figures as Vega-Lite charts: one function for each kind, one look for all."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from normwise.errors import MissingExtra
from normwise.report.document import Axis, Figure, Legend

try:
    import altair as alt
except ImportError as error:
    raise MissingExtra(str(error.name), "lab", "A report") from None

Spec: TypeAlias = dict[str, Any]
Layers: TypeAlias = Mapping[str, alt.Chart | alt.LayerChart]

# After Okabe and Ito, whose colours are told apart with every kind of colour vision; the blue is
# lighter than theirs, to stand out on black as well.
COLOURS = (
    "#2f86c9", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8f8f8f", "#a08700",
)  # fmt: skip
SCHEME = "turbo"
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4])
CROSS: Spec = {"shape": "cross", "angle": 45, "size": 90, "filled": True, "opacity": 1}
LINE: Spec = {"strokeWidth": 1.75}
MEAN: Spec = {"size": 70, "filled": True, "opacity": 1}
SEED: Spec = {"size": 25, "opacity": 0.6}
HEIGHT = 260
COMMA = r", (?![^(]*[)])|\uff0c"  # where a label may go on in a second line
ROWS = {"finals": 26, "marks": 38, "grid": 24}  # of those with a row for each label
# How a cell of a grid looks: a colour, and a form for whoever does not see it.
CELLS = {
    "ok": ("#009e73", "circle"),
    "info": ("#2f86c9", "diamond"),
    "warn": ("#e69f00", "triangle-up"),
    "fail": ("#d55e00", "M-.7,-1L0,-.3L.7,-1L1,-.7L.3,0L1,.7L.7,1L0,.3L-.7,1L-1,.7L-.3,0L-1,-.7Z"),
    "not measured": ("#8f8f8f", "M-1,-.2L1,-.2L1,.2L-1,.2Z"),
}
DOTS_AT_MOST = 50
QUIET = ("ok", "not measured")  # small, so that the others are seen
LETTER, ENTRY = 7, 45  # pixels of a legend: a letter, and the symbol with the gaps around it
POINTS = "points"
TITLES = {"label": "variant", "lr": "rate", "at": "branches", "low": "from", "high": "to"}
WHOLE = ("seed", "at")


def spec(figure: Figure, *, ink: str = "currentColor", width: int | str = "container") -> Spec:
    """The chart of a figure as a Vega-Lite specification.

    Args:
        figure: what to draw.
        ink: colour of text and axes; the page lets its own text colour through.
        width: in pixels, or "container" for as wide as there is room.
    """
    layers = CHARTS[figure.kind](figure)
    fields = {field for row in figure.rows for field, value in row.items() if _told(value)}
    fields |= set() if figure.level is None else {"level"}
    drawn = [layer for field, layer in layers.items() if field in fields]
    chart: Spec = alt.layer(*drawn).to_dict()
    look = {"width": width, "height": _height(figure), "config": _look(ink)}
    return {**chart, **look, "datasets": {**chart.get("datasets", {}), POINTS: figure.rows}}


def _told(value: object) -> bool:
    """Whether a point says something in this field; a layer without any is not drawn."""
    return value is not None and value is not False


def _height(figure: Figure) -> int:
    rows = len({row["label"] for row in figure.rows})
    return ROWS[figure.kind] * rows if figure.kind in ROWS else HEIGHT


def _look(ink: str) -> Spec:
    """One theme for all charts: transparent, in the reader's own font."""
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": 12, "titleFontSize": 12,
            "titleFontWeight": "normal"}  # fmt: skip
    lines = {"gridColor": ink, "gridOpacity": 0.12, "domainColor": ink, "domainOpacity": 0.4,
             "tickColor": ink, "tickOpacity": 0.4}  # fmt: skip
    symbols = {"symbolType": "stroke", "symbolOpacity": 1, "symbolStrokeWidth": 2}
    return {
        "background": "transparent",
        "font": "system-ui, sans-serif",
        "view": {"stroke": None},
        "axis": {**text, **lines, "labelLimit": 190},
        "legend": {**text, **symbols, "orient": "top", "labelLimit": 320},
        "rule": {"color": ink},
        "text": {"color": ink},
    }


def _curves(figure: Figure) -> Layers:
    """Mean of the loss over steps, the band over seeds behind it."""
    x = alt.X("step:Q", title="optimizer step", axis=alt.Axis(grid=False, tickCount=6))
    base = _base(figure).encode(x=x)
    told = _tooltip("label", "step", "mean", "low", "high")
    return {
        "level": _level(figure, y=_up("level")),
        "low": base.mark_area(opacity=0.15).encode(y=_up("low"), y2="high:Q"),
        "mean": base.mark_line(**LINE).encode(
            y=_up("mean"), strokeDash=_dash(figure), tooltip=told
        ),
        "diverged": base.mark_point(**CROSS).encode(
            y=_up("diverged"), tooltip=_tooltip("label", "step")
        ),
        "lost": _only(base, "lost")
        .mark_point(**CROSS)
        .encode(y=alt.value(6), tooltip=_tooltip("label", "step")),
    }


def _rates(figure: Figure) -> Layers:
    """Mean of the final loss over the learning rate, with its interval and its seeds."""
    rates = sorted({row["lr"] for row in figure.rows})
    x = alt.X(
        "lr:Q", title="learning rate", scale=alt.Scale(type="log", nice=False, padding=30),
        axis=alt.Axis(values=rates, format="~e", grid=False),
    )  # fmt: skip
    base = _base(figure).encode(x=x)
    told = _tooltip("label", "lr", "mean", "low", "high")
    line = _only(base, "mean").mark_line(**LINE).encode(y=_up("mean"), strokeDash=_dash(figure))
    return {
        "level": _level(figure, y=_up("level")),
        "low": base.mark_rule().encode(y=_up("low"), y2="high:Q"),
        "mean": line + base.mark_point(**MEAN).encode(y=_up("mean"), tooltip=told),
        "loss": base.mark_point(**SEED).encode(
            y=_up("loss"), tooltip=_tooltip("label", "lr", "seed", "loss")
        ),
        "diverged": _only(base, "diverged")
        .mark_point(**CROSS)
        .encode(y=alt.value(6), tooltip=_tooltip("label", "lr", "seed")),
    }


def _finals(figure: Figure) -> Layers:
    """Mean of the final loss for each variant, with its interval and its seeds."""
    order = list(dict.fromkeys(row["label"] for row in figure.rows))
    y = alt.Y("label:N", title=None, sort=order, axis=alt.Axis(grid=True))
    base = _base(figure, legend=False).encode(y=y)
    edge = alt.value(alt.ExprRef("width - 6"))
    return {
        "level": _level(figure, x=_across("level")),
        "low": base.mark_rule().encode(x=_across("low"), x2="high:Q"),
        "mean": base.mark_point(**MEAN).encode(
            x=_across("mean"), tooltip=_tooltip("label", "mean", "low", "high")
        ),
        "loss": base.mark_point(**SEED).encode(
            x=_across("loss"), tooltip=_tooltip("label", "seed", "loss")
        ),
        "diverged": _only(base, "diverged")
        .mark_point(**CROSS)
        .encode(x=edge, tooltip=_tooltip("label", "seed")),
    }


def _depth(figure: Figure) -> Layers:
    """A measured quantity by depth, and behind it what theory predicts."""
    axis = alt.Axis(grid=False, tickMinStep=1, tickCount=6)
    base = _base(figure).encode(x=alt.X("at:Q", title="branches added to the stream", axis=axis))
    values = [row[name] for row in figure.rows for name in ("measured", "predicted") if name in row]
    ticks = alt.Axis(values=_log_ticks(values), format="~g" if max(values) > 0.01 else "~e")

    def rms(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title="RMS", scale=alt.Scale(type="log"), axis=ticks)

    return {
        "predicted": _only(base, "predicted")
        .mark_line(strokeWidth=8, opacity=0.25, strokeCap="round")
        .encode(y=rms("predicted")),
        "measured": _only(base, "measured")
        .mark_line(**LINE)
        .encode(y=rms("measured"), strokeDash=_dash(figure),
                tooltip=_tooltip("label", "at", "measured")),
    }  # fmt: skip


def _lines(figure: Figure) -> Layers:
    """Any quantity over another, and behind it what is predicted."""
    x, y = _axes(figure)
    base = _base(figure).encode(x=_scaled("x", x, grid=False))
    told = [alt.Tooltip("label:N", title=_legend(figure)), alt.Tooltip("x:Q", title=x.title),
            alt.Tooltip("y:Q", title=y.title, format=".4~g")]  # fmt: skip
    return {
        "predicted": _only(base, "predicted")
        .mark_line(strokeWidth=8, opacity=0.25, strokeCap="round")
        .encode(y=_scaled("predicted", y)),
        "y": _only(base, "y")
        .mark_line(**LINE, point=_dots(figure))
        .encode(y=_scaled("y", y), tooltip=told),
        "limit": _limits(y),
    }


def _dots(figure: Figure) -> Spec | bool:
    """Dots on a line, where they do not run into one another and hide what is behind them."""
    places = {row["x"] for row in figure.rows if "x" in row}
    return {"size": 30} if len(places) <= DOTS_AT_MOST else False


def _limits(y: Axis) -> alt.LayerChart | alt.FacetChart:
    """Dotted lines across, each with its name above its right end."""
    base = _only(alt.Chart(alt.NamedData(name=POINTS)), "limit").encode(y=_scaled("limit", y))
    edge = alt.value(alt.ExprRef("width"))
    return alt.layer(
        base.mark_rule(strokeDash=[1, 3], opacity=0.8),
        base.mark_text(align="right", dy=-6).encode(text="label:N", x=edge),
    )


def _grid(figure: Figure) -> Layers:
    """How bad it is, by row and column: a form and a colour in each cell."""
    rows = list(dict.fromkeys(row["label"] for row in figure.rows))
    columns = list(dict.fromkeys(row["column"] for row in figure.rows))
    axis, _ = _axes(figure)
    colours, forms = zip(*CELLS.values(), strict=True)
    cell = f"min(14, 0.8 * width / {len(columns)})"
    small, large = (
        alt.value(alt.ExprRef(f"pow({share} * {cell}, 2)")) for share in (0.6, 1)
    )  # fmt: skip
    legend = alt.Legend(symbolStrokeWidth=0, symbolSize=90, columns=3)
    return {
        "state": _only(alt.Chart(alt.NamedData(name=POINTS)), "state")
        .mark_point(filled=True, opacity=1)
        .encode(
            x=alt.X("column:O", title=axis.title, scale=alt.Scale(domain=columns),
                    axis=alt.Axis(labelAngle=0, labelOverlap="greedy", labelSeparation=6,
                                  grid=False)),
            y=alt.Y("label:N", title=None, scale=alt.Scale(domain=rows),
                    axis=alt.Axis(grid=True)),
            shape=alt.Shape("state:N", title=None, scale=alt.Scale(domain=list(CELLS), range=forms),
                            legend=legend),
            color=alt.Color("state:N", title=None,
                            scale=alt.Scale(domain=list(CELLS), range=colours), legend=legend),
            size=alt.condition(alt.FieldOneOfPredicate("state", list(QUIET)), small, large),
            tooltip=[alt.Tooltip(f"{name}:N", title=title) for name, title in (
                ("label", "check"), ("state", "verdict"), ("where", "where"), ("told", "worst"))],
        )
    }  # fmt: skip


def _marks(figure: Figure) -> Layers:
    """Values by kind: every seed, and their mean."""
    order = list(dict.fromkeys(row["label"] for row in figure.rows))
    _, axis = _axes(figure)
    halves = all(re.search(COMMA, label) for label in order)
    lines = alt.Axis(
        grid=True, labelExpr=f"split(datum.label, /{COMMA}/)", labelOffset=-7 if halves else 0
    )
    base = _base(figure).encode(y=alt.Y("label:N", title=None, sort=order, axis=lines))
    told = [alt.Tooltip("label:N", title=_legend(figure)),
            alt.Tooltip("y:Q", title=axis.title, format=".4~g")]  # fmt: skip
    scaled = _scaled("y", axis, channel=alt.X, grid=False)
    return {
        "level": _level(figure, x=_scaled("level", axis, channel=alt.X, grid=False)),
        "y": base.mark_point(**SEED).encode(x=scaled, tooltip=told),
        "mean": base.mark_point(**MEAN).encode(x=_scaled("mean", axis, channel=alt.X, grid=False)),
    }


def _axes(figure: Figure) -> tuple[Axis, Axis]:
    return figure.x or Axis(""), figure.y or Axis("")


def _legend(figure: Figure) -> str:
    return figure.colour.title if figure.colour else ""


def _scaled(field: str, axis: Axis, *, channel: Any = None, grid: bool = True) -> Any:
    """A channel of a numeric field, linear or logarithmic; x is horizontal unless said."""
    made = channel or (alt.X if field == "x" else alt.Y)
    scale = alt.Scale(type="log") if axis.log else alt.Scale(zero=axis.zero)
    ticks = alt.Axis(
        grid=grid, tickCount=6, format="~g" if axis.log else alt.Undefined,
        tickMinStep=1 if axis.whole else alt.Undefined,
    )  # fmt: skip
    return made(f"{field}:Q", title=axis.title, scale=scale, axis=ticks)


CHARTS: Mapping[str, Callable[[Figure], Layers]] = {
    "curves": _curves,
    "rates": _rates,
    "finals": _finals,
    "stream": _depth,
    "gradient": _depth,
    "lines": _lines,
    "marks": _marks,
    "grid": _grid,
}


def _base(figure: Figure, *, legend: bool = True) -> alt.Chart:
    """What all layers share: the points, a line for each variant, its colour."""
    colour = alt.Color("colour:N", **_channel(figure.colour, COLOURS, legend=legend))
    return alt.Chart(alt.NamedData(name=POINTS)).encode(detail="label:N", color=colour)


def _only(base: alt.Chart, field: str) -> alt.Chart:
    """The points that say something in this field."""
    return base.transform_filter(f"isValid(datum.{field}) && datum.{field} !== false")


def _dash(figure: Figure) -> alt.StrokeDash:
    return alt.StrokeDash("dash:N", **_channel(figure.dash, DASHES))


def _channel(values: Legend | None, looks: Sequence[Any], *, legend: bool = True) -> Spec:
    """Scale and legend of a channel; a continuous scheme where there are more values than looks."""
    if values is None or len(values.values) < 2:
        return {"legend": None}
    count = len(values.values)
    look = {"range": list(looks[:count])} if count <= len(looks) else {"scheme": SCHEME}
    columns = _columns(values.values)
    return {
        "scale": alt.Scale(domain=values.values, **look),
        "legend": alt.Legend(title=values.title, columns=columns) if legend else None,
    }


def _columns(labels: Sequence[str]) -> alt.ExprRef:
    """How many entries of a legend stand side by side."""
    return alt.ExprRef(f"max(1, floor(width / {ENTRY + LETTER * _longest(labels)}))")


def _longest(labels: Sequence[str]) -> int:
    """Letters of the longest label; a Chinese character takes the room of two."""
    return max(sum(1 if letter.isascii() else 2 for letter in label) for label in labels)


def _level(figure: Figure, **channel: alt.X | alt.Y) -> alt.Chart:
    """A dotted line at a loss to compare with."""
    data = alt.InlineData(values=[{"level": figure.level}])
    line: alt.Chart = alt.Chart(data).mark_rule(strokeDash=[1, 3], opacity=0.8).encode(**channel)
    return line


def _up(field: str) -> alt.Y:
    return alt.Y(f"{field}:Q", title="nats a token", scale=alt.Scale(zero=False))


def _across(field: str) -> alt.X:
    axis = alt.Axis(grid=False, tickCount=6)
    return alt.X(f"{field}:Q", title="nats a token", scale=alt.Scale(zero=False), axis=axis)


def _log_ticks(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 of every decade in reach, or only 1 where there are many decades."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = (1, 2, 5) if high - low <= 3 else (1,)
    return [float(f"{step}e{power}") for power in range(low, high + 1) for step in steps]


def _tooltip(*fields: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(**_tip(field)) for field in fields]


def _tip(field: str) -> Spec:
    kind = "nominal" if field == "label" else "quantitative"
    digits = {} if field == "label" else {"format": "d" if field in WHOLE else ".4~g"}
    return {"field": field, "type": kind, "title": TITLES.get(field, field), **digits}
