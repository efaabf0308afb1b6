"""How a reading is put into words, and which of several is worse."""

import math
from collections.abc import Iterable

from normwise.probe.findings import SEVERITIES, Limits, Reading
from normwise.report.spelling import spell


def limit_words(limits: Limits) -> str:
    """ "warn above 10, fail above 100"."""
    side = "below" if limits.below else "above"
    named = (("info", limits.info), ("warn", limits.warn), ("fail", limits.fail))
    told = [f"{name} {side} {spell('reading', at)}" for name, at in named if at is not None]
    return ", ".join(told) or "no limit"


def limit_spelled(one: Reading) -> str:
    """ "> 10 / 100" for warn and fail, "> 10 info" where there is no more; in brackets where the
    check did not let it decide.
    """
    limits = one.limits
    side = "<" if limits.below else ">"
    if limits.warn is None and limits.fail is None:
        known = limits.info is not None
        words = f"{side} {spell('reading', limits.info)} info" if known else "none"
    else:
        words = f"{side} {spell('reading', limits.warn)} / {spell('reading', limits.fail)}"
    return f"({words})" if held_back(one) else words


def held_back(one: Reading) -> bool:
    """Whether a check found a value less bad than its limits alone would."""
    return SEVERITIES.index(one.limits.severity(one.value)) > rank(one)


def badness(one: Reading) -> tuple[int, float]:
    """How bad a reading is: its severity, then how far it is on the way to its limit or beyond."""
    limits = one.limits
    limit = next((at for at in (limits.fail, limits.warn, limits.info) if at), None)
    share = one.value / limit if limit else 0.0
    beyond = math.inf if math.isnan(share) else -share if limits.below else share
    return rank(one), beyond


def rank(one: Reading) -> int:
    """The severity as a number, 0 for "ok"."""
    return SEVERITIES.index(one.severity)


def worst_by_check(readings: Iterable[Reading]) -> list[Reading]:
    """The worst reading of each check, in order of the checks."""
    worst: dict[str, Reading] = {}
    for one in readings:
        if one.check not in worst or badness(one) > badness(worst[one.check]):
            worst[one.check] = one
    return list(worst.values())
