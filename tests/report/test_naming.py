"""How variants are told apart."""

import itertools
from typing import Any

from normwise.report.document import Legend
from normwise.report.naming import Naming, label, telling, varying

Point = dict[str, Any]


def grid(**axes: tuple[Any, ...]) -> list[Point]:
    """Every combination, with a norm that does not vary."""
    return [
        {"norm": "layer_norm", **dict(zip(axes, values, strict=True))}
        for values in itertools.product(*axes.values())
    ]


def test_axes_that_vary() -> None:
    assert varying(grid(placement=("pre", "post"), warmup=(0,))) == ["placement"]
    assert varying(grid(placement=("pre",), warmup=(0,))) == ["placement"]


def test_an_axis_that_follows_from_another_tells_nothing() -> None:
    points = [
        {"placement": placement, "init": init, "warmup": warmup}
        for placement, init in (("pre", "a"), ("deep", "b"))
        for warmup in (0, 150)
    ]
    assert telling(points) == ["placement", "warmup"]


def test_an_axis_that_does_tell_is_kept() -> None:
    points = [*grid(placement=("post",), init=("a", "b")), *grid(placement=("pre",), init=("a",))]
    assert telling(points) == ["placement", "init"]


def test_numbers_say_what_they_are_and_names_speak() -> None:
    point = {"placement": "deep_norm", "warmup": 150, "depth": 12, "ff_ratio": 4.0, "init": "gpt2"}
    assert label(point, point) == (
        "deep_norm, warm-up 150, layers 12, ff ratio 4.0, init gpt2"
    )  # fmt: skip


def test_the_axis_with_most_values_is_the_colour() -> None:
    naming = Naming(grid(placement=("pre", "post"), warmup=(0, 10, 20)))
    assert naming.colour == Legend("warm-up", ["0", "10", "20"])
    assert naming.dash == Legend("placement", ["pre", "post"])


def test_one_point_has_no_dash() -> None:
    naming = Naming(grid(placement=("pre",)))
    assert naming.colour == Legend("placement", ["pre"]) and naming.dash is None


def test_a_third_axis_makes_a_figure_each() -> None:
    points = grid(placement=("a", "b", "c"), warmup=(0, 150), depth=(6, 12))
    naming = Naming(points)
    figures = naming.figures("curves", "Loss", [(p, [{"y": 1}]) for p in points], caption="c")
    assert [figure.name for figure in figures] == ["curves", "curves-2"]
    assert [figure.title for figure in figures] == ["Loss: layers 6", "Loss: layers 12"]
    assert all(len(figure.rows) == 6 for figure in figures)
    assert figures[0].rows[0] == {
        "label": "a, warm-up 0, layers 6", "colour": "a", "dash": "0", "y": 1
    }  # fmt: skip
