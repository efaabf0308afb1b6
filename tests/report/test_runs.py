"""All runs of a folder, how far they are, and one of them."""

import pytest

from normwise.errors import StoreError
from normwise.lab.comparison import Comparison
from normwise.lab.plan import Failure, Plan
from normwise.lab.settings import RunSettings
from normwise.report.document import Column, Command, Document, Note, Table
from normwise.report.runs import run_details, run_list, run_status
from tests.report.comparisons import CONDITIONS, RECORDS, comparison, damaged_file, record, settings

FAILED, OPEN = settings("pre_norm", 7), settings("pre_norm", 8)
TRACEBACK = "Traceback (most recent call last):\n  File\nArithmeticError: no such model\n"
AGAIN = "normwise compare --seeds 9"


def worn(command: str | None = AGAIN, reason: str = TRACEBACK) -> Comparison:
    """Six finished runs, one of them diverged, and one each that failed, is open, is damaged."""
    return comparison(
        failures=[Failure(FAILED, reason)],
        damaged=[damaged_file()],
        plan=Plan((*asked(), FAILED, OPEN), command=command),
    )


def asked() -> tuple[RunSettings, ...]:
    return tuple(RunSettings.from_json(item["settings"]) for item in RECORDS)


def table(document: Document) -> Table:
    (found,) = document.tables()
    return found


def lines(document: Document) -> list[str]:
    """Notes and commands, in order."""
    blocks = [block for section in document.sections for block in section.blocks]
    return [block.text for block in blocks if isinstance(block, Note)] + [
        block.line for block in blocks if isinstance(block, Command)
    ]


def test_every_run_is_a_row() -> None:
    found = table(run_list(worn()))
    assert found.columns == [
        Column("run"), Column("placement"), Column("seed", "seeds"), Column("state", "text")
    ]  # fmt: skip
    assert [row[1:] for row in found.rows] == [
        ("pre_norm", 0, "loss 2.350"), ("pre_norm", 1, "loss 2.370"),
        ("post_norm", 0, "loss 3.250"), ("post_norm", 1, "loss 3.260"),
        ("deep_norm", 0, "diverged at step 41"), ("deep_norm", 1, "loss 2.200"),
        ("pre_norm", 7, "failed: ArithmeticError: no such model"),
        ("pre_norm", 8, "unfinished"),
    ]  # fmt: skip
    runs = [*asked(), FAILED, OPEN]
    assert [row[0] for row in found.rows] == [run.id[:8] for run in runs]


def test_settings_that_vary_are_columns() -> None:
    runs = [record("pre_norm", 0, 2.0, warmup=0), record("pre_norm", 0, 2.1, steps=600)]
    found = table(run_list(comparison(runs)))
    assert [column.title for column in found.columns] == [
        "run", "steps", "warm-up", "seed", "state"
    ]  # fmt: skip
    assert [row[1:4] for row in found.rows] == [("300", "0", 0), ("600", "150", 0)]


def test_seeds_alone_make_no_second_column() -> None:
    found = table(run_list(comparison(RECORDS[:2])))
    assert [column.title for column in found.columns] == ["run", "seed", "state"]


def test_a_list_of_nothing_says_so() -> None:
    found = run_list(comparison([]))
    assert (found.verdict, found.sections) == ("No run is known here.", [])


def test_the_counts_come_first() -> None:
    counts = "6 finished, 1 of them diverged; 1 failed; 1 unfinished; 1 damaged."
    assert run_status(worn()).verdict == run_list(worn()).verdict == counts
    assert run_status(comparison(RECORDS[:3])).verdict == "3 finished."
    assert run_status(comparison([], plan=Plan((OPEN,)))).verdict == "0 finished; 1 unfinished."


def test_the_status_names_what_is_missing_and_how_to_go_on() -> None:
    assert lines(run_status(worn())) == [
        f"{RECORDS[4]['id'][:8]} diverged at step 41",
        f"{FAILED.id[:8]} failed: ArithmeticError: no such model",
        f"{OPEN.id[:8]} unfinished",
        "results/abc.json is damaged: its checksum does not match its content",
        "To go on:",
        AGAIN,
    ]


