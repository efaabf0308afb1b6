"""Learning rates read from the optimizer, resuming, and which parameters decay."""

import io
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from normwise.errors import SettingError, UnknownName
from normwise.model.config import TransformerConfig
from normwise.model.transformer import Transformer
from normwise.schedules import (
    RISES,
    SCHEDULES,
    Schedule,
    one_cycle,
    parameter_groups,
    set_rate,
    untuned_warmup,
)
from normwise.theory.scaling import noam_peak_rate

NAMES = sorted(SCHEDULES)
ONE_BASED = [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]
ZERO_BASED = [0.0, *ONE_BASED]


def optimizer(peak: float = 1.0) -> torch.optim.Optimizer:
    """SGD over two groups, the second at half the peak."""
    first, second = (nn.Parameter(torch.ones(3)) for _ in range(2))
    groups = [{"params": [first]}, {"params": [second], "lr": peak / 2}]
    return torch.optim.SGD(groups, lr=peak, momentum=0.9)


def rates(
    schedule: Schedule, optimizer: torch.optim.Optimizer, steps: range
) -> list[tuple[float, ...]]:
    """Rates of all groups as the optimizer holds them before each of its steps."""
    seen = []
    for step in steps:
        set_rate(optimizer, schedule, step)
        seen.append(tuple(group["lr"] for group in optimizer.param_groups))
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return seen


def firsts(schedule: Schedule, peak: float = 1.0) -> list[float]:
    return [rate[0] for rate in rates(schedule, optimizer(peak), range(schedule.steps))]


# google-research/bert#1293; verl-project/verl#3674; torchtitan PR#1261, PR#1010
@pytest.mark.parametrize(
    ("first_step", "steps", "expected"), [("one", 10, ONE_BASED), ("zero", 11, ZERO_BASED)]
)
@pytest.mark.parametrize("peak", [1.0, 3e-4])
def test_P52_warm_up_hold_and_decay(
    first_step: str, steps: int, expected: list[float], peak: float
) -> None:
    """P52: W = 4, hold 2, decay 4, read from the optimizer before its step."""
    schedule = Schedule("linear", steps, warmup=4, hold=2, first_step=first_step)
    assert firsts(schedule, peak) == pytest.approx([peak * value for value in expected], rel=1e-12)


