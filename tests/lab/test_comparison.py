"""Stored runs made into a comparison: order, what is missing, several sources, curves."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from normwise.errors import StoreError
from normwise.lab.comparison import Comparison, compare_stored, stored_comparison
from normwise.lab.data import load_corpus
from normwise.lab.plan import Failure, Plan, Skipped
from normwise.lab.settings import RunSettings
from normwise.lab.store import Contents, Record, Store
from normwise.lab.summary import CURVE_POINTS
from tests.report.comparisons import (
    CONDITIONS,
    DATA,
    comparison,
    damaged_file,
    record,
    settings,
)

TEXT = "some text " * 20


def stored(
    folder: Path, records: Sequence[Record], *, plan: Sequence[RunSettings] = (), text: str = TEXT
) -> Store:
    """A run folder with these runs, of which `plan` was asked for."""
    corpus = load_corpus([text])
    store = Store(folder)
    store.open(corpus)
    for item in records:
        store.write({**item, "data": corpus.describe()})
    if plan:
        store.write_plan(Plan(tuple(plan), command="normwise compare"))
    return store


def ids(result: Comparison) -> list[str]:
    return [item["id"] for item in result.records]


RUNS = [settings(place, seed) for seed in (0, 1) for place in ("post_norm", "pre_norm")]
DONE = [record(run.placement, run.seed, 2.0 + run.seed) for run in RUNS]


def test_runs_come_in_the_order_in_which_they_were_asked_for(tmp_path: Path) -> None:
    stored(tmp_path / "run", DONE[::-1], plan=RUNS)
    found = stored_comparison([tmp_path / "run"])
    assert ids(found) == [run.id for run in RUNS]
    assert [variant.axes["placement"] for variant in found.variants] == ["post_norm", "pre_norm"]
    assert found.commands() == [f"normwise compare --out {tmp_path / 'run'}"]


def test_what_is_missing_has_one_reason_each(tmp_path: Path) -> None:
    store = stored(tmp_path / "run", DONE[:2], plan=RUNS)
    broken = store.results / f"{RUNS[1].id}.json"
    broken.write_text(broken.read_text()[:100])
    store.write_failure(Failure(RUNS[2], "bad luck"))
    found = stored_comparison([tmp_path / "run"])
    assert ids(found) == [RUNS[0].id]
    assert [item.path for item in found.damaged] == [broken]
    assert found.failed == [Failure(RUNS[2], "bad luck")]
    assert found.unfinished == [RUNS[3]]


def test_a_failure_is_forgotten_once_the_run_has_a_result(tmp_path: Path) -> None:
    store = stored(tmp_path / "run", DONE[:1], plan=RUNS[:1])
    store.write_failure(Failure(RUNS[0], "bad luck"))
    assert stored_comparison([tmp_path / "run"]).failed == []
    store.write(DONE[0])
    assert list((tmp_path / "run" / "failures").iterdir()) == []


def test_folders_are_merged(tmp_path: Path) -> None:
    stored(tmp_path / "a", DONE[:2], plan=RUNS[:2])
    stored(tmp_path / "b", DONE[2:], plan=RUNS[2:])
    found = stored_comparison([tmp_path / "a", tmp_path / "b"])
    assert [variant.seeds for variant in found.variants] == [2, 2]
    assert found.commands() == [f"normwise compare --out {tmp_path / name}" for name in "ab"]
    assert not found.contested and not found.unfinished


def test_a_run_missing_in_one_folder_and_there_in_another_is_there(tmp_path: Path) -> None:
    store = stored(tmp_path / "a", DONE[:1], plan=RUNS)
    store.write_failure(Failure(RUNS[1], "bad luck"))
    stored(tmp_path / "b", DONE[1:])
    found = stored_comparison([tmp_path / "a", tmp_path / "b"])
    assert len(found.records) == 4
    assert not found.failed and not found.unfinished


def test_a_plan_within_another_adds_no_command(tmp_path: Path) -> None:
    store = stored(tmp_path / "run", DONE, plan=RUNS)
    store.write_plan(Plan(tuple(RUNS[:2]), command="normwise compare --seeds 1"))
    (command,) = stored_comparison([tmp_path / "run"]).commands()
    assert command == f"normwise compare --out {tmp_path / 'run'}"


def test_a_command_goes_on_where_the_folder_lies_now(tmp_path: Path) -> None:
    stored(tmp_path / "a", DONE[:1], plan=RUNS)
    (tmp_path / "a").rename(tmp_path / "two words")
    found = stored_comparison([tmp_path / "two words"])
    assert found.commands(missing=True) == [f"normwise compare --out '{tmp_path / 'two words'}'"]


def test_a_plan_that_is_done_has_nothing_to_go_on_with(tmp_path: Path) -> None:
    stored(tmp_path / "a", DONE, plan=RUNS)
    assert stored_comparison([tmp_path / "a"]).commands(missing=True) == []


def test_of_a_run_in_two_folders_the_first_counts(tmp_path: Path) -> None:
    stored(tmp_path / "a", [record("pre_norm", 0, 2.0)])
    stored(tmp_path / "b", [record("pre_norm", 0, 3.0), record("pre_norm", 1, 2.0)])
    found = stored_comparison([tmp_path / "a", tmp_path / "b"])
    assert found.variants[0].best.losses == {0: 2.0, 1: 2.0}
    assert found.contested == [settings("pre_norm", 0).id]
    assert stored_comparison([tmp_path / "a", tmp_path / "a"]).contested == []


def test_result_files_are_sources(tmp_path: Path) -> None:
    store = stored(tmp_path / "run", DONE, plan=RUNS)
    files = sorted(store.results.iterdir())[:3]
    found = stored_comparison(files)
    assert sorted(ids(found)) == [path.stem for path in files]
    assert found.data == store.manifest()
    assert not found.unfinished and not found.commands()


def test_runs_on_two_texts_are_refused(tmp_path: Path) -> None:
    first = stored(tmp_path / "a", DONE[:1]).manifest()["sha256"][:12]
    second = stored(tmp_path / "b", DONE[1:], text="other text " * 20).manifest()["sha256"][:12]
    with pytest.raises(StoreError) as caught:
        stored_comparison([tmp_path / "a", tmp_path / "b"])
    assert str(caught.value) == (
        f"A report compares runs on one text. These were made on strings (sha256 {first}) and "
        f"strings (sha256 {second}). Report them apart."
    )


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        stored_comparison([tmp_path])
    assert str(caught.value) == (
        f"A run folder must hold results. {tmp_path} holds none. "
        f"Pass a folder that normwise compare wrote, or result files from one."
    )


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(StoreError) as caught:
        stored_comparison([path])
    assert str(caught.value) == (
        f"A result file must be whole. {path} is not usable: it is no result of a run. "
        f"Pass a file from the results of a run folder."
    )


def test_a_result_of_another_format_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path / "run", DONE)
    monkeypatch.setattr("normwise.lab.store.FORMAT", 7)
    (reason, *_) = {item.reason for item in stored_comparison([tmp_path / "run"]).damaged}
    assert reason == "it has format 1, and this version reads format 7"


@pytest.mark.parametrize(
    ("folder", "content"),
    [
        ("plans", '{"runs": []}'),
        ("plans", "[]"),
        ("plans", '{"runs": 1}'),
        ("plans", '{"runs": [{"norm": ["a"]}], "shared": {}, "skipped": [], "command": null}'),
        ("failures", '{"settings": {}, "reason": ""}'),
        ("failures", '{"settings": null, "reason": "x"}'),
        ("failures", '{"reason": null}'),
    ],
)
def test_a_strange_file_is_damaged_and_stops_nothing(
    folder: str, content: str, tmp_path: Path
) -> None:
    store = stored(tmp_path / "run", DONE)
    (store.folder / folder).mkdir(exist_ok=True)
    path = store.folder / folder / "strange.json"
    path.write_text(content)
    found = stored_comparison([tmp_path / "run"])
    assert [item.path for item in found.damaged] == [path] and len(found.records) == 4


def test_a_damaged_result_names_its_run(tmp_path: Path) -> None:
    store = stored(tmp_path / "run", DONE, plan=RUNS)
    (store.results / f"{RUNS[2].id}.json").write_text("{}")
    (item,) = stored_comparison([tmp_path / "run"]).damaged
    assert item.run == RUNS[2] and item.is_result


def test_a_file_found_damaged_twice_is_named_once(tmp_path: Path) -> None:
    store = stored(tmp_path / "run", DONE)
    (store.results / f"{RUNS[2].id}.json").write_text("{}")
    assert len(stored_comparison([tmp_path / "run", tmp_path / "run"]).damaged) == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{}", "source is None"),
        ('{"source": "a", "sha256": "b", "tokenizer": "c", "tokens": "x"}', "tokens is 'x'"),
        ("no json", "it cannot be read: Expecting value: line 1 column 1 (char 0)"),
    ],
)
def test_a_manifest_that_is_not_whole(content: str, complaint: str, tmp_path: Path) -> None:
    path = stored(tmp_path / "run", DONE).folder / "manifest.json"
    path.write_text(content)
    with pytest.raises(StoreError) as caught:
        stored_comparison([tmp_path / "run"])
    assert str(caught.value) == (
        f"The manifest of a run folder must be whole. In {path} {complaint}. "
        f"Name another folder, or restore the file."
    )


def test_a_setting_that_differs_is_an_axis() -> None:
    """Two lengths of training are two variants, and one model."""
    found = comparison([record("pre_norm", 0, 2.3), record("pre_norm", 0, 2.1, steps=600)])
    assert [variant.axes["steps"] for variant in found.variants] == [300, 600]
    assert "steps" not in found.settings and found.settings["width"] == 64
    assert len(found.profiles) == 1


def test_a_width_that_differs_is_another_model() -> None:
    found = comparison([record("pre_norm", 0, 2.3), record("pre_norm", 0, 2.1, width=128)])
    assert [profile.axes["width"] for profile in found.profiles] == [64, 128]


def test_a_curve_is_a_mean_with_its_range() -> None:
    """300 steps make 100 points of three steps each."""
    runs = [record("pre_norm", 0, 2.0), record("pre_norm", 1, 2.0)]
    runs[0]["train_loss"] = [3.0, 4.0, 5.0] * 100
    runs[1]["train_loss"] = [6.0, 6.0, 6.0] * 100
    (curve,) = comparison(runs).curves
    assert len(curve.steps) == CURVE_POINTS == 100
    assert curve.steps[:2] == [2.0, 5.0] and curve.steps[-1] == 299.0
    assert (curve.mean[0], curve.low[0], curve.high[0]) == (5.0, 4.0, 6.0)
    assert curve.diverged == []


def test_a_curve_goes_on_with_the_seeds_that_are_left() -> None:
    runs = [record("pre_norm", 0, 2.0), record("pre_norm", 1, None, step=3)]
    runs[0]["train_loss"], runs[1]["train_loss"] = [1.0, 1.0, 1.0, 1.0], [3.0, 3.0]
    (curve,) = comparison(runs).curves
    assert curve.mean == [2.0, 2.0, 1.0, 1.0] and curve.diverged == [(3, 3.0)]


def test_a_curve_is_of_the_best_rate() -> None:
    runs = [record("pre_norm", 0, 3.0), record("pre_norm", 0, 2.0, lr=4e-3)]
    runs[0]["train_loss"], runs[1]["train_loss"] = [9.0], [4.0]
    assert comparison(runs).curves[0].mean == [4.0]


def test_a_run_that_diverges_at_once_has_an_empty_curve() -> None:
    (curve,) = comparison([record("pre_norm", 0, None, step=1)]).curves
    assert (curve.mean, curve.diverged) == ([], [(1, None)])


def test_json_has_everything_but_the_runs() -> None:
    content = json.loads(json.dumps(comparison().to_json(), allow_nan=False))
    assert content["ranking"]["differences"][1]["separable"] is True
    assert "records" not in content and "curves" not in content


def test_it_is_shown_in_a_line() -> None:
    assert repr(comparison()) == "<Comparison of 3 variants in 6 runs on a text>"


def test_reading_needs_no_torch() -> None:
    code = "import sys, normwise.lab.comparison\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_last_point_of_a_curve_stands_for_fewer_steps() -> None:
    """301 steps are 75 points of four and one of one."""
    (run,) = runs = [record("pre_norm", 0, 2.0)]
    run["train_loss"] = [1.0, 2.0, 3.0, 4.0] * 75 + [7.0]
    (curve,) = comparison(runs).curves
    assert len(curve.steps) == len(curve.mean) == 76 <= CURVE_POINTS
    assert (curve.steps[0], curve.steps[-1]) == (2.5, 301.0)
    assert (curve.mean[0], curve.mean[-1]) == (2.5, 7.0)


def test_a_seed_that_diverged_in_one_source_only_is_contested(tmp_path: Path) -> None:
    stored(tmp_path / "a", [record("pre_norm", 0, None)])
    stored(tmp_path / "b", [record("pre_norm", 0, 3.0)])
    found = stored_comparison([tmp_path / "a", tmp_path / "b"])
    assert found.variants[0].best.diverged == {0: 41}
    assert found.contested == [settings("pre_norm", 0).id]


def test_two_tokenizers_are_two_texts(tmp_path: Path) -> None:
    store = stored(tmp_path / "a", DONE[:1])
    manifest = {**store.manifest(), "tokenizer": "words"}
    stored(tmp_path / "b", DONE[1:])
    (tmp_path / "b" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreError) as caught:
        stored_comparison([tmp_path / "a", tmp_path / "b"])
    assert str(caught.value) == (
        "A report compares runs on one text. These were made on strings (tokenizer bytes) and "
        "strings (tokenizer words). Report them apart."
    )


def test_a_damaged_result_is_read_from_another_folder(tmp_path: Path) -> None:
    broken = stored(tmp_path / "a", DONE[:1], plan=RUNS[:1]).results / f"{RUNS[0].id}.json"
    broken.write_text("")
    stored(tmp_path / "b", DONE[:1])
    found = stored_comparison([tmp_path / "a", tmp_path / "b"])
    assert ids(found) == [RUNS[0].id] and not found.unfinished
    assert [item.path for item in found.damaged] == [broken]


def test_a_damaged_file_is_one_however_often_its_folder_is_named(tmp_path: Path) -> None:
    store = stored(tmp_path / "run", DONE)
    (store.results / "strange.json").write_text("")
    found = stored_comparison([tmp_path / "run", tmp_path / "run"])
    assert [item.path.name for item in found.damaged] == ["strange.json"]


def test_no_source_is_an_error_of_ours() -> None:
    with pytest.raises(StoreError) as caught:
        stored_comparison([])
    assert str(caught.value) == (
        "A report needs stored runs. No source was named. Pass run folders or result files."
    )


def test_one_source_needs_no_list(tmp_path: Path) -> None:
    stored(tmp_path / "run", DONE)
    for source in (tmp_path / "run", str(tmp_path / "run")):
        assert len(stored_comparison(source).records) == 4


def test_what_several_plans_say_is_said_once() -> None:
    """A line, a pair left out; and a plan without a line adds none."""
    skipped = (Skipped("a with b", "they do not fit"),)
    plans = [Plan((run,), skipped, command) for run, command in zip(RUNS, "xxy", strict=False)]
    contents = Contents({item["id"]: item for item in DONE}, [], [], [*plans, Plan((RUNS[3],))])
    found = compare_stored(DATA, contents)
    assert (found.commands(), found.skipped) == (["x", "y"], [*skipped])


def test_json_tells_what_went_wrong_and_under_which_conditions() -> None:
    failed, open_ = settings("pre_norm", 7), settings("pre_norm", 8)
    found = comparison(
        failures=[Failure(failed, "bad luck")],
        damaged=[damaged_file()],
        plan=Plan((failed, open_), (Skipped("a", "b"),), "normwise compare"),
    )
    content = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert content["damaged"] == [
        {"path": "results/abc.json", "reason": "its checksum does not match its content"}
    ]
    assert [item["run"]["seed"] for item in content["failed"]] == [7]
    assert [run["seed"] for run in content["unfinished"]] == [8]
    assert content["skipped"] == [{"what": "a", "reason": "b"}]
    assert content["commands"] == ["normwise compare"] and content["conditions"] == CONDITIONS
    assert comparison([]).to_json()["conditions"] is None


def test_a_repr_stays_short_whatever_there_is() -> None:
    runs = [record("pre_norm", seed, 2.0, warmup=w) for seed in range(3) for w in range(50)]
    assert repr(comparison(runs)) == "<Comparison of 50 variants in 150 runs on a text>"
