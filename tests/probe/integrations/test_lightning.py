"""The monitor in Lightning."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

lightning = pytest.importorskip("lightning.pytorch", reason="the extra lightning is not installed")

from normwise.probe.integrations.lightning import MonitorCallback  # noqa: E402
from tests.probe.models import Tiny, ids, loss_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of lightning


class Training(lightning.LightningModule):  # type: ignore[name-defined,misc]
    """A training of `Tiny`."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Tiny()

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        return loss_of(self.model, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-2)


class Logger(lightning.loggers.logger.DummyLogger):  # type: ignore[name-defined,misc]
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, Any]] = []

    def log_metrics(self, values: Any, step: int) -> None:
        if any(name.startswith("normwise/") for name in values):
            self.told.append((step, values))


def trained(tmp_path: Path, callbacks: list[Any], logger: Any = None) -> Training:
    training = Training()
    trainer = lightning.Trainer(
        max_steps=6, accelerator="cpu", logger=logger or False, callbacks=callbacks,
        default_root_dir=tmp_path, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=2,
    )  # fmt: skip
    batches = DataLoader([ids(seed, rows=1)[0] for seed in range(48)], batch_size=4)
    trainer.fit(training, batches)
    return training


def test_a_training_of_lightning(tmp_path: Path) -> None:
    """Every step is recorded once over both of its batches, and the training is the same."""
    callback = MonitorCallback(every=2, module="model", max_overhead=100.0)
    logger = Logger()
    training = trained(tmp_path, [callback], logger)
    plain = trained(tmp_path, [])
    assert all(map(torch.equal, training.parameters(), plain.parameters()))
    monitor = callback.monitor
    assert monitor is not None
    assert [record.step for record in monitor.run.records] == list(range(6))
    assert len(monitor.run.losses) == 6
    assert [step for step, _ in logger.told] == list(range(6))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in training.modules())


def test_a_module_that_is_not_called_says_so(tmp_path: Path) -> None:
    """Its `training_step` calls the model within it."""
    with pytest.raises(ValueError, match="is not the one that the monitor was given"):
        trained(tmp_path, [MonitorCallback()])
