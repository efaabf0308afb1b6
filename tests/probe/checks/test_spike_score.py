"""Jumps of the loss are counted, smooth curves have none; and log Z that drifts is seen."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import normwise as nw
from normwise.probe.checks.spike_score import (
    CHECK,
    jump,
    leaves_band,
    left_band,
    spike_score,
)
from normwise.probe.findings import Reading, Unmeasured
from normwise.probe.preflight import check
from tests.probe.runs import output, readings, record, severity, told


def noise(steps: int = 1000, mean: float = 3.0, sigma: float = 0.05, seed: int = 0) -> list[float]:
    generator = np.random.default_rng(seed)
    return list(mean + sigma * generator.standard_normal(steps))


def spiked(count: int, steps: int = 1000, sigmas: float = 12.0) -> list[float]:
    """Noise with well separated outliers in its second half."""
    values = noise(steps)
    for at in range(count):
        values[steps // 2 + at * (steps // 2) // max(count, 1)] = 3.0 + sigmas * 0.05
    return values


def losses(values: list[float]) -> list[tuple[int, float]]:
    return list(enumerate(values))


def score(values: list[float]) -> Reading:
    """The reading of the loss."""
    found = readings(CHECK, record(len(values)), losses=losses(values))
    return next(one for one in found if one.where == "the loss")


@pytest.mark.parametrize(
    ("count", "wanted", "found"),
    [(0, 0.0, "ok"), (1, 0.1, "ok"), (2, 0.2, "warn"), (4, 0.4, "warn"), (5, 0.5, "fail")],
)
def test_spikes_are_counted(count: int, wanted: float, found: str) -> None:
    one = score(spiked(count))
    assert (one.value, one.severity) == (wanted, found)
    assert spike_score(spiked(count)) == wanted


def test_seven_sigma_are_the_limit() -> None:
    values = [3.0 + 0.05 * (-1) ** at for at in range(1000)]  # sigma is 0.05
    for sigmas, wanted in ((6.98, 0.0), (7.02, 0.1)):
        values[999] = 3.0 + 0.05 * sigmas
        assert spike_score(values) == wanted


def test_only_jumps_upward_count() -> None:
    assert spike_score(spiked(5, sigmas=-12.0)) == 0.0


def test_a_short_run_is_held_to_six_sigma_of_128() -> None:
    assert score(spiked(1, 400)).value == 0.1  # of 1000 steps: one spike alone is no finding
    assert score(spiked(2, 400)).severity == "warn"
    assert "6 sigma above the 128 before" in score(spiked(1, 400)).quantity
    assert "7 sigma above the 1000 before" in score(spiked(1)).quantity


@pytest.mark.parametrize("seed", range(5))
def test_clean_noise_is_silent(seed: int) -> None:
    for steps in (200, 3000):
        assert spike_score(noise(steps, seed=seed)) == 0.0
        assert left_band(losses(noise(steps, seed=seed))) is None


CURVES = {
    "falls": [2.0 + 4.0 * math.exp(-at / 300.0) for at in range(2000)],
    "constant": [2.0] * 2000,
    "falls, noisy": [v + 2.0 * math.exp(-at / 300.0) for at, v in enumerate(noise(2000))],
    "rises slowly": [v + 0.3 * min(1.0, at / 1000.0) for at, v in enumerate(noise(2000))],
    "turns": [2.0 + (at / 1000.0 - 1.0) ** 2 for at in range(2000)],
}


@pytest.mark.parametrize("name", CURVES)
def test_a_smooth_curve_is_silent(name: str) -> None:
    assert spike_score(CURVES[name]) == 0.0
    assert left_band(losses(CURVES[name])) is None


def test_a_small_ripple_on_a_smooth_curve_is_none() -> None:
    values = [2.0] * 500
    values[400] = 2.05  # 2.5 %, and the limit is 6 times 0.5 %
    assert left_band(losses(values)) is None
    values[400] = 2.07
    assert left_band(losses(values)) == 400


def test_the_first_step_that_leaves_its_band() -> None:
    values = noise(600)
    values[300], values[420] = 3.6, 3.8
    assert left_band(losses(values)) == 300
    one = jump(losses(values))
    assert one is not None
    assert (one.step, one.value, one.severity) == (300, 3.6, "warn")
    values[250] = math.inf
    assert left_band(losses(values)) == 250
    assert left_band([]) is None
    assert jump(losses(noise(600))) is None


@pytest.mark.parametrize("at", [0, 20, 100, 300, 599])
def test_the_last_loss_is_judged_like_the_first(at: int) -> None:
    values = noise(at + 1)
    for last, leaves in ((3.0, False), (3.6, at > 32), (math.nan, True)):
        values[at] = last
        assert leaves_band(losses(values)) is leaves
        assert left_band(losses(values)) == (at if leaves else None)
    assert leaves_band([]) is False


def test_a_loss_that_is_no_number_fails_and_is_no_spike() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        values = noise(500)
        values[321] = bad
        found = readings(CHECK, record(500), losses=losses(values))
        assert [(one.where, one.severity) for one in found] == [
            ("every loss", "fail"), ("the loss", "ok"),
        ]  # fmt: skip
        assert "step 321" in found[0].note


def test_a_huge_loss_hides_no_later_spike() -> None:
    values = spiked(2)
    values[200] = 1e30
    assert spike_score(values[:500]) == 0.1
    late = [*values, *noise(1500)]
    late[2300] = 3.6
    assert spike_score(late) == pytest.approx(100.0 * 2 / 2500)  # those at 500 and 750 are hidden


def test_gradient_norms_have_the_wide_band_in_a_short_run_too() -> None:
    norms = [one + (0.2 if at < 200 else 0.0) for at, one in enumerate(noise(400))]
    norms[399] = 3.0 + 7.0 * 0.05  # 7 sigma of the 128 before, 3 of the whole
    assert spike_score(norms) == 0.1
    found = readings(CHECK, record(399), gradient_norms=losses(norms))
    (one,) = [one for one in found if one.where == "the gradient"]
    assert one.value == 0.0
    assert "7 sigma above the 1000 before" in one.quantity


def test_gradient_norms_are_scored_too() -> None:
    norms = spiked(5, 1000)
    norms[950] = math.inf  # a step that the loss scaler left out
    found = readings(CHECK, record(999), gradient_norms=losses(norms), losses=losses(noise()))
    assert [(one.where, one.severity) for one in found[1:]] == [
        ("the loss", "ok"), ("the gradient", "fail"),
    ]  # fmt: skip


def test_too_few_losses_are_not_measured() -> None:
    for count in (0, 5):
        assert isinstance(told(CHECK, record(0), losses=losses(noise(count)))[-1], Unmeasured)


def drifting(rise: float, largest: float, records: int = 11) -> str:
    """Of a training whose log Z rises by so much over its second half."""
    steps = [100 * at for at in range(records)]
    made = [
        record(step, output=output(largest, 3.0 + rise * step / 500.0)) for step in steps
    ]  # fmt: skip
    return severity(CHECK, *made, losses=losses(noise()))


@pytest.mark.parametrize(
    ("rise", "largest", "found"),
    [(1.1, 70.0, "warn"), (0.9, 70.0, "ok"), (9.0, 60.0, "ok"), (-9.0, 70.0, "ok")],
)
def test_log_z_that_drifts_away(rise: float, largest: float, found: str) -> None:
    assert drifting(rise, largest) == found


class Shifted(nw.Transformer):
    """Adds one number to all of its logits."""

    shift = 0.0

    def forward(self, input_ids: Tensor) -> Tensor:
        return super().forward(input_ids) + self.shift


def test_a_log_z_that_is_no_number_is_left_out() -> None:
    made = [record(100 * at, output=output(70.0, 3.0)) for at in range(10)]
    made.append(record(1000, output=output(math.inf, math.inf)))
    (one,) = [one for one in readings(CHECK, *made) if one.where == "log Z"]
    assert one.value == 0.0


def test_a_constant_on_all_logits_shows_in_log_z_alone() -> None:
    """The loss does not see it."""
    ids = torch.randint(0, 256, (2, 32), generator=torch.Generator().manual_seed(0))
    model = Shifted(nw.TransformerConfig(depth=2), seed=0)
    made, seen = [], []
    for at in range(6):
        model.shift = 20.0 * at
        seen.append(F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).item())
        made.append(record(100 * at, output=check(model, ids, checks=[]).record.output))
    assert seen == pytest.approx([seen[0]] * 6, rel=1e-5)
    log_z = [one.output.log_z for one in made if one.output]
    assert log_z == pytest.approx([log_z[0] + 20.0 * at for at in range(6)], rel=1e-5)
    later = [*made, *[record(500 + at, output=made[-1].output) for at in range(3)]]
    (one,) = [one for one in readings(CHECK, *later) if one.where == "log Z"]
    assert one.value > 10.0
    assert one.severity == "warn"
