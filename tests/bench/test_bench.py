"""What the benchmark measures, keeps and shows."""

import io
import json
import sys
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import pytest
import torch
from rich.console import Console

from normwise.bench.cases import TORCH_DTYPES, Tensors, tensors_of, truth_of
from normwise.bench.measure import IN_A_ROW, errors_of, take_turns
from normwise.bench.peers import PEERS
from normwise.bench.run import ENVIRONMENT, run_bench
from normwise.bench.settings import DTYPES, MEMORY, OPS, BenchSettings, Case
from normwise.cli.main import main
from normwise.conditions import conditions
from normwise.errors import BenchFailed, SettingError
from normwise.report.bench import MEMORY as TITLES
from normwise.report.bench import document
from normwise.report.terminal import render

SMALL = BenchSettings(ops=("rms_norm",), shapes=("8x16",), dtypes=("fp32", "bf16"),
                      memory=("default",), threads=1, repeats=2)  # fmt: skip


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("op", OPS)
def test_errors_tell_right_from_wrong(op: str, dtype: str) -> None:
    """Every peer's errors are small, and those of a norm with another eps are not."""
    case = Case("default", op, 64, 32, dtype)
    tensors = tensors_of(case)
    truth = truth_of(case, tensors)
    for name in ("normwise", "torch"):
        found = errors_of(case, PEERS[name](op, tensors), tensors, truth)
        assert found["y"] < (8 if dtype == "fp32" else 1.5), name
        assert found["dx"] < (16 if dtype == "fp32" else 4), name
        assert max(found.get("dw", 0), found.get("db", 0)) < (1e-6 if dtype == "fp32" else 0.05)

    def wrong() -> tuple[torch.Tensor, ...]:
        first, *rest = PEERS["torch"](op, tensors)()
        return (first * 1.05, *rest)

    found = errors_of(case, wrong, tensors, truth)
    assert found["y"] > 4
    assert found["dw"] > 1e-3


def test_all_peers_take_turns() -> None:
    """Each peer is called in each turn, in changing order."""
    calls: list[str] = []
    times = take_turns({name: lambda name=name: calls.append(name) for name in "ab"}, 20)
    assert set(times) == {"a", "b"}
    assert all(t["lower"] <= t["median"] <= t["upper"] for t in times.values())
    stretches = [name for name, _ in groupby(calls)]
    assert 10 < len(stretches) < 40  # a fixed order would make 42, no turns 4
    assert min(calls.count("a"), calls.count("b")) >= 20 * IN_A_ROW


def test_dtypes_are_named_once() -> None:
    """The settings, which load no torch, know the dtypes that cases are made in."""
    assert tuple(TORCH_DTYPES) == DTYPES


def test_the_tour_gives_the_measured_allocator_settings() -> None:
    """What users are told to set is what was measured, and every setting has a title."""
    tour = (Path(__file__).parents[2] / "docs" / "tour.md").read_text()
    for memory in MEMORY:
        assert " ".join(f"{name}={value}" for name, value in ENVIRONMENT[memory].items()) in tour
        assert TITLES[memory]


def test_the_same_data_each_time() -> None:
    """Two runs measure the same numbers."""
    one, two = (tensors_of(Case("default", "rms_norm", 4, 8, "bf16")) for _ in range(2))
    assert isinstance(one, Tensors)
    assert torch.equal(one.x, two.x)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ops": ("rmsnorm",)}, "ops must be of rms_norm, layer_norm, add_rms_norm, "
         "add_layer_norm, rms_norm_add, layer_norm_add. One is 'rmsnorm'. Choose of these."),
        ({"shapes": ("8",)}, "A shape must be ROWSxWIDTH, such as 4096x768. One is '8'. "
         "Write two numbers."),
        ({"shapes": ("0x8",)}, "One is '0x8'."),
        ({"threads": 0}, "threads must be at least 1. It is 0. Name more."),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(values: dict[str, object], message: str) -> None:
    """One line says what must hold, what came and what to do."""
    with pytest.raises(SettingError) as error:
        BenchSettings(**values)
    assert message in str(error.value)


