"""What a run and a comparison are made of. Frozen and hashable; imports nothing heavy, so that the
command line can show its options without torch.

Each field carries its own help; the options of `normwise compare` are made from these fields.
"""

import dataclasses
import hashlib
import json
import math
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normwise.errors import SettingError

DEVICES = ("cpu", "cuda", "mps")
PRECISIONS = ("fp32", "bf16", "fp16")
OWN = "default"  # what belongs to the placement


def setting(default: Any, text: str) -> Any:
    """A field with its default and its help."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class SharedSettings:
    """What all runs of a comparison have in common."""

    steps: int = setting(300, "Optimizer steps of a run.")
    batch_size: int = setting(16, "Sequences in a batch.")
    accumulate: int = setting(1, "Batches whose gradients make one optimizer step.")
    seq_len: int = setting(64, "Tokens in a sequence.")
    width: int = setting(64, "Width of the stream.")
    heads: int = setting(4, "Attention heads.")
    ff_ratio: float = setting(4.0, "Width of the feed-forward layer over the stream's.")
    activation: str = setting("relu", "relu, gelu or swiglu.")
    positions: str = setting("learned", "learned, rotary or none.")
    query_key_norm: str = setting(OWN, "default (the placement's own), none, head, full, unit.")
    bias: bool = setting(default=False, text="Biases in linear layers and norms.")
    tied_head: bool = setting(default=False, text="Head and embedding share a matrix.")
    objective: str = setting("next", "next token, or hidden ones in sentences (an encoder).")
    schedule: str = setting("constant", "After warm-up: constant, cosine, linear, inverse_sqrt.")
    rise: str = setting("linear", "The warm-up's shape: linear, cosine or exponential.")
    betas: tuple[float, ...] = setting((0.9, 0.98), "AdamW's two averages; SGD's momentum first.")
    weight_decay: float = setting(0.0, "Decay of matrices; gains and biases have none.")
    clip: float = setting(1.0, "Largest gradient norm; 0 turns clipping off.")
    device: str = setting("cpu", "cpu, cuda or mps.")
    precision: str = setting("fp32", "fp32, bf16 or fp16 (mixed).")
    builder: str | None = setting(None, "MODULE:FUNCTION that makes a run's model.")
    keep_weights: bool = setting(default=False, text="Store the trained weights with each run.")

    def __post_init__(self) -> None:
        """Raises `SettingError` for the first value that cannot be."""
        object.__setattr__(self, "betas", tuple(self.betas))
        counts = ("steps", "batch_size", "accumulate", "seq_len", "width", "heads")
        for name in counts:
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        _require(self.ff_ratio > 0, "ff_ratio", "positive", self.ff_ratio)
        _require(self.weight_decay >= 0, "weight_decay", "at least 0", self.weight_decay)
        _require(self.clip >= 0, "clip", "at least 0", self.clip)
        _require(
            len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
            "betas", "two numbers in [0, 1)", ",".join(map(str, self.betas)),
        )  # fmt: skip
        for name, known in (("device", DEVICES), ("precision", PRECISIONS)):
            value = getattr(self, name)
            _require(value in known, name, f"one of {', '.join(known)}", value)


@dataclass(frozen=True, kw_only=True)
class RunSettings(SharedSettings):
    """One training run. Two runs with the same settings and data are the same run."""

    norm: str
    placement: str
    init: str
    lr: float
    warmup: int
    optimizer: str
    depth: int
    seed: int

    @property
    def id(self) -> str:
        """Hash of the settings."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "RunSettings":
        """Settings back from a stored record."""
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class CompareSettings(SharedSettings):
    """A comparison: the grid over its axes, the text, and where it runs.

    A single value on an axis stands for a tuple of one.
    """

    norms: tuple[str, ...] = setting(("layer_norm",), "Norms.")
    placements: tuple[str, ...] = setting(("pre_norm", "post_norm", "deep_norm"), "Placements.")
    inits: tuple[str, ...] = setting(
        ("xavier_packed",), "Initialisations; default is the placement's own."
    )
    lr: tuple[float, ...] = setting((1e-3,), "Learning rates.")
    warmup: tuple[int, ...] = setting((0, 150), "Warm-up steps.")
    optimizer: tuple[str, ...] = setting(("adamw",), "adamw, sgd.")
    depth: tuple[int, ...] = setting((12,), "Layers.")
    seeds: int = setting(2, "Seeds for every point of the grid.")
    data: Any = setting(None, "Text file, glob or hf:DATASET; without it, Python's own manual.")
    text_column: str = setting("text", "Column of a Hugging Face dataset.")
    tokenizer: str = setting("bytes", "bytes, or a Hugging Face tokenizer by name or folder.")
    workers: int = setting(2, "Processes, one torch thread each.")
    out: str = setting("runs/compare", "Run folder; finished runs in it are not repeated.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for axis in AXES:
            values = getattr(self, axis)
            alone = isinstance(values, str | int | float)
            object.__setattr__(self, axis, (values,) if alone else tuple(values))
            _require(bool(getattr(self, axis)), axis, "at least one value", "none")
        for rate in self.lr:
            _require(rate > 0 and math.isfinite(rate), "lr", "positive", rate)
        for warmup in self.warmup:
            _require(warmup >= 0, "warmup", "at least 0", warmup)
        for depth in self.depth:
            _require(depth >= 1, "depth", "at least 1", depth)
        _require(self.seeds >= 1, "seeds", "at least 1", self.seeds)
        _require(self.workers >= 1, "workers", "at least 1", self.workers)

    @property
    def command(self) -> str | None:
        """The line that asks for this comparison, without its run folder, which may be moved; None
        where the text is no file or name.

        >>> CompareSettings(lr=(1e-3, 4e-3), bias=True, data="my notes.txt").command
        "normwise compare --bias --lr 0.001,0.004 --data 'my notes.txt'"
        """
        if not isinstance(self.data, str | Path | None):
            return None
        changed = (
            (field.name.replace("_", "-"), getattr(self, field.name))
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default and field.name != "out"
        )
        words = (word for name, value in changed for word in _option(name, value))
        return shlex.join(["normwise", "compare", *words])


AXES = ("norms", "placements", "inits", "lr", "warmup", "optimizer", "depth")


def _option(name: str, value: object) -> list[str]:
    """A setting as the command line takes it."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, tuple):
        return [f"--{name}", ",".join(map(str, value))]
    return [f"--{name}", str(value)]


def _require(holds: bool, name: str, must_be: str, value: object) -> None:  # noqa: FBT001
    if not holds:
        raise SettingError(f"{name} must be {must_be}. It is {value}.")
