"""Initial weights by role, depth and placement, each scheme under its name.

A scheme is a function from a matrix's role and fans to the standard deviation of a zero-mean
normal; biases start at 0 and norm gains at 1. A model names its matrices by role (`Weight`), so
a scheme works on separate and on packed matrices alike: a packed one is given as its slices.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from normwise.table import Table
from normwise.theory.scaling import deep_norm_beta, residual_projection_scale, xavier_std

ATTENTION_INPUTS = ("query", "key", "value")
BRANCH_OUTPUTS = ("attention_output", "ff_out")
DEEP_NORM_SCALED = ("value", "attention_output", "ff_in", "ff_gate", "ff_out")
ROLES = (
    *ATTENTION_INPUTS, "attention_output", "ff_in", "ff_gate", "ff_out",
    "embedding", "position", "head",
)  # fmt: skip


@dataclass(frozen=True)
class Weight:
    """A weight matrix (fan_out, fan_in), or the slice of one, and the part it plays: `ROLES`.

    An embedding is (rows, width) and counts as the matrix that maps one-hot rows to the stream.
    """

    tensor: Tensor
    role: str

    @property
    def fan_in(self) -> int:
        return self.tensor.shape[1]

    @property
    def fan_out(self) -> int:
        return self.tensor.shape[0]


def _xavier(role: str, fan_in: int, fan_out: int, sublayers: int) -> float:
    return xavier_std(fan_in, fan_out)


def _xavier_packed(role: str, fan_in: int, fan_out: int, sublayers: int) -> float:
    rows = 3 * fan_out if role in ATTENTION_INPUTS else fan_out
    return _xavier(role, fan_in, rows, sublayers)


def _gpt2(role: str, fan_in: int, fan_out: int, sublayers: int) -> float:
    return 0.02 * (residual_projection_scale(sublayers) if role in BRANCH_OUTPUTS else 1.0)


def _deep_norm(role: str, fan_in: int, fan_out: int, sublayers: int) -> float:
    gain = deep_norm_beta(sublayers) if role in DEEP_NORM_SCALED else 1.0
    return gain * _xavier(role, fan_in, fan_out, sublayers)


@dataclass(frozen=True)
class InitRow:
    """An initialisation as the registry knows it.

    Args:
        std: standard deviation from role, fan_in, fan_out and number of residual branches.
        summary: what `normwise list inits` shows.
        belongs_to: the only placement whose constants it matches, or None.
    """

    std: Callable[[str, int, int, int], float]
    summary: str
    belongs_to: str | None = None


INITS = Table(
    "init",
    {
        "xavier_packed": InitRow(
            _xavier_packed,
            "Xavier normal, Q, K, V drawn as one matrix (torch's MultiheadAttention, fairseq)",
        ),
        "xavier": InitRow(_xavier, "Xavier normal, every matrix by itself"),
        "gpt2": InitRow(
            _gpt2,
            "N(0, 0.02), last matrix of each branch divided by sqrt(2L)",
        ),
        "deep_norm": InitRow(
            _deep_norm,
            "Xavier normal, value, output and feed-forward matrices times (8L)^(-1/4)",
            belongs_to="deep_norm",
        ),
    },
)


def initial_std(init: str, role: str, fan_in: int, fan_out: int, sublayers: int) -> float:
    """Standard deviation of a matrix of this role.

    Args:
        init: a row of `normwise list inits`.
        role: one of `ROLES`.
        sublayers: residual branches in the whole stack, 2 L with attention.
    """
    return INITS[init].std(role, fan_in, fan_out, sublayers)


@torch.no_grad()
def initialize(
    weights: Iterable[Weight],
    init: str,
    sublayers: int,
    generator: torch.Generator | None = None,
) -> None:
    """Draws every weight from N(0, std^2) with the std of its role.

    A matrix given twice, such as a tied head, is drawn once, in its first role.
    """
    drawn: set[tuple[int, torch.Size]] = set()
    for weight in weights:
        place = weight.tensor.data_ptr(), weight.tensor.shape
        if place in drawn:
            continue
        drawn.add(place)
        std = initial_std(init, weight.role, weight.fan_in, weight.fan_out, sublayers)
        weight.tensor.normal_(0.0, std, generator=generator)
