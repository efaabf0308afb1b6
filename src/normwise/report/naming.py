"""How the variants of a grid are told apart: in words, and by colour and dash."""

from collections.abc import Iterable, Sequence
from typing import Any

from normwise.report.document import Figure, Legend
from normwise.report.spelling import rate

AXIS_TITLES = {"warmup": "warm-up", "depth": "layers", "lr": "rate"}
# Values of these say by themselves what they are.
SPEAKING = ("placement", "norm", "optimizer")
# More dashes than these no reader tells apart.
DASHES_AT_MOST = 5


def axis_title(axis: str) -> str:
    """A setting as people call it."""
    return AXIS_TITLES.get(axis, axis.replace("_", " "))


def varying(points: Sequence[dict[str, Any]]) -> list[str]:
    """Axes on which the points differ, or the placement where they differ on none."""
    axes = [axis for axis in points[0] if len(_values(points, axis)) > 1]
    return axes or ["placement"]


def telling(points: Sequence[dict[str, Any]]) -> list[str]:
    """As few axes as tell all points apart, the placement first.

    >>> telling([{"init": "a", "placement": "pre"}, {"init": "b", "placement": "post"}])
    ['placement']
    """
    chosen: list[str] = []
    told = 1
    for axis in sorted(varying(points), key=lambda axis: axis != "placement"):
        groups = len({tuple(str(point[name]) for name in [*chosen, axis]) for point in points})
        if groups > told or not chosen:
            chosen, told = [*chosen, axis], groups
        if told == len(points):
            break
    return chosen


def label(point: dict[str, Any], axes: Iterable[str]) -> str:
    """A point in a few words: deep_norm, warm-up 150."""
    return ", ".join(_phrase(axis, point[axis]) for axis in axes)


class Naming:
    """The words, the colours and the dashes of these points.

    The axis with most values gets the colours, the next one the dashes, and the rest divide the
    points among several figures.
    """

    def __init__(self, points: Sequence[dict[str, Any]]) -> None:
        self.axes = telling(points)
        by_size = sorted(self.axes, key=lambda axis: -len(_values(points, axis)))
        dashed = [axis for axis in by_size[1:] if len(_values(points, axis)) <= DASHES_AT_MOST]
        self._colour, self._dash = by_size[0], dashed[0] if dashed else None
        self._panel = [axis for axis in by_size[1:] if axis != self._dash]
        self.colour = Legend(axis_title(self._colour), _values(points, self._colour))
        self.dash = Legend(axis_title(self._dash), _values(points, self._dash)) \
            if self._dash else None  # fmt: skip

    def _channels(self, point: dict[str, Any]) -> dict[str, str]:
        """Label, colour and dash of a point, as a row of a figure has them."""
        dash = {"dash": str(point[self._dash])} if self._dash else {}
        return {
            "label": label(point, self.axes), "colour": str(point[self._colour]), **dash
        }  # fmt: skip

    def figures(
        self,
        kind: str,
        title: str,
        points: Iterable[tuple[dict[str, Any], list[dict[str, Any]]]],
        *,
        caption: str,
        level: float | None = None,
    ) -> list[Figure]:
        """The points with their rows as figures, one for each panel that has any."""
        panels: dict[str, list[dict[str, Any]]] = {}
        for point, rows in points:
            channels = self._channels(point)
            panel = label(point, self._panel)
            panels.setdefault(panel, []).extend({**channels, **row} for row in rows)
        return [
            Figure(
                name=kind if number == 1 else f"{kind}-{number}",
                kind=kind,
                title=f"{title}: {panel}" if panel else title,
                rows=rows,
                colour=self.colour,
                dash=self.dash,
                level=level,
                caption=caption,
            )
            for number, (panel, rows) in enumerate(panels.items(), start=1)
            if rows
        ]


def _values(points: Sequence[dict[str, Any]], axis: str) -> list[str]:
    """The values on an axis as text, each once."""
    return list(dict.fromkeys(str(point[axis]) for point in points))


def _phrase(axis: str, value: Any) -> str:
    if axis in SPEAKING:
        return str(value)
    return f"{axis_title(axis)} {rate(float(value)) if axis == 'lr' else value}"
