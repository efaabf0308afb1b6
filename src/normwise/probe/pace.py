"""Which steps are sampled, and what that costs."""

import math
import time
from collections import deque
from statistics import median
from typing import Any

import torch
from torch import Tensor

from normwise.errors import SettingError

FIRST = 20  # steps that are all sampled, at the start and after an alarm
TIMED = 32  # durations that a median is over
FEWEST = 5  # of each kind, before the period is widened


class Pace:
    """Samples one step in `every`, and each of the first 20 and of the 20 after an alarm.

    A sampled step costs what it takes longer than another one, both medians of the last 32. Where
    that is more than `max_overhead` of the time of a period, the period is widened.

    Args:
        every: steps from sample to sample.
        max_overhead: largest share of the time.
    """

    def __init__(self, every: int, max_overhead: float) -> None:
        if every < 1:
            raise SettingError(f"every must be at least 1 step. It is {every}.")
        if not max_overhead > 0.0:
            raise SettingError(f"max_overhead must be above 0. It is {max_overhead}.")
        self.every = every
        self.max_overhead = max_overhead
        self.dense_until = FIRST
        self.next_alarm = 0
        self.seconds = 0.0  # that a sampled step takes longer
        self.step_seconds = math.nan  # of a step that is not sampled
        self._durations: dict[bool, deque[float]] = {
            sampled: deque(maxlen=TIMED) for sampled in (True, False)
        }
        self._stepped = math.nan

    def samples(self, step: int) -> bool:
        """Whether a step is sampled."""
        return step < self.dense_until or step % self.every == 0

    def alarmed(self, step: int) -> None:
        """Samples all of the next steps, where none were for an alarm in the last four periods: a
        training that alarms all the time is not sampled all the time.
        """
        if step >= self.next_alarm:
            self.dense_until = max(self.dense_until, step + FIRST)
            self.next_alarm = self.dense_until + 4 * self.every

    @property
    def overhead(self) -> float:
        """Share of the time of a period that its sample takes; NaN before it is known."""
        return self.seconds / (self.every * self.step_seconds)

    def stepped(self, *, sampled: bool) -> None:
        """A step has ended."""
        now = time.perf_counter()
        if not math.isnan(self._stepped):
            self._durations[sampled].append(now - self._stepped)
        self._stepped = now

    def sums(self, device: torch.device) -> Tensor:
        """Processes and their two medians, which add up over processes; nothing too early."""
        long, short = self._durations[True], self._durations[False]
        if min(len(long), len(short)) < FEWEST:
            return torch.zeros(3, device=device)
        return torch.tensor([1.0, median(long), median(short)], device=device)

    def merge(self, sums: list[float]) -> None:
        """Takes the medians of all processes, so that all of them widen alike."""
        processes, long, short = sums
        if not processes:
            return
        self.step_seconds = short / processes
        self.seconds = max(0.0, (long - short) / processes)
        wanted = math.ceil(self.seconds / (self.max_overhead * self.step_seconds))
        self.every = max(self.every, wanted)

    def state_dict(self) -> dict[str, Any]:
        """The period, and when all steps are sampled."""
        return {
            "every": self.every, "dense_until": self.dense_until, "next_alarm": self.next_alarm
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with those of another one."""
        self.every, self.dense_until = state["every"], state["dense_until"]
        self.next_alarm = state["next_alarm"]
