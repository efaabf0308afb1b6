"""What a run learns to predict: the next token of a text, or tokens hidden in its sentences."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from normwise.errors import DataError
from normwise.lab.data import Corpus
from normwise.lab.settings import RunSettings
from normwise.table import Table

VALIDATION_ROWS = 256
UNASKED = -100  # a target that is no part of the loss, cross_entropy's own sign
HIDDEN_SHARE = 0.15


@dataclass(frozen=True)
class Batch:
    """Tokens (B, T), what is asked at each of them, and which are valid (None: all)."""

    inputs: Tensor
    targets: Tensor
    mask: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        mask = None if self.mask is None else self.mask.to(device)
        return Batch(self.inputs.to(device), self.targets.to(device), mask)

    @property
    def tokens(self) -> int:
        """Valid ones."""
        return self.inputs.numel() if self.mask is None else int(self.mask.sum())

    @property
    def options(self) -> dict[str, Tensor]:
        """Keywords for the model."""
        return {} if self.mask is None else {"mask": self.mask}


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats, logits (..., vocab_size) in fp32 against targets (...)."""
    return cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), ignore_index=UNASKED)


class Objective(ABC):
    """How a text becomes batches.

    Args:
        run: batch size, sequence length and seed.
        corpus: the text.
    """

    causal = True
    extra_tokens = 0  # ids that the objective needs above the vocabulary's

    def __init__(self, run: RunSettings, corpus: Corpus) -> None:
        self.run = run
        self.corpus = corpus

    def batches(self) -> Iterator[Batch]:
        """Random batches of the training text, without end; the same for the same seed."""
        generator = torch.Generator().manual_seed(self.run.seed)
        while True:
            yield self.batch(self.drawn(generator), generator)

    @abstractmethod
    def drawn(self, generator: torch.Generator) -> NDArray[Any]:
        """Rows of tokens from the training text."""

    @abstractmethod
    def spread(self) -> NDArray[Any]:
        """Rows spread evenly over the validation text, the same for every run."""

    @abstractmethod
    def batch(self, rows: NDArray[Any], generator: torch.Generator) -> Batch:
        """Inputs and targets from rows."""

    def validation(self) -> Iterator[Batch]:
        """The validation text in batches."""
        generator = torch.Generator().manual_seed(0)
        rows = self.spread()
        for start in range(0, len(rows), self.run.batch_size):
            yield self.batch(rows[start : start + self.run.batch_size], generator)


class NextToken(Objective):
    """Each token from those before it, in windows that start anywhere."""

    def drawn(self, generator: torch.Generator) -> NDArray[Any]:
        last = len(self.corpus.train) - self.run.seq_len - 1
        starts = torch.randint(0, last + 1, (self.run.batch_size,), generator=generator)
        return self._windows(self.corpus.train, starts)

    def spread(self) -> NDArray[Any]:
        last = len(self.corpus.validation) - self.run.seq_len - 1
        starts = torch.linspace(0, last, min(VALIDATION_ROWS, last + 1)).long()
        return self._windows(self.corpus.validation, starts)

    def _windows(self, tokens: NDArray[Any], starts: Tensor) -> NDArray[Any]:
        positions = starts[:, None].numpy() + range(self.run.seq_len + 1)
        windows: NDArray[Any] = tokens[positions]
        return windows

    def batch(self, rows: NDArray[Any], generator: torch.Generator) -> Batch:
        window = torch.from_numpy(rows.astype("int64"))
        return Batch(window[:, :-1], window[:, 1:])


class HiddenTokens(Objective):
    """15 % of a sentence's tokens from all the others; sentences are padded to the longest.

    Of the tokens asked for, 80 % are replaced by a sign of their own, 10 % by a random token, and
    10 % stay. Devlin et al. 2019 (1810.04805), section 3.1.

    Raises:
        DataError: a text that is not bytes, or one without two sentences in either part.
    """

    causal = False
    extra_tokens = 2

    def __init__(self, run: RunSettings, corpus: Corpus) -> None:
        super().__init__(run, corpus)
        if corpus.tokenizer != "bytes":
            raise DataError(
                f"Sentences are found in bytes. The tokenizer is {corpus.tokenizer}. Pass "
                f"tokenizer bytes."
            )
        self.padding, self.hidden = corpus.vocab_size, corpus.vocab_size + 1
        self.train = sentences(corpus.train)
        self.held_out = sentences(corpus.validation)
        if min(len(self.train), len(self.held_out)) < 2:
            raise DataError(
                f"The text must have two sentences for training and two for validation. "
                f"{corpus.source} has {len(self.train)} and {len(self.held_out)}. Pass more text."
            )

    def drawn(self, generator: torch.Generator) -> NDArray[Any]:
        chosen = torch.randint(0, len(self.train), (self.run.batch_size,), generator=generator)
        return self._padded(self.corpus.train, self.train[chosen.numpy()])

    def spread(self) -> NDArray[Any]:
        count = min(VALIDATION_ROWS, len(self.held_out))
        chosen = np.linspace(0, len(self.held_out) - 1, count).astype(int)
        return self._padded(self.corpus.validation, self.held_out[chosen])

    def _padded(self, tokens: NDArray[Any], spans: NDArray[Any]) -> NDArray[Any]:
        lengths = np.minimum(spans[:, 1] - spans[:, 0], self.run.seq_len)
        rows = np.full((len(spans), lengths.max()), self.padding, dtype=np.int64)
        for row, (start, _), length in zip(rows, spans, lengths, strict=True):
            row[:length] = tokens[start : start + length]
        return rows

    def batch(self, rows: NDArray[Any], generator: torch.Generator) -> Batch:
        tokens = torch.from_numpy(rows)
        mask = tokens != self.padding
        chance = torch.rand(tokens.shape, generator=generator).where(mask, torch.tensor(2.0))
        asked = (chance < HIDDEN_SHARE) | (chance == chance.amin(-1, keepdim=True))
        way = torch.rand(tokens.shape, generator=generator)
        random = torch.randint(0, self.corpus.vocab_size, tokens.shape, generator=generator)
        inputs = torch.where(asked & (way < 0.9), random, tokens)
        inputs = torch.where(asked & (way < 0.8), torch.tensor(self.hidden), inputs)
        return Batch(inputs, torch.where(asked, tokens, torch.tensor(UNASKED)), mask)


SHORTEST = 8  # bytes; below it a sentence is a number in a list, or "etc."


def sentences(tokens: NDArray[Any]) -> NDArray[Any]:
    """(start, end) of the sentences in bytes: what ends with . ? or ! before white space, or with
    an empty line.
    """
    mark = np.isin(tokens[:-1], list(b".?!")) & np.isin(tokens[1:], list(b" \n"))
    empty_line = (tokens[:-1] == ord("\n")) & (tokens[1:] == ord("\n"))
    ends = np.flatnonzero(mark | empty_line) + 1
    starts = np.concatenate(([0], ends))
    spans = np.stack((starts, np.concatenate((ends, [len(tokens)]))), axis=1)
    long_enough: NDArray[Any] = spans[spans[:, 1] - spans[:, 0] >= SHORTEST]
    return long_enough


OBJECTIVES: Table[type[Objective]] = Table("objective", {"next": NextToken, "hidden": HiddenTokens})
