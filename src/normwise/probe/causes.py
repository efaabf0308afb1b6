"""From findings to one cause: the rules by which several of them are one fault."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from normwise.probe.checks import precision_headroom, spike_score, update_size
from normwise.probe.findings import Reading, Sheet
from normwise.probe.record import Record, Run

SPIKE = spike_score.NAME
SMALL_ENTRY = 0.1  # RMS
BEFORE = 8  # steps before a spike: StableAdamW (2304.13013) sees Adam's v fail 1 to 8 before it


@dataclass(frozen=True)
class Cause:
    """What explains the findings.

    Args:
        title: the fault in one clause, without a full stop.
        action: the first thing to do, a sentence.
        checks: those whose findings it explains.
        tries: remedies of `normwise check --try`, best first.
    """

    title: str
    action: str
    checks: tuple[str, ...]
    tries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """A pattern of findings.

    Args:
        holds: whether it is there, from the bad findings by check.
        title, action, checks, tries: of the cause.
        at: what must hold of the record beside.
    """

    holds: Callable[[dict[str, list[Reading]]], bool]
    title: str
    action: str
    checks: tuple[str, ...]
    tries: tuple[str, ...] = ()
    at: Callable[[Record], bool] = lambda record: True


def _all(*names: str) -> Callable[[dict[str, list[Reading]]], bool]:
    return lambda bad: all(name in bad for name in names)


def _stale(bad: dict[str, list[Reading]]) -> bool:
    """A gradient larger than v knew, 1 to 8 steps before the loss jumped."""
    jumps = [one.step for one in bad.get(SPIKE, [])]
    return any(
        one.quantity.startswith(update_size.SURPRISE) and 1 <= jump - one.step <= BEFORE
        for one in bad.get(update_size.NAME, []) for jump in jumps
    )  # fmt: skip


def _fast(bad: dict[str, list[Reading]]) -> bool:
    """Steps of a tenth of the weights, no later than anything else but the loss."""
    far = min(
        (one.step for one in bad.get(update_size.NAME, []) if one.limits is update_size.FAR),
        default=None,
    )
    return far is not None and all(
        one.step >= far for check, found in bad.items() if check != SPIKE for one in found
    )


def _alone(bad: dict[str, list[Reading]]) -> bool:
    """The loss jumped, and nothing had been found by then."""
    jump = min((one.step for one in bad.get(SPIKE, [])), default=None)
    return jump is not None and all(
        one.step > jump for check, found in bad.items() if check != SPIKE for one in found
    )


def _swallowed(bad: dict[str, list[Reading]]) -> bool:
    """Few branches matter, and sums in bf16 do not see the others."""
    unseen = [one.quantity for one in bad.get("precision-headroom", [])]
    return "effective-depth" in bad and precision_headroom.UNSEEN in unseen


def _broken(bad: dict[str, list[Reading]]) -> bool:
    """The signal is not as declared, or grows; a value that is not finite is a fault of its own."""
    grown = any(math.isfinite(one.value) for one in bad.get("signal-growth", []))
    return grown or "theory-gap" in bad


def _initial(record: Record) -> bool:
    return record.stage == "initial"


def _smaller_entry(record: Record) -> bool:
    """An embedding below half of what is declared: else it is the branches that are too large."""
    return record.stage == "initial" and any(
        stack.points[0] is not None and stack.points[0].rms < 0.5 * expected.stream[0]
        for stack, expected in record.with_expected()
        if expected is not None
    )


def _small_entry(record: Record) -> bool:
    """A stream that begins small, and a norm of it, not of queries and keys, with much eps."""
    entries = [stack.points[0] for stack in record.stacks]
    return any(entry is not None and entry.rms < SMALL_ENTRY for entry in entries) and any(
        norm.place in ("pre", "post", "embed") and norm.above_warn > 0.5 for norm in record.norms
    )


RULES: list[Rule] = [
    Rule(
        _fast, "The learning rate is too high: steps are a tenth of the weights and more",
        "Lower it, or warm up longer.",
        (update_size.NAME, "residual-drift", "attn-logit-max", "attn-entropy", SPIKE),
    ),
    Rule(
        _all("attn-logit-max", "attn-entropy"),
        "Queries and keys have grown until attention sees single keys",
        "Norm queries and keys over each head, and lower the learning rate.",
        ("attn-logit-max", "attn-entropy"), ("query-key-norm",),
    ),
    Rule(
        _all("residual-drift", "adam-eps-floor"),
        "The stream has grown until gradients are no larger than Adam's eps",
        "Lower the learning rate or norm the result of every sublayer, and lower eps.",
        ("residual-drift", "adam-eps-floor"), ("peri-norm", "depth-scaled-norm"),
    ),
    Rule(
        _stale, "Adam's second moment was too old for the gradients before the loss jumped",
        "Set beta2 to 0.95, or clip the update.", (update_size.NAME, SPIKE),
    ),
    Rule(
        _alone, "The loss jumped, and nothing had moved before it: it is the batch",
        "Look at the batch of this step, and leave it out.", (SPIKE,),
    ),
    Rule(
        _all("norm-eps-share"), "The embedding drowns in the norms' eps",
        "Scale the embedding up first, then lower eps.", ("norm-eps-share", "embed-scale"),
        ("embedding-scale", "small-eps"), at=_small_entry,
    ),
    Rule(
        _all("signal-growth", "embed-scale"), "The embedding is too small for the branches",
        "Scale the embedding by sqrt(d), or put a norm behind it.",
        ("signal-growth", "embed-scale", "theory-gap"), ("embedding-scale", "embedding-norm"),
        at=_smaller_entry,
    ),
    Rule(
        _swallowed,
        "The branches are too small for the stream",
        "Keep the stream in fp32, scale the branches down less with the depth, or use peri-norm.",
        ("effective-depth", "precision-headroom", "sublayer-ratio", "theory-gap"), ("peri-norm",),
    ),
    Rule(
        _broken, "The signal is broken from the start, by the initialisation or the placement",
        "Do not train. Change it, and check again.",
        ("signal-growth", "theory-gap", "sublayer-ratio"),
        ("declared-init", "depth-scaled-init", "peri-norm"), at=_initial,
    ),
]  # fmt: skip


def cause_of(sheet: Sheet, record: Record) -> Cause | None:
    """The first rule that holds; without one, the severest finding is its own cause."""
    bad = _by_check(sheet.findings)
    if not bad:
        return None
    for rule in RULES:
        if rule.holds(bad) and rule.at(record):
            return Cause(rule.title, rule.action, rule.checks, rule.tries)
    return _own(next(iter(bad.values()))[0])


@dataclass(frozen=True)
class Story:
    """What went wrong in a training.

    Args:
        cause: that explains it.
        line: what moved first, and when the loss followed.
        events: what was found, a line for each check, in the order of their steps.
    """

    cause: Cause
    line: str
    events: tuple[str, ...] = ()


def story(run: Run, history: Sequence[tuple[int, Reading]]) -> Story | None:
    """The cause by what was first, not by what is worst; None where nothing was found.

    Of the rules that hold it is the one whose checks alarmed first; without one, the first finding
    is its own cause.

    Args:
        run: the training, with its losses.
        history: findings with the steps at which they were new.
    """
    alarms = _alarms(run, history)
    if not alarms:
        return None
    bad = _by_check(alarms)
    first = {check: min(one.step for one in found) for check, found in bad.items()}
    held = [rule for rule in RULES if rule.holds(bad) and (not run.records or rule.at(run.now))]
    if held:
        rule = min(held, key=lambda one: min(first[c] for c in one.checks if c in first))
        cause = Cause(rule.title, rule.action, rule.checks, rule.tries)
    else:
        cause = _own(alarms[0])
    return Story(cause, _line(run, alarms), _events(bad))


def _events(bad: dict[str, list[Reading]]) -> tuple[str, ...]:
    """The first finding of each check, in the order of their steps."""
    lines = []
    for found in sorted(bad.values(), key=lambda one: one[0].step):
        more = len({one.where for one in found}) - 1
        others = f", and at {more} more place{'s' if more > 1 else ''} later" if more else ""
        lines.append(_event(found[0]) + others)
    return tuple(lines)


def _alarms(run: Run, history: Sequence[tuple[int, Reading]]) -> list[Reading]:
    """Bad findings by their steps. The loss counts from where it left its band: its score alarms
    later.
    """
    found = [replace(one, step=step) for step, one in history]
    jump = spike_score.jump(run.losses)
    if jump is not None:
        found.append(jump)
    bad = [one for one in found if one.severity in ("warn", "fail")]
    return sorted(bad, key=lambda one: one.step)


def _line(run: Run, alarms: list[Reading]) -> str:
    loss = next((one for one in alarms if one.check == SPIKE), None)
    first = next((one for one in alarms if one.check != SPIKE), None)
    if loss is None:
        return f"{_event(alarms[0])}; the loss is in its band"
    if first is not None and first.step <= loss.step:
        return f"{_event(first)}; {_event(loss)}"
    sampled = any(1 <= loss.step - record.step <= BEFORE for record in run.records)
    close = "" if sampled else f", but none of the {BEFORE} steps before it was sampled"
    return f"{_event(loss)}, and nothing had been found before it{close}"


def _event(one: Reading) -> str:
    """A finding and its step."""
    if one.limits is spike_score.BAND:
        what = "left its 6-sigma band" if one.severity == "warn" else "was no finite number"
        return f"the loss {what} at step {one.step}"
    limit = getattr(one.limits, one.severity) or 0.0
    passed = "fell below" if one.limits.below else "passed"
    return f"{one.check} at {one.where} {passed} {limit:.3g} at step {one.step}"


def _by_check(findings: Sequence[Reading]) -> dict[str, list[Reading]]:
    bad: dict[str, list[Reading]] = {}
    for one in findings:
        if one.severity in ("warn", "fail"):
            bad.setdefault(one.check, []).append(one)
    return bad


def _own(one: Reading) -> Cause:
    """A finding that is its own cause."""
    tries = one.remedy.tries if one.remedy else ()
    action = one.remedy.text if one.remedy else ""
    title = f"{one.check} at {one.where}: {one.quantity} is {one.value:.3g}"
    return Cause(title, action, (one.check,), tries)
