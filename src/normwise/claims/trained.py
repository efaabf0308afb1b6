"""The training runs that claims share: one model, one text, one run folder."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normwise.claims.settings import Effort
from normwise.lab.settings import RunSettings
from normwise.lab.store import Record, Store
from normwise.lab.train import build_model

RATE, FAST = 1e-3, 4e-3


def steps(effort: Effort) -> int:
    """Optimizer steps of a run."""
    return 100 if effort.quick else 200


def warmup(effort: Effort) -> int:
    """Steps of a warm-up, where there is one: half of them."""
    return steps(effort) // 2


def training_run(
    effort: Effort, placement: str = "pre_norm", seed: int = 0, **changes: Any
) -> RunSettings:
    """A run of the default comparison, 12 layers of width 64 on the default text, but shorter."""
    values: dict[str, Any] = {
        "norm": "layer_norm", "init": "xavier_packed", "lr": RATE, "warmup": 0,
        "optimizer": "adamw", "depth": 12, "steps": steps(effort),
        "batch_size": 8 if effort.quick else 16,
    }  # fmt: skip
    return RunSettings(placement=placement, seed=seed, **{**values, **changes})


def base_run(effort: Effort, placement: str, seed: int, warm: int = 0) -> RunSettings:
    """One at the default rate, whose weights are kept for those who look into the model."""
    return training_run(effort, placement, seed, warmup=warm, keep_weights=True)


class Trained:
    """The finished runs of a run folder.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)

    def record(self, run: RunSettings) -> Record:
        """What a run came to."""
        return self.store.result(run)

    def loss(self, run: RunSettings) -> float:
        """Validation loss. A run that diverged, or blew up, counts as one that knows nothing: the
        log of the vocabulary's size.
        """
        record = self.record(run)
        found, nothing = record["validation_loss"], math.log(record["data"]["vocab_size"])
        return nothing if found is None else min(float(found), nothing)

    @property
    def unigram(self) -> float:
        """Validation loss of a model that knows the frequencies of tokens and no more."""
        return float(self.store.manifest()["unigram_loss"])

    def model(self, run: RunSettings) -> nn.Module:
        """The trained model, of a run that kept its weights."""
        corpus = self.store.corpus()
        model = build_model(run, corpus.vocab_size)
        model.load_state_dict(torch.load(self.store.weights(run), weights_only=True))
        return model.eval()
