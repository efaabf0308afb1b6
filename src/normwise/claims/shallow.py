"""Section 2 of the notes: whether the deep layers of a trained pre-norm stack do something."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from normwise.claims.claim import Claim, Measurement, Picture, Point
from normwise.claims.settings import Effort
from normwise.claims.trained import Trained, base_run, warmup
from normwise.claims.verdict import Expectations, above, below, between
from normwise.lab.objective import OBJECTIVES, Batch, token_loss
from normwise.lab.settings import RunSettings
from normwise.lab.train import build_model
from normwise.model.transformer import Transformer
from normwise.probe.capture import angular_distance, capture

COUNTS = 0.05
"""Nats that a layer's deletion must cost for the layer to count."""


@dataclass(frozen=True)
class Layers:
    """What the layers of a model do on one batch.

    Args:
        angle: angular distance between the streams before and after each layer.
        cosine: of what a layer adds and what the next one adds.
        deletion: what the loss gains when a layer is left out.
    """

    angle: list[float]
    cosine: list[float]
    deletion: list[float]


@torch.no_grad()
def layers_of(model: Transformer, batch: Batch) -> Layers:
    """The layers of a model of per-sublayer connections."""
    with capture(model) as seen:
        loss = token_loss(model(batch.inputs), batch.targets)
    ends = seen.stream[:: model.stack.branches]
    added = [after - before for before, after in pairwise(ends)]
    return Layers(
        angle=[angular_distance(*pair) for pair in pairwise(ends)],
        cosine=[float(cosine_similarity(*pair, dim=-1).mean()) for pair in pairwise(added)],
        deletion=[float(_loss_without(model, batch, at) - loss) for at in range(model.stack.depth)],
    )


def _loss_without(model: Transformer, batch: Batch, layer: int) -> Tensor:
    """The loss with both connections of a layer left out."""
    branches = model.stack.branches
    connections: Sequence[nn.Module] = list(model.placement.connections)
    handles = [
        connection.register_forward_hook(lambda module, args, out: args[0])
        for connection in connections[branches * layer : branches * (layer + 1)]
    ]
    try:
        return token_loss(model(batch.inputs), batch.targets)
    finally:
        for handle in handles:
            handle.remove()


def _shallow_runs(effort: Effort) -> list[RunSettings]:
    if effort.quick:
        return []
    return [
        base_run(effort, placement, seed, warm)
        for seed in range(effort.seeds)
        for placement, warm in (("pre_norm", 0), ("post_norm", warmup(effort)))
    ]


def _expect_shallow(effort: Effort) -> Expectations:
    return {
        "angle": below(0.0),
        "cosine": between(0.5, 1.0, in_part=(0.2, 1.0)),
        "deletion": below(0.0),
        "post_angle": above(0.0),
    }


def _measure_shallow(effort: Effort, trained: Trained) -> Measurement:
    """The deeper half of 12 layers after training and at the start. A deletion there is
    compared with layers 2 to 6: the first one costs more than all others, whatever they do.
    """
    numbers: dict[str, list[float]] = {
        "angle": [], "cosine": [], "deletion": [], "post_angle": [], "effective_depth": []
    }  # fmt: skip
    found: dict[str, list[Layers]] = {}
    for run in _shallow_runs(effort):
        start, end = _before_and_after(run, trained)
        found.setdefault(f"{run.placement}, start", []).append(start)
        found.setdefault(f"{run.placement}, trained", []).append(end)
    if found:
        pairs = zip(found["pre_norm, start"], found["pre_norm, trained"], strict=True)
        posts = zip(found["post_norm, start"], found["post_norm, trained"], strict=True)
        for (start, end), post in zip(pairs, posts, strict=True):
            half = len(end.angle) // 2
            bent = fmean(end.angle[half:]) - fmean(start.angle[half:])
            numbers["angle"].append(bent)
            numbers["cosine"].append(fmean(end.cosine[half - 1 :]))
            numbers["deletion"].append(fmean(end.deletion[half:]) - fmean(end.deletion[1:half]) / 2)
            of_post = fmean(post[1].angle[half:]) - fmean(post[0].angle[half:])
            numbers["post_angle"].append(of_post - bent)
            numbers["effective_depth"].append(sum(cost > COUNTS for cost in end.deletion))
    return Measurement(numbers, _angles(found), _conditions(effort), _rows(found))


def _conditions(effort: Effort) -> dict[str, Any]:
    run = base_run(effort, "pre_norm", 0)
    return {"model": "R3", "layers": run.depth, "steps": run.steps, "rate": run.lr,
            "seeds": effort.seeds}  # fmt: skip


def _before_and_after(run: RunSettings, trained: Trained) -> tuple[Layers, Layers]:
    corpus = trained.store.corpus()
    batch = next(OBJECTIVES[run.objective](run, corpus).validation())
    models: tuple[Any, Any] = build_model(run, corpus.vocab_size), trained.model(run)
    start, end = (layers_of(model, batch) for model in models)
    return start, end


def _angles(found: Mapping[str, list[Layers]]) -> list[Point]:
    return [
        {"label": label, "x": at, "y": fmean(one.angle[at - 1] for one in seeds)}
        for label, seeds in found.items()
        for at in range(1, len(seeds[0].angle) + 1)
    ]


def _rows(found: Mapping[str, list[Layers]]) -> list[Point]:
    """By layer of the trained pre-norm stack."""
    seeds = found.get("pre_norm, trained", [])
    return [
        {"layer": at + 1, "angle": fmean(one.angle[at] for one in seeds),
         "deletion": fmean(one.deletion[at] for one in seeds),
         "cosine": fmean(one.cosine[at] for one in seeds) if at < len(seeds[0].cosine) else None}
        for at in range(len(seeds[0].angle) if seeds else 0)
    ]  # fmt: skip


CLAIMS = {
    "pre-shallow": Claim(
        2, _expect_shallow, _measure_shallow, Picture("lines", y_log=True), _shallow_runs
    )
}
