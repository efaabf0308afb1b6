"""Section 3 of the notes, trained: batch norm in an encoder of padded sentences."""

from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from normwise.claims.claim import Claim, Measurement, Picture, Point
from normwise.claims.initial import power
from normwise.claims.settings import Effort
from normwise.claims.trained import Trained, training_run
from normwise.claims.verdict import Expectations, above, near
from normwise.lab.data import load_corpus
from normwise.lab.settings import RunSettings
from normwise.lab.train import model_config
from normwise.model.transformer import Transformer

LAYERS = 4
WORSE = above(0.0, one_seed=0.1)


class Unmasked(Transformer):
    """A Transformer whose attention leaves padding out, and whose norms do not."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        logits: Tensor = self.head(self.run(self.entry(input_ids, inputs_embeds), mask))
        return logits


def unmasked(run: RunSettings, vocab_size: int) -> Unmasked:
    """The builder of such a model."""
    return Unmasked(model_config(run, vocab_size), seed=run.seed)


def _run(
    effort: Effort, norm: str, seed: int, *, size: int = 16, masked: bool = True
) -> RunSettings:
    builder = None if masked else f"{__name__}:{unmasked.__name__}"
    return training_run(
        effort, seed=seed, norm=norm, objective="hidden", depth=LAYERS, batch_size=size,
        builder=builder,
    )  # fmt: skip


SMALL, LARGE = 2, 32
SIZES = (2, 4, 8, 16, 32, 64)


def _size_runs(effort: Effort) -> list[RunSettings]:
    return [
        _run(effort, norm, seed, size=size)
        for seed in range(effort.seeds)
        for norm in ("layer_norm", "batch_norm_tokens")
        for size in (SMALL, LARGE)
    ]


def _expect_size(effort: Effort) -> Expectations:
    return {"noise": near(-0.5, 0.1, in_part=(-0.8, -0.2)), "gap": WORSE}


def _measure_size(effort: Effort, trained: Trained) -> Measurement:
    """Noise of a batch's mean by the number of sequences in it, and what a small batch costs batch
    norm more than LayerNorm.
    """
    noise = [_noise(seed) for seed in effort.draws]
    numbers = {"noise": [power(SIZES, line) for line in noise], "gap": []}
    for seed in range(effort.seeds):
        small, large = (
            trained.loss(_run(effort, "batch_norm_tokens", seed, size=size))
            - trained.loss(_run(effort, "layer_norm", seed, size=size))
            for size in (SMALL, LARGE)
        )
        numbers["gap"].append(small - large)
    # a mean of n independent tokens of deviation 1 is off by 1/sqrt(n)
    numbers["effective_tokens"] = [line[-1] ** -2 / (SIZES[-1] * 64) for line in noise]
    numbers["effective_sequences"] = [line[-1] ** -2 / SIZES[-1] for line in noise]
    points = [
        {"label": "measured", "x": size, "y": value, "predicted": (64 * size) ** -0.5}
        for size, value in zip(SIZES, np.mean(noise, axis=0).tolist(), strict=True)
    ]
    rows: list[Point] = [
        {"what": norm, "batch": size,
         "loss": fmean(trained.loss(_run(effort, norm, s, size=size)) for s in range(effort.seeds))}
        for norm in ("layer_norm", "batch_norm_tokens") for size in (SMALL, LARGE)
    ]  # fmt: skip
    return Measurement(numbers, points, _conditions(effort), rows)


@torch.no_grad()
def _noise(seed: int) -> list[float]:
    """Deviation of a batch's mean over that of a token, for windows of the text after one layer of
    the default model, whose tokens share what attention has mixed.
    """
    corpus = load_corpus()
    run = training_run(Effort(), seed=seed, depth=1)
    model = Transformer(model_config(run, corpus.vocab_size), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(corpus.train) - 64, (4096,), generator=generator).numpy()
    windows = torch.from_numpy(corpus.train[starts[:, None] + range(64)].astype("int64"))
    stream = model.run(model.entry(windows, None)).double()
    stream = stream - stream.mean(0)  # positions, which all windows have in common
    deviation = stream.flatten(0, 1).std(0)
    means = stream.mean(1)
    return [
        float((means.unflatten(0, (-1, size)).mean(1).std(0) / deviation).mean()) for size in SIZES
    ]


def _worse_runs(effort: Effort) -> list[RunSettings]:
    if effort.quick:
        return []
    return [run for seed in range(effort.seeds) for run in _kinds(effort, seed).values()]


def _kinds(effort: Effort, seed: int) -> dict[str, RunSettings]:
    return {
        "layer_norm": _run(effort, "layer_norm", seed),
        "rms_norm": _run(effort, "rms_norm", seed),
        "batch_norm, masked": _run(effort, "batch_norm_tokens", seed),
        "batch_norm": _run(effort, "batch_norm_tokens", seed, masked=False),
    }


def _expect_worse(effort: Effort) -> Expectations:
    return {"masked": WORSE, "unmasked": WORSE}


def _measure_worse(effort: Effort, trained: Trained) -> Measurement:
    """Loss on hidden tokens with batch norm minus loss with LayerNorm, the mask given or not."""
    seeds = range(0 if effort.quick else effort.seeds)
    losses = [
        {name: trained.loss(run) for name, run in _kinds(effort, seed).items()} for seed in seeds
    ]
    apart = {"masked": "batch_norm, masked", "unmasked": "batch_norm", "rms": "rms_norm"}
    numbers = {
        key: [line[name] - line["layer_norm"] for line in losses] for key, name in apart.items()
    }
    points = [{"label": name, "y": loss} for line in losses for name, loss in line.items()]
    return Measurement(numbers, points, _conditions(effort))


def _conditions(effort: Effort) -> dict[str, object]:
    run = _run(effort, "layer_norm", 0)
    return {
        "objective": "hidden", "layers": LAYERS, "width": run.width, "steps": run.steps,
        "rate": run.lr, "seeds": effort.seeds,
    }  # fmt: skip


CLAIMS = {
    "bn-batch-size": Claim(
        3, _expect_size, _measure_size, Picture("lines", x_log=True, y_log=True), _size_runs
    ),
    "bn-worse-text": Claim(3, _expect_worse, _measure_worse, Picture("marks"), _worse_runs),
}
