"""The monitor in Lightning."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from normwise.errors import MissingExtra
from normwise.probe.monitor import Monitor

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    raise MissingExtra("lightning", "lightning", "A callback of its Trainer") from None

PRECISIONS = {"bf16": "bf16", "16": "fp16"}


class MonitorCallback(Callback):
    """A `Monitor` of the model that a Lightning Trainer trains.

        trainer = Trainer(callbacks=[MonitorCallback(module="model")])

    Steps and precision are the Trainer's, and its loggers are told what the monitor finds.
    `monitor` is there from the first step on.

    Args:
        every: optimizer steps from sample to sample.
        module: attribute of the LightningModule that is the Transformer; "" for itself, where its
            `training_step` calls it by its `forward`.
        options: of `Monitor`.
    """

    def __init__(self, every: int = 50, module: str = "", **options: Any) -> None:
        self.every = every
        self.module = module
        self.options = options
        self.monitor: Monitor | None = None
        self._seen = 0
        self._losses: list[Tensor] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attaches the monitor."""
        kind = str(trainer.precision).partition("-")[0]
        own = {
            "steps": trainer.max_steps if trainer.max_steps > 0 else None,
            "dtype": PRECISIONS.get(kind, "fp32"),
            "sinks": [LoggerSink(logger) for logger in trainer.loggers],
        }  # fmt: skip
        model = pl_module.get_submodule(self.module)
        self.monitor = Monitor(
            model, trainer.optimizers[0], self.every, **{**own, **self.options}
        )  # fmt: skip
        self.monitor.taken = self._seen = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Tells the monitor of an optimizer step; between micro-batches there is none."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            self._losses.append(loss.detach())  # divided by the number of micro-batches
        if self.monitor is None or trainer.global_step == self._seen:
            return
        self._seen = trainer.global_step
        losses, self._losses = self._losses, []
        self.monitor.step(loss=sum(losses[1:], start=losses[0]) if losses else None)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leaves no trace in the model, also after an exception."""
        if self.monitor is not None:
            self.monitor.close()


class LoggerSink:
    """A logger of Lightning as a sink of the monitor."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Gives the values to the logger."""
        self.logger.log_metrics(values, step=step)
