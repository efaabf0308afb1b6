"""Model builders that worker processes import by name."""

import os
import signal

import torch
from torch import Tensor, nn

from normwise.lab.settings import RunSettings


class Bigram(nn.Module):
    """Logits of the next token from a table: a model that is not normwise's."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.table(ids)
        return logits


class Exploding(Bigram):
    """A loss that is finite until the third forward pass of training."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self.passes = 0

    def forward(self, ids: Tensor) -> Tensor:
        self.passes += 1
        factor = torch.inf if self.passes > 4 else 1.0  # the first pass records the signal
        return super().forward(ids) * factor


def bigram(run: RunSettings, vocab_size: int) -> nn.Module:
    return Bigram(vocab_size)


def exploding(run: RunSettings, vocab_size: int) -> nn.Module:
    return Exploding(vocab_size)


class Hopeless(Bigram):
    """A loss that is infinite from the first step on."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * torch.inf


def hopeless(run: RunSettings, vocab_size: int) -> nn.Module:
    return Hopeless(vocab_size)


def failing(run: RunSettings, vocab_size: int) -> nn.Module:
    if run.placement == "post_norm":
        raise ArithmeticError("no such model")
    return Bigram(vocab_size)


def dying(run: RunSettings, vocab_size: int) -> nn.Module:
    if run.placement == "post_norm":
        os.kill(os.getpid(), signal.SIGKILL)
    return Bigram(vocab_size)
