"""How variants are told apart."""

import itertools
from typing import Any

from normwise.report.document import Legend
from normwise.report.naming import Naming, axis_title, label, telling, varying

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


def test_settings_have_the_names_that_people_use() -> None:
    names = {"warmup": "warm-up", "depth": "layers", "lr": "rate", "batch_size": "batch size"}
    assert {axis: axis_title(axis) for axis in names} == names


def test_points_that_do_not_differ_are_named_by_their_placement() -> None:
    assert label(*named([{"norm": "rms_norm", "placement": "pre_norm"}])) == "pre_norm"


def named(points: list[Point]) -> tuple[Point, list[str]]:
    return points[0], telling(points)


def test_the_placement_comes_first_and_no_two_points_have_one_label() -> None:
    points = grid(depth=(6, 12), placement=("pre", "post"), warmup=(0, 10))
    axes = telling(points)
    assert axes[0] == "placement"
    assert len({label(point, axes) for point in points}) == len(points)


def test_a_panel_without_rows_is_no_figure() -> None:
    points = grid(placement=("a", "b", "c"), warmup=(0, 150), depth=(6, 12))
    filled = [(p, [{"y": 1}] if p["depth"] == 12 else []) for p in points]
    (figure,) = Naming(points).figures("curves", "Loss", filled, caption="c", level=3.25)
    assert figure.title == "Loss: layers 12"
    assert (figure.kind, figure.caption, figure.level) == ("curves", "c", 3.25)


def test_all_figures_share_their_colours() -> None:
    """A value that one panel lacks keeps its colour in the other."""
    points = [p for p in grid(placement=("a", "b", "c"), warmup=(0, 150), depth=(6, 12))
              if (p["placement"], p["depth"]) != ("a", 12)]  # fmt: skip
    figures = Naming(points).figures("curves", "", [(p, [{"y": 1}]) for p in points], caption="")
    assert [figure.colour for figure in figures] == [Legend("placement", ["a", "b", "c"])] * 2
