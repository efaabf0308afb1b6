"""How a value of each kind is written for people."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from normwise.report.document import Spread


@dataclass(frozen=True)
class Kind:
    """How the cells of a column are written.

    Args:
        spell: a value as text.
        numeric: aligned right, digits under digits.
        wraps: long text may be broken into lines.
    """

    spell: Callable[[Any], str]
    numeric: bool = False
    wraps: bool = False


def spell(kind: str, value: object) -> str:
    """A cell as text; a hyphen for None."""
    return "-" if value is None else KINDS[kind].spell(value)


def exponent(number: float) -> str:
    """0.00123 as 1.2e-3, 0.001 as 1e-3."""
    digits, power = f"{number:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"


def rate(lr: float) -> str:
    """A learning rate, not rounded, since it names a run: 1e-3, 1.25e-3, 0.02."""
    if lr >= 0.01:
        return repr(lr)
    digits, power = f"{Decimal(repr(lr)):e}".split("e")
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits}e{int(power)}"


def significant(number: float, digits: int = 3) -> str:
    """Three digits or more: 0.5, 12.3, 1.2e-3, 1e9."""
    size = abs(number)
    if number == 0 or 0.01 <= size < 1e5:
        return f"{number:.{digits}g}" if size < 1000 else f"{number:.0f}"
    return exponent(number)


def with_half(mean: float, half: float) -> str:
    """A mean with half of its interval, to two digits of the half: -12.01 \u00b10.11."""
    if not 1e-3 <= max(abs(mean), half) < 1e5:
        return f"{exponent(mean)} \u00b1{exponent(half)}"
    digits = min(max(1 - math.floor(math.log10(half)), 0), 4)
    if half < 0.5e-4:
        return significant(mean, 4)
    return f"{mean:.{digits}f} \u00b1{half:.{digits}f}"


def short(number: float) -> str:
    """1234 as 1.2k, 12345678 as 12.3M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:  # what is written as 1000 of one unit is 1.0 of the next
            digits = 1 if number < 99.95 * size else 0
            return f"{number / size:.{digits}f}{letter}"
    return f"{number:.0f}"


def spread(value: Spread) -> str:
    """2.249 ±0.081"""
    return f"{value.mean:.3f}{_half(value)}"


def _difference(value: Spread) -> str:
    return f"{value.mean:+.3f}{_half(value)}"


def _half(value: Spread) -> str:
    return "" if value.half_width is None else f" \u00b1{value.half_width:.3f}"


def _measured(write: Callable[[float], str]) -> Callable[[float], str]:
    return lambda value: write(value) if math.isfinite(value) else "overflow"


def _reading(value: float) -> str:
    """A number that may be infinite or none."""
    return significant(value) if math.isfinite(value) else str(value)


def _quartiles(unit: float) -> Callable[[Mapping[str, float]], str]:
    """1.23 (1.20-1.31): median and quartiles of seconds, in a unit."""

    def spell(times: Mapping[str, float]) -> str:
        found = [times[key] / unit for key in ("median", "lower", "upper")]
        median, lower, upper = (f"{t:#.3g}" if t < 99.95 else f"{t:.0f}" for t in found)
        return f"{median} ({lower}-{upper})"

    return spell


def _yes_or_no(value: bool) -> str:  # noqa: FBT001 - a cell's value
    return "yes" if value else "no"


KINDS: Mapping[str, Kind] = {
    "name": Kind(str),
    "text": Kind(str, wraps=True),
    "anchor": Kind(str),
    "number": Kind(significant, numeric=True),
    "reading": Kind(_reading, numeric=True),
    "seconds": Kind("{:.1f}".format, numeric=True),
    "loss": Kind(spread, numeric=True),
    "difference": Kind(_difference, numeric=True),
    "separable": Kind(_yes_or_no),
    "rate": Kind(rate, numeric=True),
    "count": Kind(short, numeric=True),
    "seeds": Kind(str, numeric=True),
    "mebibytes": Kind(lambda value: f"{value / 2**20:.0f}", numeric=True),
    "rms": Kind(_measured("{:.2f}".format), numeric=True),
    "milliseconds": Kind(_quartiles(1e-3), numeric=True),
    "microseconds": Kind(_quartiles(1e-6), numeric=True),
    "times": Kind("{:.2f}".format, numeric=True),
    "ulps": Kind(_measured("{:.2f}".format), numeric=True),
    "gradient": Kind(_measured(exponent), numeric=True),
}
