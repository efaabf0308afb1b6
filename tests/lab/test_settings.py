"""Settings say what must hold."""

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest

from normwise.cli.commands.compare import compare as command
from normwise.errors import SettingError
from normwise.lab.grid import expand
from normwise.lab.settings import CompareSettings, RunSettings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": (1e-3, 0.0)}, "lr must be positive. It is 0.0."),
        ({"lr": (float("inf"),)}, "lr must be positive. It is inf."),
        ({"lr": ()}, "lr must be at least one value. It is none."),
        ({"warmup": (-1,)}, "warmup must be at least 0. It is -1."),
        ({"depth": (0,)}, "depth must be at least 1. It is 0."),
        ({"seeds": 0}, "seeds must be at least 1. It is 0."),
        ({"workers": 0}, "workers must be at least 1. It is 0."),
        ({"steps": 0}, "steps must be at least 1. It is 0."),
        ({"ff_ratio": 0.0}, "ff_ratio must be positive. It is 0.0."),
        ({"clip": -1.0}, "clip must be at least 0. It is -1.0."),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0. It is -0.1."),
        ({"betas": (0.9,)}, "betas must be two numbers in [0, 1). It is 0.9."),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers in [0, 1). It is 0.9,1.0."),
        ({"device": "tpu"}, "device must be one of cpu, cuda, mps. It is tpu."),
        ({"precision": "fp8"}, "precision must be one of fp32, bf16, fp16. It is fp8."),
    ],
)
def test_a_value_that_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        CompareSettings(**change)
    assert str(caught.value) == message


def test_a_single_value_is_a_tuple_of_one() -> None:
    settings = CompareSettings(norms="rms_norm", lr=1e-3, depth=[2, 4])  # type: ignore[arg-type]
    assert (settings.norms, settings.lr, settings.depth) == (("rms_norm",), (1e-3,), (2, 4))
    assert hash(settings)


def test_a_run_is_known_by_its_settings() -> None:
    runs = expand(CompareSettings()).runs
    assert len({run.id for run in runs}) == len(runs)
    for run in runs:
        assert RunSettings.from_json(dataclasses.asdict(run)) == run
        assert dataclasses.replace(run, steps=run.steps + 1).id != run.id


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lr": (1e-3, 4e-3), "warmup": (0, 10, 150), "seeds": 5},
        {"bias": True, "tied_head": True, "betas": (0.8, 0.95)},
        {"out": "runs/two words", "data": "it's/*.txt", "builder": "my.module:build"},
        {"placements": ("post_norm",), "inits": ("default",), "clip": 0.0, "precision": "bf16"},
    ],
)
def test_the_command_asks_for_the_same_comparison(changes: dict[str, Any]) -> None:
    settings = CompareSettings(**changes)
    program, name, *words = shlex.split(str(settings.command))
    assert (program, name) == ("normwise", "compare")
    values = command.make_context("compare", words).params
    del values["as_json"], values["dry_run"]
    assert dataclasses.replace(CompareSettings(**values), out=settings.out) == settings


def test_a_text_that_is_no_file_has_no_command() -> None:
    assert CompareSettings(data=["some text"]).command is None
    assert CompareSettings(data=Path("a.txt")).command == "normwise compare --data a.txt"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"bias": True}, " --bias"),
        ({"bias": False}, ""),
        ({"norms": ("rms_norm", "layer_norm")}, " --norms rms_norm,layer_norm"),
        ({"data": 'a "b" c'}, " --data 'a \"b\" c'"),
        ({"out": "elsewhere"}, ""),
    ],
)
def test_the_command_holds_what_is_not_the_default(changes: dict[str, Any], words: str) -> None:
    assert CompareSettings(**changes).command == f"normwise compare{words}"


@pytest.mark.parametrize(
    "changes",
    [
        {"lr": (1e-5, 1 / 3), "ff_ratio": 8 / 3, "betas": (0.9, 0.999)},
        {"builder": 'a "b" $HOME `c`', "data": "-strange name"},
        {"data": "hf:some/set", "text_column": "body", "tokenizer": "some tokenizer"},
        {"depth": (1, 2), "optimizer": ("sgd", "adamw"), "workers": 1, "weight_decay": 0.1},
    ],
)
def test_the_command_keeps_all_digits_and_signs(changes: dict[str, Any]) -> None:
    settings = CompareSettings(**changes)
    values = command.make_context("compare", shlex.split(str(settings.command))[2:]).params
    assert {name: values[name] for name in changes} == changes


def test_a_flag_can_be_turned_off_again() -> None:
    assert command.make_context("compare", ["--bias", "--no-bias"]).params["bias"] is False
