"""Claims as a whole: processes, the folder, what is kept and what is made again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from normwise.claims.registry import CLAIMS
from normwise.claims.run import ClaimsResult, Judged, _Session, run_claims, stored_claims
from normwise.claims.settings import ClaimSettings
from normwise.errors import SettingError, StoreError, UnknownName
from normwise.lab.settings import RunSettings

IDS = ("rms-offset", "ln-formula")


class Listener:
    """Hears what was measured."""

    def __init__(self) -> None:
        self.measures: list[str] = []
        self.failures: dict[str, str] = {}
        self.stored = -1

    def begins(self, claims: int, stored: int, runs: int) -> None:
        self.stored = stored

    def measured(self, claim: Judged) -> None:
        self.measures.append(claim.id)

    def failed(self, claim: str, reason: str) -> None:
        self.failures[claim] = reason

    @contextmanager
    def training(self, runs: Sequence[RunSettings], stored: int) -> Iterator[Any]:
        raise AssertionError("nothing is to be trained here")
        yield


def run(folder: Path, **changes: Any) -> tuple[ClaimsResult, Listener]:
    listener = Listener()
    settings = ClaimSettings(**{"ids": IDS, "out": folder, **changes})
    return run_claims(settings, listener), listener


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ClaimsResult, Listener]:
    folder = tmp_path_factory.mktemp("claims") / "deep" / "er"
    return folder, *run(folder)


def test_claims_come_in_the_order_of_the_notes(
    first: tuple[Path, ClaimsResult, Listener],
) -> None:
    _, result, heard = first
    assert [claim.id for claim in result.claims] == ["ln-formula", "rms-offset"]
    assert sorted(heard.measures) == sorted(IDS)
    assert (heard.stored, result.failed) == (0, {})


def test_the_same_command_measures_nothing(first: tuple[Path, ClaimsResult, Listener]) -> None:
    folder, before, _ = first
    after, heard = run(folder)
    assert (heard.measures, heard.stored) == ([], 2)
    assert after.claims == before.claims


def test_another_effort_is_another_measurement(
    first: tuple[Path, ClaimsResult, Listener],
) -> None:
    _, heard = run(first[0], quick=True)
    assert len(heard.measures) == 2


def test_a_damaged_measurement_is_made_again(first: tuple[Path, ClaimsResult, Listener]) -> None:
    folder, before, _ = first
    paths = sorted((folder / "measured").glob("rms-offset-*.json"))
    for path in paths:
        path.write_text(path.read_text()[:-20])
    after, heard = run(folder)
    assert heard.measures == ["rms-offset"]
    assert after.claims[1].numbers == before.claims[1].numbers


def test_the_result_is_a_file_that_is_judged_alike(
    first: tuple[Path, ClaimsResult, Listener],
) -> None:
    folder, _, _ = first
    result, _ = run(folder)
    content = json.loads((folder / "claims.json").read_text(), parse_constant=pytest.fail)
    assert [claim["verdict"] for claim in content["claims"]] == ["holds in part", "holds"]
    assert content["conditions"]["torch"]
    assert stored_claims(folder / "claims.json") == result


def test_a_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "claims.json").write_text("{}")
    with pytest.raises(StoreError, match="must be the claims"):
        stored_claims(tmp_path / "claims.json")


def test_what_fails_is_named_and_stops_nobody(tmp_path: Path) -> None:
    listener = Listener()
    session = _Session(ClaimSettings(quick=True, out=tmp_path), listener)
    session.open(["pre-easy", "ln-formula"])
    session.measure(["pre-easy", "ln-formula"])  # pre-easy's runs were not trained
    assert listener.measures == ["ln-formula"]
    assert "finished run" in listener.failures["pre-easy"]
    assert "\n" not in listener.failures["pre-easy"]


def test_claims_with_the_same_runs_train_them_once(tmp_path: Path) -> None:
    session = _Session(ClaimSettings(quick=True, out=tmp_path), Listener())
    session.open(["pre-easy", "post-warmup"])
    missing, stored = session._missing_runs(["pre-easy", "post-warmup"])
    apart = [CLAIMS[name].runs(session.effort) for name in ("pre-easy", "post-warmup")]
    assert (len(missing), stored) == (len({*apart[0], *apart[1]}), 0)
    assert len(missing) < sum(map(len, apart))


def test_an_unknown_claim_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Did you mean rms-cast"):
        run(tmp_path / "none", ids=("rms-cats",))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["seeds", "workers"])
def test_numbers_below_one_are_refused(name: str) -> None:
    with pytest.raises(SettingError, match=f"{name} must be at least 1. It is 0."):
        ClaimSettings(**{name: 0})


def test_another_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(StoreError, match="manifest"):
        run(tmp_path)


def test_interrupted_it_says_how_to_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "normwise", "claims", "run", "--out", str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("measured/*.json")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == (
        f"normwise: stopped. What is finished is kept in {tmp_path}; "
        f"the same command goes on from there."
    )
    assert "Traceback" not in errors
