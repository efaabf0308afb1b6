"""Initial weights by role, depth and placement, each scheme under its name.

A scheme is a function from a matrix's role and fans to the standard deviation of a zero-mean
normal; biases start at 0 and norm gains at 1. A model names its matrices by role (`Weight`), so
a scheme works on separate and on packed matrices alike: a packed one is given as its slices.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from normwise.errors import SettingError
from normwise.table import Table
from normwise.theory.scaling import (
    deep_norm_beta,
    residual_projection_scale,
    sub_norm_gain,
    t_fixup_embedding_gain,
    t_fixup_gain,
    xavier_std,
)
from normwise.theory.stack import Stack

ATTENTION_INPUTS = ("query", "key", "value")
BRANCH_OUTPUTS = ("attention_output", "ff_out")
BRANCH_SCALED = ("value", "attention_output", "ff_in", "ff_gate", "ff_out")
EMBEDDINGS = ("embedding", "position")
CROSS = "cross_"  # before the roles of a cross-attention's matrices
ROLES = (
    *ATTENTION_INPUTS, "attention_output",
    *(CROSS + role for role in (*ATTENTION_INPUTS, "attention_output")),
    "ff_in", "ff_gate", "ff_out", *EMBEDDINGS, "head",
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


def _xavier(role: str, fan_in: int, fan_out: int, stack: Stack) -> float:
    return xavier_std(fan_in, fan_out)


def _xavier_packed(role: str, fan_in: int, fan_out: int, stack: Stack) -> float:
    rows = 3 * fan_out if role in ATTENTION_INPUTS else fan_out
    return xavier_std(fan_in, rows)


def _normal(role: str, fan_in: int, fan_out: int, stack: Stack) -> float:
    return 0.02


def _gpt2(role: str, fan_in: int, fan_out: int, stack: Stack) -> float:
    return 0.02 * (residual_projection_scale(stack) if role in BRANCH_OUTPUTS else 1.0)


def _deep_norm(role: str, fan_in: int, fan_out: int, stack: Stack) -> float:
    gain = deep_norm_beta(stack) if role in BRANCH_SCALED else 1.0
    return gain * xavier_std(fan_in, fan_out)


def _sub_norm(role: str, fan_in: int, fan_out: int, stack: Stack) -> float:
    if stack.sublayers < 2:
        raise SettingError(
            f"sub_norm scales by sqrt(ln S), so it needs at least two branches. The stack has "
            f"{stack.sublayers}. Build a deeper one."
        )
    gain = sub_norm_gain(stack) if role in BRANCH_SCALED else 1.0
    return gain * xavier_std(fan_in, fan_out)


def _t_fixup(role: str, fan_in: int, fan_out: int, stack: Stack) -> float:
    if role in EMBEDDINGS:
        return float(t_fixup_embedding_gain(stack) * fan_in**-0.5)
    gain = t_fixup_gain(stack) if role in BRANCH_SCALED else 1.0
    return gain * xavier_std(fan_in, fan_out)


def _scaled_residual(role: str, fan_in: int, fan_out: int, stack: Stack) -> float:
    if role in EMBEDDINGS:
        return float(0.5**0.5)  # a token and its position make variance 1
    halves = 2.0 if role in ("ff_in", "ff_out") else 1.0  # a ReLU keeps half of the mean square
    return float((halves**0.5 / fan_in) ** 0.5)


Scheme = Callable[[str, int, int, Stack], float]


@dataclass(frozen=True)
class InitRow:
    """An initialisation as the registry knows it.

    Args:
        std: standard deviation from role, fan_in, fan_out and the stack; a cross-attention's matrix
            has the role of an attention's.
        summary: what `normwise list inits` shows.
        belongs_to: the only placement whose constants it matches, or None.
        cross: the scheme of cross-attention's matrices, where it is another.
    """

    std: Scheme
    summary: str
    belongs_to: str | None = None
    cross: Scheme | None = None


INITS = Table(
    "init",
    {
        "xavier_packed": InitRow(
            _xavier_packed,
            "Xavier normal, Q, K, V drawn as one matrix (torch's MultiheadAttention, fairseq)",
        ),
        "xavier": InitRow(_xavier, "Xavier normal, every matrix by itself"),
        "normal": InitRow(_normal, "N(0, 0.02), every matrix"),
        "gpt2": InitRow(
            _gpt2,
            "N(0, 0.02), last matrix of each branch divided by sqrt(2L)",
        ),
        "deep_norm": InitRow(
            _deep_norm,
            "Xavier normal, value, output and feed-forward matrices times (8L)^(-1/4)",
            belongs_to="deep_norm",
        ),
        "sub_norm": InitRow(
            _sub_norm,
            "Xavier normal, value, output and feed-forward matrices times sqrt(ln 2L)",
            belongs_to="sub_norm",
            cross=_xavier,
        ),
        "t_fixup": InitRow(
            _t_fixup,
            "Xavier normal, value, output and feed-forward matrices times 0.67 L^(-1/4), "
            "embeddings N(0, 1/sqrt(d)) times (9L)^(-1/4)",
            belongs_to="t_fixup",
        ),
        "scaled_residual": InitRow(
            _scaled_residual,
            "token and position N(0, 1/sqrt(2)), matrices so that a ReLU branch keeps variance 1",
            belongs_to="scaled_residual",
        ),
    },
)


def initial_std(init: str, role: str, fan_in: int, fan_out: int, stack: Stack) -> float:
    """Standard deviation of a matrix of this role.

    Args:
        init: a row of `normwise list inits`.
        role: one of `ROLES`.
        stack: the stack that it is part of.

    Raises:
        SettingError: a stack that the scheme is not for.
    """
    row = INITS[init]
    crosses = role.startswith(CROSS)
    scheme = row.cross if crosses and row.cross is not None else row.std
    return scheme(role.removeprefix(CROSS), fan_in, fan_out, stack)


@torch.no_grad()
def initialize(
    weights: Iterable[Weight],
    init: str,
    stack: Stack,
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
        std = initial_std(init, weight.role, weight.fan_in, weight.fan_out, stack)
        weight.tensor.normal_(0.0, std, generator=generator)