def test_a_benchmark_from_end_to_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command measures, shows a table 80 columns wide, and leaves a whole result file."""
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "bench.json"
    with pytest.raises(SystemExit) as end:
        main(["bench", "--ops", "rms_norm", "--shapes", "8x16", "--dtypes", "fp32", "--memory",
              "reused", "--threads", "1", "--repeats", "2", "--out", str(out)])  # fmt: skip
    assert not end.value.code
    shown, told = capfd.readouterr()
    assert "1/1 rms_norm 8x16 fp32, memory reused" in told
    lines = [line for line in shown.splitlines() if not line.startswith("Result: ")]
    assert max(map(len, lines)) <= 80
    result = json.loads(out.read_text())
    peers = {peer["peer"]: peer for peer in result["cases"][0]["peers"]}
    assert {"normwise", "torch", "clone", "kernel alone"} <= set(peers)
    assert all(peers[name]["both"]["median"] > 0 for name in ("normwise", "torch"))
    assert result["conditions"]["torch"] == torch.__version__
    assert not list(tmp_path.glob("*.part"))


def test_an_interrupted_benchmark_goes_on(tmp_path: Path) -> None:
    """What was measured under the same settings and versions is kept and not measured again."""
    out = tmp_path / "bench.json"

    def stop(case: Case, done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_bench(SMALL, out, stop)
    assert not out.exists()
    part = out.with_name("bench.json.part")
    left = json.loads(part.read_text())
    assert [entry["case"]["dtype"] for entry in left["cases"]] == ["fp32"]
    left["cases"][0]["peers"] = [{"peer": "kept"}]
    part.write_text(json.dumps(left))
    told: list[int] = []
    result = run_bench(SMALL, out, lambda case, done: told.append(done))
    assert told == [2]
    assert result["cases"][0]["peers"] == [{"peer": "kept"}]
    assert json.loads(out.read_text()) == result
    left["settings"]["repeats"] = 99
    part.write_text(json.dumps(left))
    told.clear()
    run_bench(SMALL, out, lambda case, done: told.append(done))
    assert told == [1, 2]


def test_a_process_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that dies leaves one line and no result."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BenchFailed, match="It stopped with code 1"):
        run_bench(SMALL, tmp_path / "bench.json")
    assert not (tmp_path / "bench.json").exists()


def test_the_table() -> None:
    """Peers beside each other: times with quartiles, the ratio to ours, errors."""

    def seconds(median: float) -> dict[str, float]:
        return {"lower": 0.9 * median, "median": median, "upper": 1.1 * median}

    peers = [
        {"peer": "normwise", "forward": seconds(1e-3), "both": seconds(2e-3),
         "errors": {"y": 0.5, "dx": 0.51, "dw": 1e-7, "db": 2e-7}},
        {"peer": "torch", "forward": seconds(5e-3), "both": seconds(16e-3),
         "errors": {"y": 0.5, "dx": 1.5, "dw": 6e-3}},
        {"peer": "clone", "forward": seconds(5e-4), "both": None, "errors": None},
    ]  # fmt: skip
    result = {
        "settings": {"threads": 2},
        "conditions": {**conditions(), "numba": "0", "transformers": "0"},
        "cases": [
            {
                "case": asdict(Case("reused", "rms_norm", 4, 8, "bf16")),
                "peers": peers,
                "backend": "reference",
                "reason": "Numba cannot be imported",
            }
        ],
    }
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(document(result)))
    lines = console.export_text().splitlines()
    assert "bf16, normwise by the reference: Numba cannot be imported" in " ".join(
        line.strip() for line in lines
    )
    torchs = next(line for line in lines if line.startswith("torch"))
    assert torchs.split() == ["torch", "5.00", "(4.50-5.50)", "16.0", "(14.4-17.6)", "8.00",
                              "0.50", "1.50", "6e-3"]  # fmt: skip
    clone = next(line for line in lines if line.startswith("clone"))
    assert clone.split()[-5:] == ["-"] * 5


@pytest.mark.parametrize(
    ("longest", "shown"),
    [(9.83e-3, "9830 (9338-10322)"), (61.7e-6, "61.7 (58.6-64.8)"), (0.2113, "211 (201-222)")],
)
def test_a_table_fits_80_columns(longest: float, shown: str) -> None:
    """Peers' names stand whole beside times of three digits, from a microsecond to a second."""

    def seconds(median: float) -> dict[str, float]:
        return {"lower": 0.95 * median, "median": median, "upper": 1.05 * median}

    errors = {"y": 10.25, "dx": 10.33, "dw": 1.9e-4}
    peers = [
        {"peer": name, "forward": seconds(longest / 50), "both": seconds(longest), "errors": errors}
        for name in ("normwise", "torch.compile", "kernel alone")
    ]
    result = {
        "settings": {"threads": 2},
        "conditions": {**conditions(), "numba": "0", "transformers": "0"},
        "cases": [{"case": asdict(Case("huge", "add_layer_norm", 65536, 4096, "bf16")),
                   "peers": peers, "backend": "numba", "reason": ""}],
    }  # fmt: skip
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(document(result)))
    compiled = [line for line in console.export_text().splitlines() if "torch.compile " in line]
    assert len(compiled) == 1
    assert shown in compiled[0]
