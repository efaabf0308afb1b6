"""No check warns of a healthy model."""

import pytest

import normwise as nw
from tests.probe.zoo import ZOO


@pytest.mark.parametrize("name", ZOO)
def test_a_healthy_model_has_no_finding(name: str) -> None:
    model, batch, optimizer = ZOO[name].made()
    result = nw.check(model, batch, optimizer=optimizer)
    assert [one.line for one in result.findings if one.severity in ("warn", "fail")] == []
    assert result.record.stage == "initial"
    assert result.record.expected, result.record.why_not_expected
