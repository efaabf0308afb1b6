"""Learning rates as pure functions of the optimizer step, and optimizer groups.

A schedule warms up to its peak, may hold it, then decays over the steps that are left. The peak
is reached: a warm-up of 0 steps starts there, and the last of W one-based warm-up steps is there;
only an exponential rise comes near it and no further. No step is spent at rate 0, unless the
warm-up is asked to start from it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from normwise.errors import SettingError
from normwise.norms.registry import NORM_MODULES
from normwise.table import Table

Decay = Callable[[int, int, int], float]


def _constant(step: int, steps: int, peak: int) -> float:
    return 1.0


def _linear(step: int, steps: int, peak: int) -> float:
    return 1.0 - step / (steps + 1)


def _cosine(step: int, steps: int, peak: int) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * step / (steps + 1)))


def _inverse_sqrt(step: int, steps: int, peak: int) -> float:
    return math.sqrt(peak / (peak + step))


SCHEDULES: Table[tuple[Decay, str]] = Table(
    "schedule",
    {
        "constant": (_constant, "stays at the peak"),
        "cosine": (_cosine, "half a cosine down to the floor"),
        "linear": (_linear, "a straight line down to the floor"),
        "inverse_sqrt": (_inverse_sqrt, "sqrt(warm-up/step), as in Vaswani et al. 2017"),
    },
)


def _linear_rise(part: float) -> float:
    return min(part, 1.0)


def _cosine_rise(part: float) -> float:
    return 0.5 * (1.0 - math.cos(math.pi * min(part, 1.0)))


def _exponential_rise(part: float) -> float:
    return 1.0 - math.exp(-2.0 * part)


RISES: Table[tuple[Callable[[float], float], str]] = Table(
    "rise",
    {
        "linear": (_linear_rise, "a straight line up to the peak"),
        "cosine": (_cosine_rise, "half a cosine up to the peak"),
        "exponential": (
            _exponential_rise,
            "1 - exp(-2 step/warm-up), for good: 0.86 of the peak at the end of the warm-up",
        ),
    },
)


@dataclass(frozen=True)
class Schedule:
    """Multiplier of the peak rate for each optimizer step, counted from 0.

    Args:
        name: a row of `normwise list schedules`, the decay after warm-up and hold.
        steps: optimizer steps of the whole run.
        warmup: steps of the warm-up; see `untuned_warmup`.
        hold: steps at the peak before the decay begins.
        floor: share of the peak that the decay heads for; it would be there one step after the
            last.
        first_step: "one" makes the first of W steps 1/W; "zero" makes it 0, as in BERT.
        rise: a row of `RISES`, the shape of the warm-up.
        start: share of the peak that the warm-up starts from.

    Raises:
        SettingError: counts that are negative or do not fit into `steps`.

    >>> schedule = nw.Schedule("linear", steps=10, warmup=4, hold=2)
    >>> [round(schedule(step), 2) for step in range(10)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]
    """

    name: str
    steps: int
    warmup: int = 0
    hold: int = 0
    floor: float = 0.0
    first_step: str = "one"
    rise: str = "linear"
    start: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", SCHEDULES.resolve(self.name))
        object.__setattr__(self, "rise", RISES.resolve(self.rise))
        if self.first_step not in ("one", "zero"):
            raise SettingError(f'first_step must be "one" or "zero". It is {self.first_step!r}.')
        if min(self.steps - 1, self.warmup, self.hold) < 0:
            raise SettingError(
                f"A schedule needs at least one step and no negative ones. There are "
                f"{self.steps} steps, {self.warmup} of warm-up and {self.hold} of hold."
            )
        if self.warmup + self.hold + (self.first_step == "zero") > self.steps:
            raise SettingError(
                f"Warm-up and hold must fit into the run. There are {self.steps} steps, "
                f"{self.warmup} of warm-up and {self.hold} of hold. Shorten one of them."
            )
        for name in ("floor", "start"):
            share = getattr(self, name)
            if not 0.0 <= share <= 1.0:
                raise SettingError(f"{name} is a share of the peak, from 0 to 1. It is {share}.")

    def __call__(self, step: int) -> float:
        return self._risen(step) * self._decayed(step)

    def _risen(self, step: int) -> float:
        if not self.warmup:
            return 1.0
        done = step + 1 if self.first_step == "one" else step
        share = RISES[self.rise][0](done / self.warmup)
        return self.start + (1.0 - self.start) * share

    def _decayed(self, step: int) -> float:
        """What is left of the peak; 1 up to the first step at it, and through the hold."""
        peak = max(self.warmup, 1) if self.first_step == "one" else self.warmup + 1
        decay_step = step - (peak - 1) - self.hold
        if decay_step <= 0:
            return 1.0
        decay_steps = max(self.steps - peak - self.hold, decay_step)
        share = SCHEDULES[self.name][0](decay_step, decay_steps, peak)
        return self.floor + (1.0 - self.floor) * share


def one_cycle(steps: int, *, rise: float = 0.3, start: float = 0.04, end: float = 4e-6) -> Schedule:
    """Half a cosine from `start` up to the peak over a share `rise` of the steps, and half a cosine
    down to `end`, both as shares of the peak. Smith and Topin 2018 (1708.07120), with the values
    of torch's OneCycleLR.

    >>> schedule = nw.one_cycle(steps=10)
    >>> [round(schedule(step), 2) for step in range(10)]
    [0.28, 0.76, 1.0, 0.96, 0.85, 0.69, 0.5, 0.31, 0.15, 0.04]
    """
    warmup = max(round(rise * steps), 1)
    return Schedule("cosine", steps, warmup, floor=end, rise="cosine", start=start)


def untuned_warmup(beta2: float) -> int:
    """2/(1 - beta2) steps, which Adam's second average takes to fill: 2000 at 0.999.

    With `rise="linear"` it is the untuned linear warm-up of Ma and Yarats 2019 (1910.04209),
    section 5.2, and with "exponential" their untuned exponential one, section 5.1.
    """
    if not 0.0 <= beta2 < 1.0:
        raise SettingError(f"beta2 is the weight of the old average, in [0, 1). It is {beta2}.")
    return round(2.0 / (1.0 - beta2))


def set_rate(optimizer: torch.optim.Optimizer, schedule: Schedule, step: int) -> float:
    """Sets the rate of every group for optimizer step `step`, and gives the first group's.

    A step that a gradient scaler skipped, because a gradient overflowed, is none: pass the same
    `step` again. The peak of a group is its `initial_lr`, which is kept in the optimizer's state
    dict: after loading one, the same step gives the same rate to the last bit.
    """
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
        group["lr"] = group["initial_lr"] * schedule(step)
    rate: float = optimizer.param_groups[0]["lr"]
    return rate


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Two optimizer groups: matrices with weight decay, gains and biases without.

    What a parameter is follows from its module and its shape, never from its name: everything in
    a norm or a residual connection and everything with fewer than two axes goes without decay. Each
    trainable parameter is in exactly one group, a shared one too. Empty groups are left out.
    """
    exempt = norm_parameters(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in trainable if p.ndim >= 2 and id(p) not in exempt]
    chosen = {id(p) for p in decayed}
    plain = [p for p in trainable if id(p) not in chosen]
    groups: list[dict[str, object]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def norm_parameters(model: nn.Module) -> set[int]:
    """Identities of the parameters of norms and residual connections: gains, of whatever shape."""
    return {id(p) for module in filter(_is_exempt, model.modules()) for p in module.parameters()}


TORCH_NORMS = (
    nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase, nn.LocalResponseNorm,
)  # fmt: skip


def _is_exempt(module: nn.Module) -> bool:
    """A module that says so, a norm of torch or of ours, or a leaf whose class is called one:
    others write their own.
    """
    leaf = next(module.children(), None) is None
    return (
        getattr(module, "weight_decay_exempt", False)
        or isinstance(module, TORCH_NORMS + NORM_MODULES)
        or (leaf and "norm" in type(module).__name__.lower())
    )
