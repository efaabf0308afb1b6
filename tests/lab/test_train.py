"""One run."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from normwise.errors import DeviceUnavailable, SettingError
from normwise.lab.data import Corpus, load_corpus
from normwise.lab.grid import expand
from normwise.lab.settings import CompareSettings, RunSettings
from normwise.lab.train import build_model, token_loss, train
from normwise.schedules import Schedule

TINY = CompareSettings(
    placements=("pre_norm",), depth=(1,), width=16, heads=2, seq_len=16, batch_size=4, steps=6,
    warmup=(3,), seeds=1,
)  # fmt: skip


def tiny(**changes: Any) -> RunSettings:
    return dataclasses.replace(expand(TINY).runs[0], **changes)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus()


def test_the_same_settings_give_the_same_run(corpus: Corpus) -> None:
    first, second = train(tiny(), corpus), train(tiny(), corpus)
    for same in ("id", "validation_loss", "train_loss", "initial"):
        assert first[same] == second[same]


def test_another_seed_gives_another_run(corpus: Corpus) -> None:
    assert train(tiny(), corpus)["train_loss"] != train(tiny(seed=1), corpus)["train_loss"]


def test_training_lowers_the_loss(corpus: Corpus) -> None:
    record = train(tiny(steps=60, lr=1e-2), corpus)
    assert record["validation_loss"] < record["train_loss"][0] - 1.0
    assert record["validation_loss"] < corpus.unigram_loss + 0.1


def test_the_record_says_what_was_run(corpus: Corpus) -> None:
    run = tiny()
    record = train(run, corpus)
    assert RunSettings.from_json(record["settings"]) == run
    assert record["id"] == run.id
    assert len(record["train_loss"]) == run.steps
    assert record["diverged_at"] is None
    assert record["parameters"] == sum(p.numel() for p in build_model(run, 256).parameters())
    assert record["tokens_per_second"] > 0 and record["peak_memory_bytes"] > 1e6
    assert record["conditions"]["torch"] == torch.__version__
    assert len(record["initial"]["stream"]) == 2 * run.depth + 1


def test_the_first_loss_is_that_of_the_untrained_model(corpus: Corpus) -> None:
    assert abs(train(tiny(), corpus)["train_loss"][0] - math.log(256)) < 0.5


class Rates:
    """Rates that an optimizer used, one for each of its steps."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.seen.append(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_P55_a_schedule_counts_optimizer_steps(accumulate: int, corpus: Corpus) -> None:
    """P55: the rates do not depend on how many batches make a step."""
    # accelerate#963, #1382, transformers#18436
    rates = Rates()
    handle = register_optimizer_step_pre_hook(rates)
    try:
        train(tiny(accumulate=accumulate, schedule="linear"), corpus)
    finally:
        handle.remove()
    schedule = Schedule("linear", steps=6, warmup=3)
    assert rates.seen == [1e-3 * schedule(step) for step in range(6)]


def test_accumulated_batches_give_the_gradient_of_one(corpus: Corpus) -> None:
    """Two batches of 4 make the step that one of 8 makes: SGD, one step, equal losses after."""
    settings = {"optimizer": "sgd", "lr": 1.0, "warmup": 0, "steps": 2, "clip": 0.0}
    one = train(tiny(batch_size=8, **settings), corpus)
    two = train(tiny(batch_size=4, accumulate=2, **settings), corpus)
    assert one["train_loss"][0] == pytest.approx(two["train_loss"][0], abs=1e-5)
    assert one["train_loss"][1] == pytest.approx(two["train_loss"][1], abs=1e-5)


def test_clipping_bounds_the_step(corpus: Corpus) -> None:
    free = train(tiny(optimizer="sgd", lr=1.0, warmup=0, clip=0.0), corpus)
    held = train(tiny(optimizer="sgd", lr=1.0, warmup=0, clip=1e-6), corpus)
    assert free["train_loss"][0] - free["train_loss"][-1] > 0.1
    flat = held["validation_loss"] - math.log(256)
    assert abs(flat) < 0.5 and held["train_loss"][-1] > free["train_loss"][-1] + 0.1


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "sgd", "lr": 0.1},
        {"activation": "swiglu", "positions": "rotary", "query_key_norm": "head"},
        {"bias": True, "tied_head": True, "placement": "peri_norm", "norm": "rms_norm"},
        {"norm": "no_norm", "init": "gpt2", "schedule": "cosine"},
    ],
)
def test_other_models_and_optimizers_train(change: dict[str, Any], corpus: Corpus) -> None:
    record = train(tiny(steps=30, **{"lr": 1e-2, **change}), corpus)
    assert record["train_loss"][-1] < record["train_loss"][0] - 0.2


def test_a_loss_that_is_not_finite_ends_the_run(corpus: Corpus) -> None:
    record = train(tiny(builder="tests.lab.models:exploding"), corpus)
    assert record["diverged_at"] == 4
    assert len(record["train_loss"]) == 3
    assert record["validation_loss"] is None


def test_a_run_that_diverges_at_once_still_has_a_speed(corpus: Corpus) -> None:
    record = train(tiny(builder="tests.lab.models:hopeless"), corpus)
    assert (record["diverged_at"], record["train_loss"]) == (1, [])
    assert record["tokens_per_second"] > 0


def test_a_builder_makes_the_model(corpus: Corpus) -> None:
    record = train(tiny(builder="tests.lab.models:bigram"), corpus)
    assert record["parameters"] == 256 * 256
    assert record["initial"]["branch"] == []


def test_a_builder_that_cannot_be_imported() -> None:
    with pytest.raises(SettingError, match="builder must be MODULE:FUNCTION that can be imported"):
        build_model(tiny(builder="tests.lab.models:nothing"), 256)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "cuda"}, "device must be one that torch finds here. cuda is not among cpu"),
        ({"precision": "fp16"}, "fp16 training needs a GPU. The device is cpu. Use bf16 or fp32."),
    ],
)
def test_what_this_machine_does_not_offer(
    change: dict[str, Any], message: str, corpus: Corpus
) -> None:
    with pytest.raises(DeviceUnavailable) as caught:
        train(tiny(**change), corpus)
    assert str(caught.value).startswith(message)


def test_the_loss_is_the_mean_cross_entropy_in_fp32() -> None:
    logits = torch.zeros(2, 3, 4, dtype=torch.bfloat16)
    loss = token_loss(logits, torch.zeros(2, 3, dtype=torch.long))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(4))


def test_gains_are_not_decayed(corpus: Corpus) -> None:
    """With SGD at rate 0.1 and decay 1 every matrix shrinks by a tenth a step, and no gain does."""
    run = tiny(
        optimizer="sgd", betas=(0.0, 0.0), lr=0.1, warmup=0, weight_decay=1.0, clip=1e-9, steps=3
    )
    kept: list[dict[str, Any]] = []

    def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        kept[:] = optimizer.param_groups

    handle = register_optimizer_step_post_hook(keep)
    try:
        train(run, corpus)
    finally:
        handle.remove()
    matrices, gains = (group["params"] for group in kept)
    assert all(p.ndim == 1 and (p - 1).abs().max() < 1e-6 for p in gains)
    head = build_model(run, 256).get_submodule("head").weight
    assert torch.allclose(matrices[-1], 0.9**3 * head, atol=1e-6)
