"""What is asked of `normwise check`. Imports nothing heavy, for the command line."""

import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from normwise.errors import SettingError


@dataclass(frozen=True, kw_only=True)
class CheckSettings:
    """Which model is checked, on what, and how.

    Args:
        target: what `lab.targets` understands.
        batch: MODULE:FUNCTION that gives the batch; None for one that fits the model.
        seq_len: tokens in a sequence; None for 128, or as many as the model takes.
        batch_size: sequences.
        lr: of the AdamW whose first step is tried; 0 tries none.
        dtype: that the model is trained in; None for that of its weights.
        stage: "initial" or "trained"; None finds out.
        checks: names; None for the default ones.
        pattern: for the paths of the blocks, where the stream is not found.
        remedy: to be tried; None for none.
        seed: of weights and batch.
        allow_pickle: load weights that are no safetensors, and may run code.
    """

    target: str
    batch: str | None = None
    seq_len: int | None = None
    batch_size: int = 2
    lr: float = 3e-4
    dtype: str | None = None
    stage: str | None = None
    checks: tuple[str, ...] | None = None
    pattern: str | None = None
    remedy: str | None = None
    seed: int = 0
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        """Raises `SettingError` for a number or a pattern that cannot be."""
        for name, value, least in (
            ("seq_len", self.seq_len, 2), ("batch_size", self.batch_size, 1), ("seed", self.seed, 0)
        ):  # fmt: skip
            if value is not None and value < least:
                raise SettingError(f"{name} must be at least {least}. It is {value}.")
        if self.checks == ():
            raise SettingError("checks must name one at least. There is none.")
        if self.lr < 0 or not math.isfinite(self.lr):
            raise SettingError(f"lr must be a rate, or 0 to try no step. It is {self.lr}.")
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise SettingError(f"pattern must be a regular expression: {error}.") from None

    @property
    def command(self) -> str:
        """The line that asks for this check.

        >>> CheckSettings(target="own:depth=48", lr=1e-3, checks=("signal-growth",)).command
        'normwise check own:depth=48 --lr 0.001 --checks signal-growth'
        """
        words = [word for name, flag in OPTIONS.items() for word in self._option(name, flag)]
        return shlex.join(["normwise", "check", self.target, *words])

    def _option(self, name: str, flag: str) -> list[str]:
        value = getattr(self, name)
        if value == DEFAULTS[name]:
            return []
        if value is True:
            return [flag]
        return [flag, ",".join(value) if isinstance(value, tuple) else str(value)]


OPTIONS = {
    "batch": "--batch", "seq_len": "--seq-len", "batch_size": "--batch-size", "lr": "--lr",
    "dtype": "--dtype", "stage": "--stage", "checks": "--checks", "pattern": "--pattern",
    "seed": "--seed", "allow_pickle": "--allow-pickle", "remedy": "--try",
}  # fmt: skip
DEFAULTS = vars(CheckSettings(target=""))
LENGTH = 128
PAGE = Path("runs/check/page.html")