def test_what_is_missing_is_an_alert_and_how_to_go_on_is_none() -> None:
    notes = [b for b in run_status(worn()).sections[0].blocks if isinstance(b, Note)]
    assert [note.alert for note in notes] == [True, True, True, True, False]


def test_a_diverged_run_is_a_result_and_nothing_to_go_on_with() -> None:
    found = run_status(comparison(plan=Plan(asked(), command=AGAIN)))
    assert lines(found) == [f"{RECORDS[4]['id'][:8]} diverged at step 41"]


@pytest.mark.parametrize(
    "missing",
    [
        comparison(RECORDS[:1], plan=Plan((asked()[0], OPEN), command=AGAIN)),
        comparison(
            RECORDS[:1],
            plan=Plan((asked()[0], OPEN), command=AGAIN),
            damaged=[damaged_file(f"{OPEN.id}.json")],
        ),
        comparison(
            RECORDS[:1],
            plan=Plan((asked()[0], FAILED), command=AGAIN),
            failures=[Failure(FAILED, "bad luck")],
        ),
    ],
    ids=["unfinished", "damaged", "failed"],
)
def test_any_missing_run_is_gone_on_with(missing: Comparison) -> None:
    assert lines(run_status(missing))[-2:] == ["To go on:", AGAIN]


def test_without_a_command_nobody_is_told_to_go_on_with_one() -> None:
    """The text was Python's own object, so that no line asks for these runs again."""
    found = lines(run_status(worn(command=None)))
    assert f"{OPEN.id[:8]} unfinished" in found and "To go on:" not in found


def test_a_failure_without_a_reason_is_still_a_failure() -> None:
    """An OSError of a model's own code may say nothing."""
    found = lines(run_status(worn(reason="")))
    assert any(line.startswith(f"{FAILED.id[:8]} failed") for line in found)


def test_one_run_is_shown_with_its_settings_and_its_conditions() -> None:
    run = RECORDS[0]
    found = run_details(comparison(), run["id"][:6])
    rows = dict(table(found).rows)
    assert found.title == f"Run {run['id']}" and found.verdict == f"{run['id']}: loss 2.350"
    assert (rows["placement"], rows["warm-up"], rows["rate"]) == ("pre_norm", "150", "0.001")
    assert (rows["parameters"], rows["tokens a second"], rows["seconds"]) == (
        "628k", "6.1k", "50.0"
    )  # fmt: skip
    assert {name: rows[name] for name in CONDITIONS} == {k: str(v) for k, v in CONDITIONS.items()}
    assert len(rows) == len(table(found).rows) == len(run["settings"]) + 3 + len(CONDITIONS)


def test_a_diverged_run_is_shown_with_its_step() -> None:
    name = RECORDS[4]["id"]
    assert run_details(comparison(), name).verdict == f"{name}: diverged at step 41"


def test_a_run_that_is_not_there() -> None:
    known = ", ".join(item["id"][:8] for item in RECORDS)
    with pytest.raises(StoreError) as caught:
        run_details(comparison(), "zzz")
    assert str(caught.value) == (
        f"RUN must be the beginning of one ended run's id. 'zzz' begins no run. Known: {known}."
    )


def test_a_beginning_that_several_runs_have() -> None:
    runs = [{**item, "id": f"abc{number}"} for number, item in enumerate(RECORDS[:2])]
    with pytest.raises(StoreError) as caught:
        run_details(comparison(runs), "abc")
    assert str(caught.value) == (
        "RUN must be the beginning of one ended run's id. 'abc' begins 2 runs. Known: abc0, abc1."
    )
    assert run_details(comparison(runs), "abc1").verdict == "abc1: loss 2.370"


def test_where_nothing_has_finished_no_run_is_known() -> None:
    with pytest.raises(StoreError, match=r"'zzz' begins no run\. Known: none\.$"):
        run_details(comparison([]), "zzz")
