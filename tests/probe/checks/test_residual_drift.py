"""Growth of the stream since the end of the warm-up."""

import pytest

from normwise.probe.checks.residual_drift import CHECK
from normwise.probe.findings import Unmeasured
from normwise.probe.record import Record
from tests.probe.runs import point, readings, record, severity, stack, told


def at(step: int, *sizes: float) -> Record:
    """A record whose stream has these RMS."""
    return record(step, stacks=[stack([point(size) for size in sizes])])


def grown(factor: float) -> list[Record]:
    return [at(200, 0.5, 1.0, 2.0), at(400, 0.5, 1.0, 2.0 * factor)]


@pytest.mark.parametrize(
    ("factor", "found"), [(9.9, "ok"), (11.0, "warn"), (90.0, "warn"), (110.0, "fail")]
)
def test_a_stream_that_grows_on(factor: float, found: str) -> None:
    assert severity(CHECK, *grown(factor), warmup=150) == found


def test_growth_is_told_by_layer() -> None:
    entry, layer = readings(CHECK, *grown(11.0), warmup=150)
    assert (entry.value, entry.layer, entry.where) == (1.0, None, "the entry")
    assert (layer.value, layer.layer, layer.where) == (
        pytest.approx(11.0),
        0,
        "the stream after layer 0",
    )
    assert layer.note == "RMS 22 now, 2 in the first record after the warm-up, of step 200."


def test_what_grew_in_the_warm_up_does_not_count() -> None:
    """A standard initialisation starts tiny and grows."""
    records = [at(0, 0.02, 0.02), at(100, 0.1, 0.5), at(200, 0.2, 2.0), at(400, 0.2, 3.0)]
    assert severity(CHECK, *records, warmup=200) == "ok"
    assert [one.value for one in readings(CHECK, *records, warmup=200)] == [1.0, 1.5]


def test_without_a_warm_up_the_reference_is_told() -> None:
    records = [at(0, 0.02, 0.02), at(100, 0.1, 0.5), at(150, 0.2, 2.0), at(400, 0.2, 3.0)]
    _, layer = readings(CHECK, *records)
    assert layer.value == pytest.approx(6.0)
    assert "the first record after step 100, of step 100" in layer.note


def test_too_early_there_is_nothing_to_compare_with() -> None:
    for records in ([at(0, 1.0), at(90, 1.0)], [at(0, 1.0), at(150, 1.0)]):
        (one,) = told(CHECK, *records)
        assert isinstance(one, Unmeasured)
    (one,) = told(CHECK, *grown(11.0), warmup=500)
    assert isinstance(one, Unmeasured)
    assert "step 500 is not over" in one.why


def test_points_that_were_not_seen_are_left_out() -> None:
    gaps = [
        record(step, stacks=[stack([None, point(0.0), point(1.0)])]) for step in (200, 400)
    ]  # fmt: skip
    assert [one.layer for one in readings(CHECK, *gaps)] == [0]
