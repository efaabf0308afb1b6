"""Section 3 of the notes: LayerNorm and batch normalization, without training."""

import argparse
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normwise.claims.claim import Claim, Measurement, Picture, Point
from normwise.claims.collectives import collectives
from normwise.claims.initial import power
from normwise.claims.settings import Effort
from normwise.claims.trained import Trained, training_run
from normwise.claims.verdict import Expectations, above, below, between, near
from normwise.lab.data import Corpus, load_corpus
from normwise.lab.objective import OBJECTIVES, sentences
from normwise.lab.train import model_config
from normwise.model.transformer import Transformer
from normwise.norms.batch_norm import BatchNormPosition, BatchNormTokens
from normwise.norms.layer_norm import LayerNorm
from normwise.ops.functional import layer_norm
from normwise.probe.discrepancy import discrepancy
from normwise.theory.batch import null_discrepancy, padded_moments

WIDTH, TOKENS = 64, 16
EPS = 1e-5
SIZES = (4, 8, 16, 32, 64, 128)


def _expect_formula(effort: Effort) -> Expectations:
    return {"at_one": below(1e-4), "at_eps": below(1e-4)}


VARIANCES = tuple(10.0**exponent for exponent in range(-10, 2))


def _measure_formula(effort: Effort, trained: Trained) -> Measurement:
    """(x - mean)/(sigma + eps) beside (x - mean)/sqrt(variance + eps), relative to the first, in
    float64 on rows of a given variance.
    """
    found = []
    for seed in effort.draws:
        rows = torch.randn(32, 256, generator=torch.Generator().manual_seed(seed)).double()
        unit = layer_norm(rows, 256, eps=0.0)
        found.append([_apart(unit * variance**0.5) for variance in VARIANCES])
    numbers = {
        "at_one": [line[VARIANCES.index(1.0)] for line in found],
        "at_eps": [line[VARIANCES.index(EPS)] for line in found],
    }
    points = [
        {"label": "sqrt(var + eps), sigma + eps", "x": variance, "y": mean,
         "predicted": abs((variance**0.5 + EPS) / math.sqrt(variance + EPS) - 1.0)}
        for variance, mean in zip(VARIANCES, np.mean(found, axis=0).tolist(), strict=True)
    ]  # fmt: skip
    return Measurement(numbers, points, {"eps": EPS, "precision": "fp64"})


def _apart(x: Tensor) -> float:
    centred = x - x.mean(-1, keepdim=True)
    text = centred / (centred.square().mean(-1, keepdim=True).sqrt() + EPS)
    return float((layer_norm(x, x.shape[-1], eps=EPS) - text).norm() / text.norm())


def _expect_independent(effort: Effort) -> Expectations:
    falls = near(-0.5, 0.1, in_part=(-1.0, -0.2))
    return {"layer": near(0.0, 0.0), "tokens": falls, "position": falls}


def _measure_independent(effort: Effort, trained: Trained) -> Measurement:
    """How far one sequence's output moves when the others in its batch are exchanged."""
    norms = {
        "layer": LayerNorm(WIDTH),
        "tokens": BatchNormTokens(WIDTH, track_running_stats=False),
        "position": BatchNormPosition(WIDTH, TOKENS, track_running_stats=False),
    }
    moved = {
        key: [[_moved(norm, size, seed) for size in SIZES] for seed in effort.draws]
        for key, norm in norms.items()
    }
    numbers = {"layer": [max(line) for line in moved["layer"]]} | {
        key: [power(SIZES, line) for line in moved[key]] for key in ("tokens", "position")
    }
    points = [
        {"label": key, "x": size, "y": value}
        for key, lines in moved.items()
        for size, value in zip(SIZES, np.mean(lines, axis=0).tolist(), strict=True)
        if value
    ]
    return Measurement(numbers, points, {"width": WIDTH, "tokens": TOKENS})