def test_P52_the_first_step_is_not_wasted() -> None:
    """P52: torch's idiom k/4 starts at 0; ours does so only when asked."""
    assert firsts(Schedule("constant", 5, warmup=4)) == [0.25, 0.5, 0.75, 1.0, 1.0]
    asked = firsts(Schedule("constant", 5, warmup=4, first_step="zero"))
    assert asked == [0.0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("warmup", [1, 2, 7])
@pytest.mark.parametrize("name", NAMES)
def test_P52_the_peak_is_reached_and_never_passed(name: str, warmup: int) -> None:
    """P52: the last of W steps is at the peak, to the last bit."""
    values = firsts(Schedule(name, 20, warmup=warmup))
    assert max(values) == values[warmup - 1] == 1.0
    assert values[:warmup] == pytest.approx([(k + 1) / warmup for k in range(warmup)])


def test_every_group_keeps_its_own_peak() -> None:
    seen = rates(Schedule("linear", 10, warmup=4, hold=2), optimizer(), range(10))
    assert [second / first for first, second in seen] == [0.5] * 10


def test_set_rate_gives_the_first_groups_rate() -> None:
    held = optimizer(0.02)
    assert set_rate(held, Schedule("constant", 4, warmup=4), 1) == 0.01
    assert held.param_groups[0]["lr"] == 0.01


# transformers#28835; CUNY-CL/yoyodyne PR#300; tdrussell/qlora-pipe PR#3; ParlAI PR#1386
@pytest.mark.parametrize("first_step", ["one", "zero"])
@pytest.mark.parametrize("floor", [0.0, 0.1])
@pytest.mark.parametrize("steps", [1, 2, 10])
@pytest.mark.parametrize("name", NAMES)
def test_P53_without_warm_up_the_first_step_is_at_the_peak(
    name: str, steps: int, floor: float, first_step: str
) -> None:
    """P53: full rate at step 0, and finite everywhere, also past the end."""
    schedule = Schedule(name, steps, floor=floor, first_step=first_step)
    assert schedule(0) == 1.0
    assert all(math.isfinite(schedule(step)) for step in range(3 * steps + 10))


def test_P53_inverse_sqrt_without_warm_up() -> None:
    """P53: 1/sqrt(k) from the first step on."""
    values = firsts(Schedule("inverse_sqrt", 5))
    assert values == pytest.approx([k**-0.5 for k in range(1, 6)], rel=1e-12)


def test_P53_noam() -> None:
    """P53: d = 512, W = 4000: 1.746928e-7 at step 1, 6.987712e-4 at step 4000."""
    # Vaswani et al. 2017, equation 3, with steps from 1
    peak = noam_peak_rate(512, 4000)
    schedule = Schedule("inverse_sqrt", 100_000, warmup=4000)
    assert peak * schedule(0) == pytest.approx(1.746928e-7, rel=1e-6)
    assert peak * schedule(3999) == pytest.approx(6.987712e-4, rel=1e-6)
    for step in (1, 17, 3999, 4000, 4001, 20_000, 100_000):
        noam = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert peak * schedule(step - 1) == pytest.approx(noam, rel=1e-12)


def saved_and_loaded(state: dict[str, object]) -> dict[str, object]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded: dict[str, object] = torch.load(buffer, weights_only=True)
    return loaded


# pytorch#60265; ultralytics/yolov5#292; IntelLabs/distiller#70
@pytest.mark.parametrize("route", [dict, saved_and_loaded], ids=["memory", "file"])
@pytest.mark.parametrize("peak_of_the_new", [3e-4, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_P54_resume_gives_the_same_rates(
    name: str, peak_of_the_new: float, route: Callable[[dict[str, object]], dict[str, object]]
) -> None:
    """P54: saved at step 5 of 10 and loaded into a fresh optimizer, the same to the last bit."""
    schedule = Schedule(name, 10, warmup=3, floor=0.05)
    unbroken = rates(schedule, optimizer(3e-4), range(10))
    before = optimizer(3e-4)
    head = rates(schedule, before, range(5))
    after = optimizer(peak_of_the_new)
    after.load_state_dict(route(before.state_dict()))
    assert tuple(group["lr"] for group in after.param_groups) == unbroken[4]  # no silent reset
    assert head + rates(schedule, after, range(5, 10)) == unbroken


def test_P54_a_peak_taken_from_the_present_rate_is_seen() -> None:
    """P54, negative control: without the kept peak the rate jumps after loading."""
    schedule = Schedule("linear", 10, warmup=3)
    before = optimizer()
    rates(schedule, before, range(5))
    state = before.state_dict()
    for group in state["param_groups"]:
        del group["initial_lr"]
    after = optimizer()
    after.load_state_dict(state)
    assert rates(schedule, after, range(5, 6)) != rates(schedule, optimizer(), range(5, 6))


def accumulated_rates(schedule: Schedule, accumulate: int) -> list[float]:
    held, seen = optimizer(), []
    for micro_batch in range(schedule.steps * accumulate):
        if micro_batch % accumulate == 0:
            seen.append(set_rate(held, schedule, micro_batch // accumulate))
        if (micro_batch + 1) % accumulate == 0:
            held.step()
    return seen


@pytest.mark.parametrize("accumulate", [1, 2, 8])
def test_P55_the_schedule_counts_optimizer_steps(accumulate: int) -> None:
    """P55: the rates depend on the step alone, whatever is accumulated in it."""
    # accelerate#963, #1382, PR#999; transformers#18436; diffusers#9633
    schedule = Schedule("linear", 10, warmup=4, hold=2)
    assert accumulated_rates(schedule, accumulate) == pytest.approx(ONE_BASED, rel=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 5, 300])
@pytest.mark.parametrize("warmup", [0, 1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_no_step_is_spent_at_zero_and_the_decay_never_turns(
    name: str, warmup: int, steps: int
) -> None:
    schedule = Schedule(name, max(steps, warmup), warmup=warmup)
    values = [schedule(step) for step in range(schedule.steps)]
    assert min(values) > 0.0
    decay = values[max(warmup - 1, 0) :]
    assert decay == sorted(decay, reverse=True)
    if name != "constant":
        assert len(set(decay)) == len(decay)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_the_floor_is_where_the_decay_ends(name: str) -> None:
    schedule = Schedule(name, 1000, warmup=10, floor=0.1)
    values = [schedule(step) for step in range(10, 1000)]
    assert min(values) > 0.1
    assert values[-1] == pytest.approx(0.1, abs=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_floor_of_one_is_constant(name: str) -> None:
    assert {Schedule(name, 20, floor=1.0)(step) for step in range(20)} == {1.0}


def test_cosine_is_half_a_cosine() -> None:
    values = firsts(Schedule("cosine", 4))
    expected = [(1 + math.cos(math.pi * k / 4)) / 2 for k in range(4)]
    assert values == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"warmup": 11},
            "Warm-up and hold must fit into the run. There are 10 steps, 11 of warm-up and 0 of "
            "hold. Shorten one of them.",
        ),
        (
            {"warmup": 6, "hold": 5},
            "Warm-up and hold must fit into the run. There are 10 steps, 6 of warm-up and 5 of "
            "hold. Shorten one of them.",
        ),
        (
            {"warmup": -1},
            "A schedule needs at least one step and no negative ones. There are 10 steps, "
            "-1 of warm-up and 0 of hold.",
        ),
        (
            {"hold": -2},
            "A schedule needs at least one step and no negative ones. There are 10 steps, "
            "0 of warm-up and -2 of hold.",
        ),
        (
            {"warmup": 10, "first_step": "zero"},
            "Warm-up and hold must fit into the run. There are 10 steps, "
            "10 of warm-up and 0 of hold. Shorten one of them.",
        ),
        ({"floor": 1.5}, "floor is a share of the peak, from 0 to 1. It is 1.5."),
        ({"floor": -0.1}, "floor is a share of the peak, from 0 to 1. It is -0.1."),
        ({"floor": math.nan}, "floor is a share of the peak, from 0 to 1. It is nan."),
        ({"first_step": "two"}, 'first_step must be "one" or "zero". It is \'two\'.'),
    ],
)
def test_what_cannot_be_scheduled_is_told(options: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError) as raised:
        Schedule("linear", 10, **options)  # type: ignore[arg-type]
    assert str(raised.value) == message


def test_an_unknown_schedule_names_the_known_ones() -> None:
    with pytest.raises(UnknownName) as raised:
        Schedule("cosin", 10)
    assert str(raised.value) == (
        "Unknown schedule 'cosin'. Did you mean cosine? "
        "Known: constant, cosine, inverse_sqrt, linear."
    )
    assert Schedule("Inverse-Sqrt", 10).name == "inverse_sqrt"


class RMSNorm(nn.Module):
    """Someone's own, with a gain for each head."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))


class T5LayerNorm(RMSNorm):
    pass


class Named(nn.Module):
    """Norms under five names, a tied head, a frozen matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.LayerNorm = nn.LayerNorm(6)
        self.layer_norm = nn.LayerNorm((2, 3))
        self.norm = nn.RMSNorm(6)
        self.ln_f = nn.GroupNorm(2, 6)
        self.layernorm = nn.BatchNorm1d(6)
        self.own = RMSNorm(2, 3)
        self.other = T5LayerNorm(4, 3)
        self.normal_projection = nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, 11)
        self.head.weight = self.embedding.weight


NORM_ATTRIBUTES = ("LayerNorm", "layer_norm", "norm", "ln_f", "layernorm", "own", "other")


def ids(groups: list[dict[str, object]], decay: float) -> list[int]:
    parameters: Iterator[Tensor] = (
        p
        for group in groups
        if group["weight_decay"] == decay
        for p in group["params"]  # type: ignore[attr-defined]
    )
    return [id(p) for p in parameters]


# transformers PR#35927, #16908, #4360; DeepSpeedExamples PR#755; Lightning-AI/lit-llama#254
def test_P51_norms_and_biases_do_not_decay_whatever_their_name() -> None:
    """P51: by module and shape; embeddings and linear matrices decay."""
    model = Named()
    groups = parameter_groups(model, 0.1)
    decayed = {id(p) for p in (model.embedding.weight, model.normal_projection.weight)}
    assert set(ids(groups, 0.1)) == decayed
    plain = [p for name in NORM_ATTRIBUTES for p in getattr(model, name).parameters()]
    plain += [model.normal_projection.bias, model.head.bias]
    assert set(ids(groups, 0.0)) == {id(p) for p in plain}


def test_P51_every_trainable_parameter_is_in_exactly_one_group() -> None:
    """P51: a tied matrix once, a frozen one never."""
    model = Named()
    groups = parameter_groups(model, 0.1)
    found = ids(groups, 0.1) + ids(groups, 0.0)
    assert len(found) == len(set(found))
    assert set(found) == {id(p) for p in model.parameters() if p.requires_grad}
    torch.optim.AdamW(groups, lr=1e-3)


def test_P51_grouping_by_the_string_layernorm_is_seen() -> None:
    """P51, negative control: the reported rule leaves most of these norms in the decayed group."""
    model = Named()
    by_name = {
        name for name, _ in model.named_parameters() if "LayerNorm" in name or "bias" in name
    }
    wrong = [f"{name}.weight" for name in NORM_ATTRIBUTES if f"{name}.weight" not in by_name]
    assert len(wrong) == 6


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("query_key_norm", ["none", "head"])
def test_P51_the_models_of_this_package(norm: str, query_key_norm: str) -> None:
    """P51: exactly the matrices that an initialisation draws decay."""
    config = TransformerConfig(
        depth=2, width=16, heads=2, norm=norm, query_key_norm=query_key_norm, tied_head=True
    )
    model = Transformer(config, seed=0)
    groups = parameter_groups(model, 0.1)
    assert set(ids(groups, 0.1)) == {id(weight.tensor) for weight in model.weights()}
    count = sum(p.numel() for group in groups for p in group["params"])  # type: ignore[attr-defined]
    assert count == sum(p.numel() for p in model.parameters())


def test_P51_empty_groups_are_left_out() -> None:
    """P51: torch refuses an optimizer over an empty group of parameters."""
    assert [g["weight_decay"] for g in parameter_groups(nn.Linear(3, 3, bias=False), 0.1)] == [0.1]
    assert [g["weight_decay"] for g in parameter_groups(nn.LayerNorm(3), 0.1)] == [0.0]
    assert parameter_groups(nn.Linear(3, 3).requires_grad_(False), 0.1) == []


# Ma and Yarats 2019 (1910.04209), sections 5.1 and 5.2
def test_untuned_warm_up_of_adam() -> None:
    assert [untuned_warmup(beta2) for beta2 in (0.9, 0.98, 0.999)] == [20, 100, 2000]
    linear = Schedule("constant", steps=3000, warmup=untuned_warmup(0.999))
    assert [linear(step) for step in (0, 999, 1999, 2999)] == [1 / 2000, 0.5, 1.0, 1.0]
    exponential = Schedule("constant", 3000, untuned_warmup(0.999), rise="exponential")
    expected = [1 - math.exp(-(1 - 0.999) * (step + 1)) for step in (0, 999, 2999)]
    assert [exponential(step) for step in (0, 999, 2999)] == pytest.approx(expected, rel=1e-12)
    with pytest.raises(SettingError, match=r"in \[0, 1\)\. It is 1\.0\.$"):
        untuned_warmup(1.0)


def test_the_first_updates_of_adam_are_the_reason() -> None:
    """Median |update| of independent gradients: 1 at the first step, 0.157 at the 40th, 0.155 in
    the end, at beta1 = 0.9 and beta2 = 0.999.
    """
    generator = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(torch.zeros(20_000))
    adam = torch.optim.Adam([parameter], lr=1.0, betas=(0.9, 0.999))
    medians = []
    for _ in range(400):
        before = parameter.detach().clone()
        parameter.grad = torch.randn(parameter.shape, generator=generator)
        adam.step()
        medians.append(float((parameter.detach() - before).abs().median()))
    assert medians[0] == pytest.approx(1.0, abs=1e-3)
    assert medians[39] == pytest.approx(0.157, abs=0.006)
    assert medians[399] == pytest.approx(0.155, abs=0.004)


@pytest.mark.parametrize("rise", sorted(RISES))
def test_a_warm_up_never_turns(rise: str) -> None:
    schedule = Schedule("constant", steps=40, warmup=20, rise=rise, start=0.1)
    values = [schedule(step) for step in range(40)]
    assert values == sorted(values)
    assert 0.1 < values[0] < 0.3
    assert values[-1] == pytest.approx(1.0, abs=0.02)
    assert (values[19] == 1.0) == (rise != "exponential")


def test_one_cycle_is_torchs_a_step_apart() -> None:
    """torch starts at the lowest rate; here no step is spent there, so it is one step ahead."""
    ours = one_cycle(steps=1000)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=1000, cycle_momentum=False
    )
    for step in range(999):
        optimizer.step()
        theirs.step()
        assert ours(step) == pytest.approx(optimizer.param_groups[0]["lr"], abs=5e-3)


# accelerate#963; with fp16 a step whose gradient overflowed is skipped by the scaler
def test_P55_a_skipped_step_keeps_its_rate() -> None:
    """P55: the caller passes the same step again, and every rate of the schedule is used once."""
    schedule = Schedule("linear", steps=6, warmup=3)
    held, taken = optimizer(), 0
    used = []
    for skipped in (False, True, False, True, True, False, False, False, False):
        rate = set_rate(held, schedule, taken)
        if not skipped:
            used.append(rate)
        taken += not skipped
    assert used == [schedule(step) for step in range(6)]
