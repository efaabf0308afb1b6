"""What `normwise check` is pointed at: a model, and a batch that goes with it.

    hf:PATH            a Hugging Face folder with its weights, or a config.json, with fresh ones
    MODULE:FUNCTION    a function without arguments that gives a model
    FILE.json          the fields of `TransformerConfig`
    own:FIELD=VALUE,...  the same in a line

Nothing is downloaded, and no code that lies beside weights is run.
"""

import dataclasses
import importlib
import os
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from normwise.errors import MissingExtra, SettingError
from normwise.lab.batches import (
    batch_for,
    first_line,
    limit_of,
    seeded,
    text_ids,
    token_ids,
    vocabulary_of,
)
from normwise.lab.check_settings import CheckSettings
from normwise.lab.own_model import own_config
from normwise.model.config import TransformerConfig
from normwise.model.transformer import Transformer

FORMS = "hf:PATH, MODULE:FUNCTION, own:FIELD=VALUE,... or a .json file"
TASKS = ("SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM", "IMAGE_CLASSIFICATION")
PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth")
UNLIKE_DATA = "a batch like those it was trained on: this one was drawn at random"


@dataclass(frozen=True)
class Target:
    """A model to be checked.

    Args:
        model: with its weights.
        batch: as `nw.check` takes it.
        stage: "initial" or "trained" where it is known.
        config: of a model of ours, which can be built again.
        remarks: what a reader should know of how it was made.
        missing: what could not be had.
    """

    model: nn.Module
    batch: Any
    stage: str | None = None
    config: TransformerConfig | None = None
    remarks: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def load_target(settings: CheckSettings) -> Target:
    """The model that is named, and its batch.

    Raises:
        SettingError, UnknownName: there is no such target, or it cannot be built.
        MissingExtra: a package is needed and not installed.
    """
    name = settings.target
    config = own_config(name)
    if config is not None:
        return build_own(config, settings)
    if name.startswith("hf:"):
        return _hugging_face(Path(name.removeprefix("hf:")), settings)
    if ":" in name:
        return _of_function(settings)
    raise SettingError(f"A target must be {FORMS}. It is {name!r}.")


def build_own(config: TransformerConfig, settings: CheckSettings) -> Target:
    """normwise's Transformer with these settings."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        config = dataclasses.replace(config)  # made again, so that it says what it warns about
    model = Transformer(config, seed=settings.seed)
    batch = _given_batch(settings) if settings.batch else token_ids(
        config.vocab_size, settings, config.max_len
    )  # fmt: skip
    return Target(model, batch, "initial", config, [str(one.message) for one in heard])


def _of_function(settings: CheckSettings) -> Target:
    """The model that a user's function gives."""
    with seeded(settings.seed):
        model = _called(settings.target, "A target")
    if not isinstance(model, nn.Module):
        raise SettingError(
            f"{settings.target} must give a torch module. It gave one of {type(model).__name__}."
        )
    if settings.batch:
        return Target(model, _given_batch(settings))
    return Target(model, batch_for(model, settings))


def _called(name: str, what: str) -> Any:
    """What the function gives; the folder that the command runs in is searched too."""
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            f"{what} must be MODULE:FUNCTION that can be imported. {name} cannot: {error}. Known "
            f"forms of a target: {FORMS}."
        ) from error
    return found()


def _given_batch(settings: CheckSettings) -> Any:
    with seeded(settings.seed):
        return _called(str(settings.batch), "--batch")


def _hugging_face(path: Path, settings: CheckSettings) -> Target:
    """A model of transformers: with the weights in its folder, or with fresh ones."""
    if not (path.is_file() or (path / "config.json").is_file()):
        raise SettingError(
            f"hf: is followed by a folder with a config.json, or by one. There is none at {path}. "
            f"Nothing is downloaded: save the model first."
        )
    kind, config = _class_and_config(path)
    if path.is_dir() and (own := _weights_in(path, settings)):
        return _trained(kind, path, settings, safe=own == "safetensors")
    with seeded(settings.seed):
        model = kind(config)
    remarks = ["Fresh weights: there are none beside the configuration."]
    return Target(model, _batch_or_given(model, settings), "initial", remarks=remarks)


def _class_and_config(path: Path) -> tuple[Any, Any]:
    """The class that a configuration names, else the first that fits and has a loss of its own."""
    try:
        import transformers
    except ImportError:
        raise MissingExtra("transformers", "hf", f"hf:{path}") from None
    library: Any = transformers
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    try:
        config = library.AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise SettingError(
            f"hf: is followed by a configuration that transformers knows. {path}: "
            f"{first_line(error)}"
        ) from None
    named = (getattr(library, name, None) for name in config.architectures or [])
    if found := next(filter(None, named), None):
        return found, config
    tasks = [f"MODEL_FOR_{task}_MAPPING" for task in TASKS]
    for task in [*tasks[0 if config.is_encoder_decoder else 1 :], "MODEL_MAPPING"]:
        kinds = getattr(library, task)
        if type(config) in kinds:
            return kinds[type(config)], config
    raise SettingError(f"hf: is followed by a model's configuration. {path} is of none.")


def _weights_in(path: Path, settings: CheckSettings) -> str:
    """ "safetensors", "pickle", or "" for a folder without weights."""
    if any(path.glob("*.safetensors")):
        return "safetensors"
    pickles = [file.name for pattern in PICKLES for file in path.glob(pattern)]
    if pickles and not settings.allow_pickle:
        raise SettingError(
            f"Weights must be safetensors. {path} has {pickles[0]}, and loading a pickle can run "
            f"code. Pass --allow-pickle if you trust it, or hf:{path / 'config.json'} for fresh "
            f"weights."
        )
    return "pickle" if pickles else ""


def _trained(kind: Any, path: Path, settings: CheckSettings, *, safe: bool) -> Target:
    try:
        model, told = kind.from_pretrained(
            path, use_safetensors=safe, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise SettingError(f"Weights must load. Those in {path}: {first_line(error)}") from None
    fresh = sorted(told["missing_keys"])
    remarks = [f"Not in the checkpoint, and fresh: {_some(fresh)}."] if fresh else []
    if settings.batch:
        return Target(model, _given_batch(settings), "trained", remarks=remarks)
    ids = text_ids(path, settings, vocabulary_of(model), limit_of(model))
    missing = [] if ids is not None else [UNLIKE_DATA]
    return Target(model, batch_for(model, settings, ids), "trained", None, remarks, missing)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _batch_or_given(model: nn.Module, settings: CheckSettings) -> Any:
    return _given_batch(settings) if settings.batch else batch_for(model, settings)
