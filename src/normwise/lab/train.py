"""One run: a small Transformer trained on a corpus, and what it came to."""

import importlib
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from normwise.conditions import conditions
from normwise.errors import DeviceUnavailable, MissingExtra, SettingError
from normwise.lab.data import Corpus
from normwise.lab.objective import OBJECTIVES, UNASKED, Batch, Objective, token_loss
from normwise.lab.prediction import predicted_stream, token_moments
from normwise.lab.settings import OWN, RunSettings, SharedSettings
from normwise.model.config import TransformerConfig
from normwise.model.transformer import Transformer
from normwise.norms.regularized_batch_norm import batch_penalty
from normwise.probe.admin import profile_admin
from normwise.probe.stream import StreamProfile, StreamRecorder
from normwise.schedules import Schedule, parameter_groups, set_rate
from normwise.table import Table

try:
    from accelerate import Accelerator
except ImportError:
    raise MissingExtra("accelerate", "lab", "A comparison") from None

Groups = list[dict[str, object]]
Progress = Callable[[int], object]


def _adamw(groups: Groups, run: RunSettings) -> torch.optim.Optimizer:
    first, second = run.betas
    return torch.optim.AdamW(groups, lr=run.lr, betas=(first, second), fused=True)


def _sgd(groups: Groups, run: RunSettings) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=run.lr, momentum=run.betas[0])


OPTIMIZERS = Table("optimizer", {"adamw": _adamw, "sgd": _sgd})


def model_config(run: RunSettings, vocab_size: int) -> TransformerConfig:
    """The Transformer that a run trains."""
    asked, objective = run.query_key_norm, OBJECTIVES[run.objective]
    return TransformerConfig(
        vocab_size=vocab_size + objective.extra_tokens, causal=objective.causal,
        max_len=run.seq_len, width=run.width, depth=run.depth,
        heads=run.heads, norm=run.norm, placement=run.placement, init=run.init,
        activation=run.activation, ff_ratio=run.ff_ratio, bias=run.bias, positions=run.positions,
        query_key_norm=None if asked == OWN else asked, tied_head=run.tied_head,
    )  # fmt: skip


def build_model(run: RunSettings, vocab_size: int) -> nn.Module:
    """The run's own builder's model, or normwise's Transformer."""
    if run.builder is None:
        return Transformer(model_config(run, vocab_size), seed=run.seed)
    module, _, function = run.builder.partition(":")
    try:
        builder = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise SettingError(
            f"builder must be MODULE:FUNCTION that can be imported. {run.builder} cannot: {error}. "
            f"Put the function into a module on the path."
        ) from error
    torch.manual_seed(run.seed)
    model: nn.Module = builder(run, vocab_size)
    return model


def train(
    run: RunSettings,
    corpus: Corpus,
    progress: Progress = lambda step: None,
    keep: Callable[[nn.Module], object] = lambda model: None,
) -> dict[str, Any]:
    """Trains one variant and returns its record, as plain values; `keep` gets the trained model.

    The seed sets the initial weights and the order of the batches, so that variants of one seed
    see the same batches. A loss that is not finite ends the run; that is a result.

    Raises:
        DeviceUnavailable: the device or the precision is not to be had here.
    """
    accelerator = _accelerator(run)
    objective = OBJECTIVES[run.objective](run, corpus)
    started = time.perf_counter()
    model = build_model(run, corpus.vocab_size)
    if run.builder is None and run.placement == "admin":
        batch = next(objective.batches())
        profile_admin(model, batch.inputs, **batch.options)
    parameters = sum(p.numel() for p in model.parameters())
    groups = parameter_groups(model, run.weight_decay)
    model, optimizer = accelerator.prepare(model, OPTIMIZERS[run.optimizer](groups, run))
    profile = _initial_profile(model, objective, accelerator.device)
    training = _Training(accelerator, model, optimizer, run)
    losses, seconds = training.run(objective.batches(), progress)
    finished = len(losses) == run.steps
    validation = _validation_loss(model, objective, accelerator.device) if finished else math.nan
    diverged_at = None if math.isfinite(validation) else len(losses) + 1
    keep(accelerator.unwrap_model(model))
    return {
        "id": run.id,
        "settings": asdict(run),
        "validation_loss": None if diverged_at else validation,
        "diverged_at": diverged_at,
        "train_loss": losses,
        "initial": {name: _finite(values) for name, values in asdict(profile).items()},
        "predicted_stream": _predicted_stream(run, corpus),
        "parameters": parameters,
        "tokens_per_second": training.tokens / seconds,
        "peak_memory_bytes": _peak_memory(accelerator.device),
        "seconds": time.perf_counter() - started,
        "data": corpus.describe(),
        "conditions": conditions(),
    }


