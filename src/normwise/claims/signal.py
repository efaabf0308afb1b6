"""Section 2 of the notes, before training: what the two expansions say of signal and gradient."""

import math

import numpy as np
import torch
from torch import Tensor

from normwise.claims.claim import Claim, Measurement, Picture, Point
from normwise.claims.initial import (
    DEPTHS,
    TOKENS,
    Initial,
    initial,
    mean_points,
    power,
    r1,
    theory_of_stream,
)
from normwise.claims.settings import Effort
from normwise.claims.trained import Trained
from normwise.claims.verdict import Expectations, near
from normwise.residual.registry import make_placement
from normwise.theory.expansion import branch_weights

CONNECTIONS = 24
TERMS = {"x0": 0, "f0": 1, "f10": 11, "f23": 24}
"""Places of x_0, F_0, F_10 and F_23 among the terms of x_24."""


def _weights(variance: float) -> list[float]:
    """log2 of the weight of each term, as the expansion has it."""
    return [math.log2(w) for w in branch_weights("post_norm", [variance] * CONNECTIONS)]


def _expect_expansion(effort: Effort) -> Expectations:
    return {key: near(_weights(1.0)[at], 0.2) for key, at in TERMS.items()} | {
        "x0_half": near(_weights(0.5)[0], 0.2)
    }


def _measure_expansion(effort: Effort, trained: Trained) -> Measurement:
    """Every term's coefficient, followed through the norms of a post-norm stack whose branches are
    independent draws of a given variance.
    """
    seeds = effort.draws
    unit = [_coefficients(1.0, seed) for seed in seeds]
    half = [_coefficients(0.5, seed) for seed in seeds]
    numbers = {key: [line[at] for line in unit] for key, at in TERMS.items()}
    numbers["x0_half"] = [line[0] for line in half]
    points = [
        point
        for label, lines, variance in (("variance 1", unit, 1.0), ("variance 1/2", half, 0.5))
        for point in mean_points(label, lines, _weights(variance))
    ]
    return Measurement(
        numbers, points, {"connections": CONNECTIONS, "width": 1024, "tokens": TOKENS}
    )


