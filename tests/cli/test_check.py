"""`normwise check` as a user meets it: what it prints, writes and returns."""

import json
from pathlib import Path

import pytest

from normwise.lab.check import CheckSettings, run_check
from normwise.lab.remedy import REMEDIES
from normwise.probe.checks.registry import CHECKS
from tests.cli.test_claims import Said, run

GOOD = "own:depth=2,width=16"
BAD = "own:depth=2,width=16,norm_eps=1e-3"  # half of each norm's root is eps
SPOILED = "own:depth=2,width=16,norm_eps=1e-4"  # a tenth


def check(*words: str, out: Path) -> Said:
    return run("check", *words, "--out", str(out / "page.html"))


def test_a_healthy_model_is_told_and_returns_0(tmp_path: Path) -> None:
    found = check(GOOD, out=tmp_path)
    assert (found.returncode, found.stderr) == (0, "")
    lines = found.stdout.splitlines()
    assert lines[0].startswith("The signal of this Transformer is healthy: ")
    assert lines[-1] == f"Page: {tmp_path / 'page.html'}"
    assert max(map(len, lines[:-1])) <= 80
    assert sorted(path.name for path in tmp_path.iterdir()) == ["check.json", "page.html"]


@pytest.mark.parametrize(
    ("target", "severity", "code"),
    [
        (GOOD, "warn", 0), (SPOILED, "fail", 0), (SPOILED, "warn", 1), (BAD, "fail", 1),
        (BAD, "warn", 1), (BAD, "never", 0),
    ],
)  # fmt: skip
def test_the_exit_code_follows_the_severity(
    target: str, severity: str, code: int, tmp_path: Path
) -> None:
    found = check(
        target, "--checks", "norm-eps-share", "--fail-severity", severity, out=tmp_path
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (code, "")


def test_json_goes_to_standard_output_alone(tmp_path: Path) -> None:
    found = check(BAD, "--json", out=tmp_path)
    content = json.loads(found.stdout)
    assert found.returncode == 1 and found.stderr == f"Page: {tmp_path / 'page.html'}\n"
    assert content == json.loads((tmp_path / "check.json").read_text())
    assert (content["verdict"], content["command"]) == ("fail", f"normwise check {BAD}")
    assert "before" not in content


def test_a_remedy_is_tried_and_both_are_shown(tmp_path: Path) -> None:
    found = check(BAD, "--try", "small-eps", out=tmp_path)
    assert found.returncode == 0
    assert found.stdout.startswith("With small-eps: The signal of this Transformer is healthy")
    lines = [" ".join(line.split()) for line in found.stdout.splitlines()]
    row = next(line for line in lines if line.startswith("norm-eps-share"))
    assert row.split()[2:3] == ["fail"] and row.split()[4:5] == ["ok"]
    content = json.loads((tmp_path / "check.json").read_text())
    assert (content["before"]["verdict"], content["verdict"]) == ("fail", "ok")
    assert content["remedy"] == "small-eps"
    assert content["command"] == f"normwise check {BAD} --try small-eps"


def test_the_line_that_is_printed_measures_the_same_again(tmp_path: Path) -> None:
    words = ["--lr", "0.001", "--seed", "3", "--seq-len", "16", "--checks", "norm-eps-share"]
    check(BAD, *words, out=tmp_path)
    first = json.loads((tmp_path / "check.json").read_text())
    check(*first["command"].split()[2:], out=tmp_path / "again")
    again = json.loads((tmp_path / "again" / "check.json").read_text())
    assert first["readings"] == again["readings"] and first["record"] == again["record"]


def test_dtype_stage_and_rate_reach_the_check(tmp_path: Path) -> None:
    words = ["--dtype", "bf16", "--stage", "trained", "--lr", "0", "--batch-size", "3"]
    check(GOOD, *words, "--json", out=tmp_path)
    content = json.loads((tmp_path / "check.json").read_text())
    record = content["record"]
    assert (record["dtype"], record["stage"], record["trial"]) == ("bf16", "trained", None)
    assert content["tokens"] == 3 * 64


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "normwise: Missing argument 'TARGET'."),
        (("gpt2",), "normwise: A target must be hf:PATH, MODULE:FUNCTION, own:FIELD=VALUE,..."),
        (("hf:nowhere",), "normwise: hf: is followed by a folder with a config.json, or by one."),
        (("nowhere.json",), "normwise: The target must exist. nowhere.json cannot be read"),
        (("own:width=none",), "normwise: width must be a whole number. It is 'none'."),
        ((GOOD, "--checks", "norm-eps"), "normwise: Unknown check 'norm-eps'. Did you mean norm-"),
        ((GOOD, "--try", "small"), "normwise: Unknown remedy 'small'. "),
        ((GOOD, "--try", "pre-norm"), "normwise: A remedy must change something. pre-norm "),
        (
            ("tests.lab.test_targets:tiny", "--try", "pre-norm"),
            "normwise: A remedy is tried by building the model again, which can be done for own:",
        ),
        ((GOOD, "--seq-len", "100"), "normwise: The model takes 64 tokens. seq_len is 100."),
        ((GOOD, "--dtype", "fp8"), "normwise: Invalid value for '--dtype'"),
        ((GOOD, "--batch", "nowhere:batch"), "normwise: --batch must be MODULE:FUNCTION"),
        ((GOOD, "--pattern", "("), "normwise: pattern must be a regular expression: "),
    ],
)
def test_a_wrong_word_is_one_line(
    words: tuple[str, ...], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = check(*words, out=tmp_path / "none")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith(line) and len(found.stderr.splitlines()) == 1
    assert not (tmp_path / "none").exists()


def test_a_page_that_cannot_be_written_loses_no_result(tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    found = check(GOOD, out=tmp_path)
    assert found.returncode == 2 and "healthy" in found.stdout
    assert found.stderr.startswith("normwise: The report must be written somewhere.")
    assert json.loads((tmp_path / "check.json").read_text())["verdict"] == "ok"


def test_checks_and_remedies_are_listed() -> None:
    for what, names in (("checks", list(CHECKS)), ("remedies", list(REMEDIES))):
        found = run("list", what)
        assert found.returncode == 0
        assert all(name in found.stdout for name in names)
    words = " ".join(run("list", "checks").stdout.split())
    assert all(when in words for when in ("always", "before training", "in training", "by name"))
    assert all(check.summary.split()[0] in words for check in CHECKS.values())


def test_the_settings_of_a_command_say_what_was_asked() -> None:
    asked = CheckSettings(target=GOOD, allow_pickle=True, pattern="a b", seq_len=8)
    assert asked.command == (
        f"normwise check {GOOD} --seq-len 8 --pattern 'a b' --allow-pickle"
    )  # fmt: skip
    assert run_check(asked.__class__(target=GOOD)).result.command == f"normwise check {GOOD}"