@torch.no_grad()
def _moved(norm: torch.nn.Module, size: int, seed: int) -> float:
    """RMS of the difference of the first sequence's output in two batches, mean of 20 pairs."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(20):
        own = torch.randn(1, TOKENS, WIDTH, generator=generator)
        first, second = (
            norm(torch.cat((own, torch.randn(size - 1, TOKENS, WIDTH, generator=generator))))[0]
            for _ in range(2)
        )
        found.append(float((first - second).square().mean().sqrt()))
    return sum(found) / len(found)


def _expect_padding(effort: Effort) -> Expectations:
    return {
        "masked": near(0.0, 0.0),
        "pollution": above(2.0, in_part=(1.0, math.inf)),
        "valid": between(0.0, 0.9, in_part=(0.0, 0.99)),
    }


LONGEST = (8, 16, 32, 64, 128)
SENTENCES = 64


def _measure_padding(effort: Effort, trained: Trained) -> Measurement:
    """Statistics of a batch of sentences with and without their padding, at the entry of an
    untrained encoder; and of Gaussian channels with zeros as padding, for which there is a law.
    """
    corpus = load_corpus()
    numbers: dict[str, list[float]] = {"masked": [], "pollution": [], "valid": []}
    for seed in effort.draws:
        for key, value in _polluted(corpus, seed).items():
            numbers[key].append(value)
    points = [point for longest in LONGEST for point in _law(corpus, longest)]
    conditions = {"text": corpus.source, "sequences": SENTENCES, "width": WIDTH}
    return Measurement(numbers, points, conditions)


@torch.no_grad()
def _polluted(corpus: Corpus, seed: int) -> dict[str, float]:
    """What padding does to the statistics of the embedded sentences, over what chance does."""
    run = training_run(Effort(), seed=seed, objective="hidden", batch_size=SENTENCES)
    model = Transformer(model_config(run, corpus.vocab_size), seed=seed)
    batch = next(OBJECTIVES[run.objective](run, corpus).batches())
    assert batch.mask is not None  # noqa: S101 - sentences differ in length
    x = model.entry(batch.inputs, None)
    own, everything = x[batch.mask].double(), x.flatten(0, 1).double()
    apart, _ = discrepancy(everything.mean(0), everything.var(0), own.mean(0), own.var(0))
    norm = BatchNormTokens(WIDTH, track_running_stats=False)
    return {
        "masked": float((norm(x, batch.mask)[batch.mask] - norm(x[batch.mask])).abs().max()),
        "pollution": float(apart) / null_discrepancy(len(own))[0],
        "valid": len(own) / len(everything),
    }


def _law(corpus: Corpus, longest: int) -> list[Point]:
    """Mean and variance of a Gaussian channel, in sentences cut at `longest` bytes and filled up
    with zeros, over those of the valid tokens.
    """
    generator = torch.Generator().manual_seed(0)
    spans = sentences(corpus.train)
    chosen = torch.randint(0, len(spans), (SENTENCES,), generator=generator).numpy()
    lengths = torch.from_numpy(np.minimum(np.diff(spans[chosen])[:, 0], longest))
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    x = torch.where(mask, 1.5 + torch.randn(mask.shape, generator=generator), torch.zeros(()))
    own, everything = x[mask], x.flatten()
    share = float(mask.double().mean())
    mean, variance = float(own.mean()), float(own.var(unbiased=False))
    law = padded_moments(mean, variance, share)
    found = float(everything.mean()), float(everything.var(unbiased=False))
    return [
        {"label": label, "x": share, "y": value / valid, "predicted": predicted / valid}
        for label, value, predicted, valid in zip(
            ("mean", "variance"), found, law, (mean, variance), strict=True
        )
    ]


def _expect_devices(effort: Effort) -> Expectations:
    return {"layer": near(0.0, 0.0), "batch": above(1.0)}


def _measure_devices(effort: Effort, trained: Trained) -> Measurement:
    """Collectives and bytes of one norm, forward and backward, over two processes."""
    cases = [(name, width) for name in ("layer_norm", "batch_norm") for width in (64, 256, 1024)]
    rows: list[Point] = [
        {"what": name, "width": width, "calls": calls, "bytes": size}
        for (name, width), (calls, size) in zip(cases, collectives(cases), strict=True)
    ]
    numbers = {
        key: [float(row["calls"]) for row in rows if row["what"] == name]
        for key, name in (("layer", "layer_norm"), ("batch", "batch_norm"))
    }
    numbers["bytes_a_channel"] = [
        row["bytes"] / row["width"] for row in rows if row["what"] == "batch_norm"
    ]
    points = [{"label": row["what"], "x": row["width"], "y": row["bytes"]} for row in rows]
    return Measurement(numbers, points, {"processes": 2}, rows)


def _expect_train_eval(effort: Effort) -> Expectations:
    return {
        "mean": near(1.0, 0.15, in_part=(0.5, 2.0)),
        "deviation": near(1.0, 0.15, in_part=(0.5, 2.0)),
        "shifted": above(2.0, in_part=(1.0, math.inf)),
        "layer": near(0.0, 0.0),
    }


BATCH = 16  # sequences of 64 tokens


def _measure_train_eval(effort: Effort, trained: Trained) -> Measurement:
    """Training/inference discrepancy of batches of embedded bytes, the running statistics being
    those of the whole text: of independent tokens, of the text itself, and of another.
    """
    corpus = load_corpus()
    code = np.frombuffer(inspect.getsource(argparse).encode(), dtype=np.uint8)
    numbers: dict[str, list[float]] = {
        "mean": [], "deviation": [], "shifted": [], "text": [], "layer": []
    }  # fmt: skip
    points: list[Point] = []
    tokens = BATCH * 64
    chance = null_discrepancy(tokens)
    for seed in effort.draws:
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(256, WIDTH, generator=generator).double()
        found = _discrepancies(corpus, code, table, generator)
        numbers["mean"].append(found["independent"][0] / chance[0])
        numbers["deviation"].append(found["independent"][1] / chance[1])
        numbers["text"].append(found["text"][0] / chance[0])
        numbers["shifted"].append(found["shifted"][0] / found["text"][0])
        numbers["layer"].append(_layer_gap(table))
        points += [{"label": name, "y": found[name][0] / chance[0]} for name in found]
    conditions = {"text": corpus.source, "shifted": "argparse.py", "tokens": tokens}
    return Measurement(numbers, points, conditions)


def _discrepancies(
    corpus: Corpus, code: Any, table: Tensor, generator: torch.Generator
) -> dict[str, tuple[float, float]]:
    """Mean over 100 batches of the discrepancies of mean and deviation, by source."""
    text = corpus.train

    def windows(tokens: Any) -> Any:
        starts = torch.randint(0, len(tokens) - 64, (BATCH,), generator=generator).numpy()
        return tokens[starts[:, None] + range(64)]

    draws: dict[str, Callable[[], Any]] = {
        "independent": lambda: text[
            torch.randint(0, len(text), (BATCH, 64), generator=generator).numpy()
        ],
        "text": lambda: windows(text),
        "shifted": lambda: windows(code),
    }
    shares = torch.from_numpy(corpus.frequencies)
    mean = shares @ table
    variance = shares @ table.square() - mean.square()
    return {
        source: _mean_discrepancy(
            [table[draw().astype("int64")] for _ in range(100)], mean, variance
        )
        for source, draw in draws.items()
    }


def _mean_discrepancy(batches: list[Tensor], mean: Tensor, variance: Tensor) -> tuple[float, float]:
    pairs = []
    for batch in batches:
        rows = batch.flatten(0, 1)
        pairs.append(discrepancy(mean, variance, rows.mean(0), rows.var(0)))
    of_mean, of_deviation = (torch.stack(values).mean() for values in zip(*pairs, strict=True))
    return float(of_mean), float(of_deviation)


@torch.no_grad()
def _layer_gap(table: Tensor) -> float:
    """Largest difference of LayerNorm's output between training and evaluation."""
    norm = LayerNorm(table.shape[1])
    return float((norm.train()(table) - norm.eval()(table)).abs().max())


CLAIMS = {
    "ln-formula": Claim(
        3, _expect_formula, _measure_formula, Picture("lines", x_log=True, y_log=True)
    ),
    "ln-independent": Claim(
        3, _expect_independent, _measure_independent, Picture("lines", x_log=True, y_log=True)
    ),
    "bn-padding": Claim(3, _expect_padding, _measure_padding, Picture("lines")),
    "bn-train-eval": Claim(
        3, _expect_train_eval, _measure_train_eval, Picture("marks", y_log=True)
    ),
    "bn-devices": Claim(3, _expect_devices, _measure_devices, Picture("lines", x_log=True)),
}