@torch.no_grad()
def _coefficients(variance: float, seed: int) -> list[float]:
    """log2 of the coefficients of x_0, F_0, ... in x_24. A norm multiplies what is there by one
    number a token; its root mean square over tokens is taken.
    """
    generator = torch.Generator().manual_seed(seed)
    placement = make_placement("post_norm", 1024, CONNECTIONS // 2)
    x = torch.randn(TOKENS, 1024, generator=generator)
    terms = [1.0]
    for connection in placement.connections:
        branch = variance**0.5 * torch.randn(x.shape, generator=generator)
        total = x + branch
        x = connection(x, lambda _, branch=branch: branch)
        terms = [_factor(total, x) * term for term in [*terms, 1.0]]
    return [math.log2(term) for term in terms]


def _factor(total: Tensor, normed: Tensor) -> float:
    """The number that a norm has multiplied its input by, less the input's mean."""
    centred = total - total.mean(-1, keepdim=True)
    return float((normed.square().sum() / centred.square().sum()).sqrt())


def _expect_decay(effort: Effort) -> Expectations:
    stated = near(math.sqrt(2.0), 0.1, in_part=(1.1, math.inf))
    return {"feed_forward": stated, "attention": stated}


def _measure_decay(effort: Effort, trained: Trained) -> Measurement:
    """Factor by which the gradient of a post-norm stream falls at each connection on its way from
    the end to the entry.
    """
    depth = DEPTHS[-1]
    models = {
        "feed_forward": ("feed-forward", r1(depth=depth, placement="post_norm", attention=False)),
        "attention": ("attention, feed-forward", r1(depth=depth, placement="post_norm")),
    }
    numbers: dict[str, list[float]] = {}
    points: list[Point] = []
    for key, (label, config) in models.items():
        lines = [initial(config, seed).profile.stream_gradient for seed in effort.draws]
        numbers[key] = [_fall(line) for line in lines]
        points += _on_the_way(mean_points(label, [[g / line[-1] for g in line] for line in lines]))
    stated = [2.0 ** ((at - depth) / 2) for at in range(depth + 1)]
    points += _on_the_way(mean_points("stated", [stated]))
    return Measurement(numbers, points, {"model": "R1", "layers": depth, "tokens": TOKENS})


def _on_the_way(points: list[Point]) -> list[Point]:
    """The points by their place between the entry, 0, and the end, 1."""
    return [{**point, "x": point["x"] / points[-1]["x"]} for point in points]


def _fall(gradient: list[float]) -> float:
    """exp of the slope of log g over the connections."""
    slope, _ = np.polyfit(range(len(gradient)), np.log(gradient), 1)
    return math.exp(slope)


def _expect_growth(effort: Effort) -> Expectations:
    return {
        "growth": near(1.0, 0.15, in_part=(0.6, 1.4)),
        "share": near(-0.5, 0.12, in_part=(-0.8, -0.2)),
        "size": near(1.0, 0.35, in_part=(0.5, 2.0)),
    }


def _measure_growth(effort: Effort, trained: Trained) -> Measurement:
    """Variance of a pre-norm stream by depth, and the size of each branch beside the stream."""
    found = [[initial(r1(depth=depth), seed) for depth in DEPTHS] for seed in effort.draws]
    theory = theory_of_stream(r1(depth=DEPTHS[-1]))
    ends = [[one.profile.stream[-1] ** 2 for one in line] for line in found]
    shares = [_shares(line[-1]) for line in found]
    numbers = {
        "growth": [power(DEPTHS, [end - 1.0 for end in line]) for line in ends],
        "share": [power(range(1, len(line) + 1), line) for line in shares],
        "size": [line[-1] / theory[-1] for line in ends],
    }
    deepest = [[rms**2 for rms in line[-1].profile.stream] for line in found]
    of_layers = mean_points("branch/stream", shares)
    points = mean_points("variance", deepest, theory) + [
        {**point, "x": 2 * point["x"]} for point in of_layers
    ]
    rows = [
        {"layers": depth, "variance": float(np.mean([line[at] for line in ends])),
         "theory": theory_of_stream(r1(depth=depth))[-1]}
        for at, depth in enumerate(DEPTHS)
    ]  # fmt: skip
    return Measurement(
        numbers, points, {"model": "R1", "layers": DEPTHS[-1], "tokens": TOKENS}, rows
    )


def _shares(one: Initial) -> list[float]:
    """RMS of the branches of each layer over that of the stream before it."""
    branch, stream = np.array(one.profile.branch), np.array(one.profile.stream)
    together = np.sqrt(branch[0::2] ** 2 + branch[1::2] ** 2)
    return [float(share) for share in together / stream[0:-1:2]]


def _expect_last_layer(effort: Effort) -> Expectations:
    return {
        "post": near(0.0, 0.1, in_part=(-0.25, 0.25)),
        "pre": near(-0.5, 0.1, in_part=(-0.75, -0.25)),
    }


def _measure_last_layer(effort: Effort, trained: Trained) -> Measurement:
    """Norm of the gradient of the last feed-forward matrix by depth."""
    numbers: dict[str, list[float]] = {}
    points: list[Point] = []
    rows: list[Point] = [{"layers": depth} for depth in DEPTHS]
    for key, placement in (("post", "post_norm"), ("pre", "pre_norm")):
        lines = [
            [
                initial(r1(depth=depth, placement=placement), seed).last_matrix[-1]
                for depth in DEPTHS
            ]
            for seed in effort.draws
        ]
        numbers[key] = [power(DEPTHS, line) for line in lines]
        mean = np.mean(lines, axis=0)
        for row, value in zip(rows, mean, strict=True):
            row[placement] = float(value)
            points.append({"label": placement, "x": row["layers"], "y": float(value)})
    return Measurement(numbers, points, {"model": "R1", "tokens": TOKENS}, rows)


CLAIMS = {
    "post-expansion": Claim(2, _expect_expansion, _measure_expansion, Picture("lines")),
    "post-gradient": Claim(2, _expect_decay, _measure_decay, Picture("lines", y_log=True)),
    "pre-growth": Claim(2, _expect_growth, _measure_growth, Picture("lines", y_log=True)),
    "last-layer-gradient": Claim(
        2, _expect_last_layer, _measure_last_layer, Picture("lines", x_log=True, y_log=True)
    ),
}
