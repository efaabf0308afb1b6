"""The monitor in Hugging Face's Trainer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from normwise.probe.integrations.hugging_face import MonitorCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers


class Tokens(Dataset[dict[str, Any]]):
    """Sentences of random tokens."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(0, 99, (48,), generator=generator)
        return {"input_ids": ids, "labels": ids}


def trained(tmp_path: Path, callback: MonitorCallback | None) -> tuple[Trainer, GPT2LMHeadModel]:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    )
    args = TrainingArguments(
        str(tmp_path), max_steps=8, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        learning_rate=1e-3, warmup_steps=3, report_to="none", save_strategy="no", use_cpu=True,
        disable_tqdm=True, logging_steps=1, seed=0,
    )  # fmt: skip
    trainer = Trainer(
        model, args, train_dataset=Tokens(), callbacks=[callback] if callback else []
    )  # fmt: skip
    trainer.train()
    return trainer, model


def test_a_training_of_the_trainer(tmp_path: Path) -> None:
    """Every step is recorded once over both of its micro-batches, and the training is the same."""
    callback = MonitorCallback(every=2, log=tmp_path / "run.jsonl", max_overhead=100.0)
    trainer, model = trained(tmp_path, callback)
    _, plain = trained(tmp_path, None)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    monitor = callback.monitor
    assert monitor is not None
    assert [record.step for record in monitor.run.records] == list(range(8))
    assert (monitor.run.steps, monitor.run.warmup) == (8, 3)
    point = monitor.run.records[0].stacks[0].points[0]
    assert point is not None
    assert point.count == 2 * 2 * 4 * 32, "two micro-batches of two, tokens 0 and every sixteenth"
    logged = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    assert [loss for _, loss in monitor.run.losses] == pytest.approx(logged, abs=2e-4)
    assert monitor.run.records[0].updates
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
