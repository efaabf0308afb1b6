"""What was asked for, in a file and back."""

import dataclasses
import json

from normwise.lab.grid import expand
from normwise.lab.plan import Plan, Skipped
from normwise.lab.settings import CompareSettings

PLAN = expand(CompareSettings())


def test_a_plan_comes_back() -> None:
    assert Plan.from_json(json.loads(json.dumps(PLAN.to_json()))) == PLAN


def test_an_empty_plan_comes_back() -> None:
    plan = expand(CompareSettings(steps=10, warmup=(20,)))
    assert plan.runs == () and plan.skipped
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_what_runs_share_is_written_once() -> None:
    content = PLAN.to_json()
    assert content["shared"]["steps"] == 300
    assert all(not set(content["shared"]) & set(run) for run in content["runs"])


def test_the_id_is_of_what_is_asked_for_and_not_of_how_it_was_typed() -> None:
    assert dataclasses.replace(PLAN, command="normwise compare --seeds 2").id == PLAN.id
    assert dataclasses.replace(PLAN, runs=PLAN.runs[1:]).id != PLAN.id
    assert dataclasses.replace(PLAN, skipped=(Skipped("a", "b"),)).id != PLAN.id


def test_a_plan_knows_its_command() -> None:
    assert PLAN.command == "normwise compare"
    assert expand(CompareSettings(data=["text"])).command is None