class _Training:
    """The loop over optimizer steps, on Accelerate; the schedule is ours and counts steps."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        run: RunSettings,
    ) -> None:
        self.accelerator = accelerator
        self.model = model
        self.optimizer = optimizer
        self.settings = run
        self.schedule = Schedule(run.schedule, run.steps, run.warmup, rise=run.rise)
        self.tokens = 0  # seen so far, without padding

    def run(self, batches: Iterator[Batch], progress: Progress) -> tuple[list[float], float]:
        """Losses of the finite steps, and the seconds they took.

        A step that the gradient scaler of fp16 skipped has a loss, and does not advance the
        schedule.
        """
        losses: list[float] = []
        taken = 0
        started = time.perf_counter()
        for _ in range(self.settings.steps):
            set_rate(self.optimizer, self.schedule, taken)
            loss = self._step(batches)
            taken += not self.accelerator.optimizer_step_was_skipped
            if not math.isfinite(loss):
                break
            losses.append(loss)
            progress(len(losses))
        return losses, time.perf_counter() - started

    def _step(self, batches: Iterator[Batch]) -> float:
        """One optimizer step over `accumulate` batches; the mean of their losses."""
        total = 0.0
        for _ in range(self.settings.accumulate):
            batch = next(batches).to(self.accelerator.device)
            with self.accelerator.accumulate(self.model):
                loss = token_loss(self.model(batch.inputs, **batch.options), batch.targets)
                self.accelerator.backward(loss + batch_penalty(self.model))
                if self.accelerator.sync_gradients and self.settings.clip:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.clip)
                self.optimizer.step()
                self.optimizer.zero_grad()
            total += loss.item()
            self.tokens += batch.tokens
        return total / self.settings.accumulate


def check_device(settings: SharedSettings) -> None:
    """Raises `DeviceUnavailable` unless this machine has the device and the precision."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(),
             "mps": torch.backends.mps.is_available()}  # fmt: skip
    if not there[settings.device]:
        raise DeviceUnavailable(
            f"device must be one that torch finds here. {settings.device} is not among "
            f"{', '.join(name for name in there if there[name])}."
        )
    if settings.precision == "fp16" and settings.device == "cpu":
        raise DeviceUnavailable("fp16 training needs a GPU. The device is cpu. Use bf16 or fp32.")


def _accelerator(run: RunSettings) -> Accelerator:
    check_device(run)
    return Accelerator(
        cpu=run.device == "cpu",
        mixed_precision="no" if run.precision == "fp32" else run.precision,
        gradient_accumulation_steps=run.accumulate,
    )


def _initial_profile(model: nn.Module, objective: Objective, device: torch.device) -> StreamProfile:
    """Stream and gradients by connection on one fixed batch, before the first step."""
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with StreamRecorder(model) as recorder:
        batch = next(objective.batches()).to(device)
        token_loss(model(batch.inputs, **batch.options), batch.targets).backward()
    model.zero_grad()
    batch_penalty(model)  # of no step, so it goes unused
    for name, buffer in model.named_buffers():
        buffer.copy_(kept[name])
    return recorder.profile()


def _predicted_stream(run: RunSettings, corpus: Corpus) -> list[float] | None:
    """What theory expects of the stream's RMS; None for a model of someone else's, and for padded
    sentences, whose tokens see different numbers of keys.
    """
    if run.builder is not None or run.objective != "next":
        return None
    config = model_config(run, corpus.vocab_size)
    return predicted_stream(config, token_moments(config, corpus.collision), run.seq_len)


@torch.no_grad()
def _validation_loss(model: nn.Module, objective: Objective, device: torch.device) -> float:
    """Mean loss over the validation text, the same part of it for every run."""
    model.eval()
    total, asked = 0.0, 0
    for batch in objective.validation():
        count = int((batch.targets != UNASKED).sum())
        there = batch.to(device)
        loss = token_loss(model(there.inputs, **there.options), there.targets)
        total, asked = total + loss.item() * count, asked + count
    return total / asked


def _finite(values: list[float]) -> list[float | None]:
    """None where a model overflows before its first step."""
    return [value if math.isfinite(value) else None for value in values]


def _peak_memory(device: torch.device) -> int:
    """Bytes: the device's peak on CUDA, the process's largest resident size elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
