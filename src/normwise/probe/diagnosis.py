"""The result of a check as data: verdict, cause, findings, and the record they rest on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from normwise.errors import MissingExtra
from normwise.files import plain, write_result
from normwise.probe.causes import Cause, cause_of
from normwise.probe.findings import Reading, Sheet, Unmeasured, worst
from normwise.probe.record import Record

VERDICTS = {"ok": "ok", "info": "ok", "warn": "warn", "fail": "fail"}


@dataclass(frozen=True)
class Diagnosis:
    """What `check` gives.

    Args:
        model: name of its class.
        verdict: "ok", "warn" or "fail".
        cause: the one that explains the findings; None where there are none.
        readings: of all checks, in order, findings and what is in order.
        unmeasured: checks that had nothing to read, and why.
        checks: names of all that were asked.
        record: what was measured.
        parameters: of the model.
        tokens: of the batch.
        seconds: that it took.
        conditions: machine, versions and date.
        command: the line that asks for it, where there is one.
        remedy: that was tried on the model.
        remarks: what a reader should know of how the model was made.
        trials: lines that try a remedy for the cause, best first.
    """

    model: str
    verdict: str
    cause: Cause | None
    readings: list[Reading]
    unmeasured: list[Unmeasured]
    checks: list[str]
    record: Record
    parameters: int
    tokens: int
    seconds: float
    conditions: Mapping[str, str | int] = field(default_factory=dict)
    command: str = ""
    remedy: str = ""
    remarks: list[str] = field(default_factory=list)
    trials: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, record: Record, sheet: Sheet, checks: list[str], **rest: Any
    ) -> "Diagnosis":  # fmt: skip
        """The diagnosis that readings of one record make."""
        return cls(
            verdict=VERDICTS[worst(sheet.readings)], cause=cause_of(sheet, record),
            readings=sheet.readings, unmeasured=sheet.unmeasured, checks=checks, record=record,
            **rest,
        )  # fmt: skip

    @property
    def findings(self) -> list[Reading]:
        """Readings that are not in order, the worst first."""
        return Sheet(self.readings).findings

    @property
    def summary(self) -> str:
        """The verdict in one sentence."""
        if self.cause is None:
            done = len({one.check for one in self.readings})
            return f"The signal of this {self.model} is healthy: {done} checks, no warning."
        return f"{self.cause.title}. {self.cause.action}"

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """All of it as plain values; written to a file too where one is named.

        Raises:
            StoreError: the file cannot be written.
        """
        content: dict[str, Any] = plain({"format": 1, "summary": self.summary, **asdict(self)})
        if path is not None:
            write_result(Path(path), content)
        return content

    def to_frame(self) -> Any:
        """The readings as a pandas DataFrame, a row each.

        Raises:
            MissingExtra: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise MissingExtra("pandas", "hf", "A frame") from None
        return pandas.DataFrame([_row(one) for one in self.readings])

    def __str__(self) -> str:
        return self.summary


def _row(one: Reading) -> dict[str, Any]:
    limits = one.limits
    return {
        "check": one.check, "where": one.where, "layer": one.layer, "quantity": one.quantity,
        "value": one.value, "warn": limits.warn, "fail": limits.fail, "severity": one.severity,
        "tier": limits.tier, "source": limits.source,
        "remedy": one.remedy.text if one.remedy else "",
    }  # fmt: skip
