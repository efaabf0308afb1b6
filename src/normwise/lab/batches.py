"""A batch for a model, from what its configuration tells: tokens, text, or images."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normwise.errors import DataError, SettingError
from normwise.lab.check_settings import LENGTH, CheckSettings
from normwise.lab.data import load_corpus

TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.*", "spiece.*")
HIDDEN_SHARE = 0.15  # of the tokens that a masked model is asked for, as in BERT (1810.04805)
LETTERS = 12  # of text for each token that is asked for


def batch_for(model: nn.Module, settings: CheckSettings, ids: Tensor | None = None) -> Any:
    """A batch that the configuration of a model tells how to make."""
    if getattr(model, "main_input_name", "input_ids") == "pixel_values":
        return _images(model, settings)
    vocabulary = vocabulary_of(model)
    if vocabulary is None:
        raise SettingError(
            f"A batch is needed. The configuration of {type(model).__name__} tells no vocab_size "
            f"to draw tokens from. Pass --batch MODULE:FUNCTION."
        )
    pair = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    drawn = ids if ids is not None else _random_ids(model, vocabulary, settings)
    if not hasattr(model, "main_input_name"):  # a model of no library takes ids alone
        return drawn
    if pair:
        target = torch.roll(drawn, 1, dims=0)
        labelled = "labels" in inspect.signature(model.forward).parameters
        labels = {"labels": target} if labelled else {}
        before = torch.cat([target[:, :1], target[:, :-1]], dim=1)
        return {"input_ids": drawn, "decoder_input_ids": before, **labels}
    if type(model).__name__.endswith("ForMaskedLM"):
        other = replace(settings, seed=settings.seed + 1)
        return _hidden(drawn, _random_ids(model, vocabulary, other), settings.seed)
    return {"input_ids": drawn}


def _random_ids(model: nn.Module, vocabulary: int, settings: CheckSettings) -> Tensor:
    """Random token ids, without the one that stands for padding, whose embedding is zero."""
    ids = token_ids(vocabulary, settings, limit_of(model))
    padding = getattr(getattr(model, "config", None), "pad_token_id", None)
    if not isinstance(padding, int):
        return ids
    return torch.where(ids == padding, (padding + 1) % vocabulary, ids)


def vocabulary_of(model: nn.Module) -> int | None:
    """Tokens that a model's configuration knows."""
    text = _text_config(model)
    found: int | None = getattr(text, "vocab_size", None)
    return found


def _text_config(model: nn.Module) -> Any:
    """The configuration of what reads tokens; None without one."""
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def limit_of(model: nn.Module) -> int | None:
    """The longest sequence that a configuration allows."""
    text = _text_config(model)
    limits = (getattr(text, name, None) for name in ("max_position_embeddings", "max_len"))
    limit = next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)
    if limit is None:
        return None
    return limit - max((_skipped(module, limit) for module in model.modules()), default=0)


def _skipped(module: nn.Module, limit: int) -> int:
    """Rows that a table of positions keeps for padding, as RoBERTa's does: it begins after them."""
    if isinstance(module, nn.Embedding) and module.num_embeddings == limit:
        return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def _length(settings: CheckSettings, limit: int | None) -> int:
    """Tokens in a sequence: those asked for, else 128 or as many as fit."""
    asked = settings.seq_len
    if limit is None:
        return asked or LENGTH
    if asked is not None and asked > limit:
        raise SettingError(
            f"The model takes {limit} tokens. seq_len is {asked}. Pass a smaller one."
        )
    return asked or min(LENGTH, limit)


def token_ids(vocabulary: int, settings: CheckSettings, limit: int | None) -> Tensor:
    """Random token ids (B, T)."""
    generator = torch.Generator().manual_seed(settings.seed)
    shape = (settings.batch_size, _length(settings, limit))
    return torch.randint(0, vocabulary, shape, generator=generator)


def _hidden(ids: Tensor, others: Tensor, seed: int) -> dict[str, Tensor]:
    """Tokens of which some stand for others, which are asked for."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(ids.shape, generator=generator) < HIDDEN_SHARE
    chosen[:, 0] = True  # one at least
    return {
        "input_ids": torch.where(chosen, others, ids),
        "labels": torch.where(chosen, ids, torch.full_like(ids, -100)),
    }


def _images(model: nn.Module, settings: CheckSettings) -> dict[str, Tensor]:
    """Normal pixels, and labels where the model has classes."""
    config: Any = model.config
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    generator = torch.Generator().manual_seed(settings.seed)
    shape = (settings.batch_size, config.num_channels, height, width)
    pixels = torch.randn(shape, generator=generator)
    if not type(model).__name__.endswith("ForImageClassification"):
        return {"pixel_values": pixels}
    labels = torch.randint(0, config.num_labels, shape[:1], generator=generator)
    return {"pixel_values": pixels, "labels": labels}


def text_ids(
    path: Path, settings: CheckSettings, vocabulary: int | None, limit: int | None
) -> Tensor | None:
    """The beginning of the default text by the tokenizer in a folder; None without one."""
    if vocabulary is None or not any(any(path.glob(name)) for name in TOKENIZERS):
        return None
    length = _length(settings, limit)
    needed = settings.batch_size * length
    manual = bytes(load_corpus().tokens[: LETTERS * needed]).decode(errors="ignore")
    try:
        found = load_corpus([manual], tokenizer=str(path)).tokens[:needed]
    except DataError:
        return None
    if len(found) < needed or found.max() >= vocabulary:
        return None
    return torch.tensor(found, dtype=torch.long).view(settings.batch_size, length)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's generator set, and put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
