"""The report of a monitor's log."""

from pathlib import Path

import pytest
import torch
from torch.nn import init

import normwise as nw
from normwise.cli.main import main
from normwise.probe.log import read_lines
from normwise.report.charts import spec
from normwise.report.document import Document, Note, Table
from normwise.report.training import document, read_training, worst_of
from tests.probe.models import Tiny, ids, loss_of


def logged(path: Path, *, growing: bool) -> Document:
    """A training of twelve steps, in which the queries of the first layer grow from step 6 on."""
    torch.manual_seed(0)
    model = Tiny()
    init.zeros_(model.blocks[0].attention.inner.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with nw.Monitor(model, optimizer, every=1, log=path) as monitor:
        for step in range(12):
            if growing and step >= 6:
                with torch.no_grad():
                    model.blocks[0].attention.inner.weight[:16] *= 20.0
            loss = loss_of(model, ids())
            loss.backward()
            optimizer.step()
            monitor.step(loss=loss)
    return document(read_training(path))


def test_a_healthy_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    told = logged(path, growing=False)
    assert told.verdict == "The signal was healthy in 12 records of the steps 0 to 11."
    assert {figure.name for figure in told.figures()} == {"loss", "stream", "gradient", "logits"}
    for figure in told.figures():
        assert spec(figure)["datasets"]["points"] == figure.rows
    with pytest.raises(SystemExit) as ended:
        main(["report", str(path), "--fail-severity", "warn"])
    assert ended.value.code == 0
    assert path.with_suffix(".html").exists()
    assert told.verdict[:40] in capsys.readouterr().out


def test_a_training_that_breaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What moved first is the first attention, and the exit code says so."""
    path = tmp_path / "run.jsonl"
    told = logged(path, growing=True)
    notes = [block for block in told.sections[0].blocks if isinstance(block, Note)]
    assert told.sections[0].title == "What moved first" and notes[0].strong
    assert notes[0].text.startswith(
        "attn-entropy at layer 0 attention, heads passed 0.25 at step 7"
    )
    (table,) = (block for block in told.tables() if isinstance(block, Table))
    steps = [int(row[0]) for row in table.rows]
    assert steps == sorted(steps) and steps[-1] > 6
    assert worst_of(read_lines(path)) == "fail"
    for severity, code in (("fail", 1), ("never", 0)):
        with pytest.raises(SystemExit) as ended:
            main(["report", str(path), "--fail-severity", severity, "--out", str(tmp_path / "p")])
        assert ended.value.code == code
    assert "What moved first" in capsys.readouterr().out


def test_an_empty_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["report", str(path)])
    assert ended.value.code == 2
    assert "has none." in capsys.readouterr().err
