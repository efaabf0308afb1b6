"""Section 1 of the notes: why normalize."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from normwise.claims.claim import Claim, Measurement, Picture, Point
from normwise.claims.initial import (
    DEPTHS,
    TOKENS,
    initial,
    inputs,
    mean_points,
    r1,
    reference_model,
    theory_of_stream,
)
from normwise.claims.settings import Effort
from normwise.claims.trained import Trained, training_run
from normwise.claims.verdict import Expectations, above, below, between, near
from normwise.lab.data import load_corpus
from normwise.lab.objective import OBJECTIVES
from normwise.lab.train import build_model
from normwise.model.attention import Attention
from normwise.model.config import TransformerConfig
from normwise.norms.layer_norm import LayerNorm
from normwise.theory.logits import largest_logit

GAINS = (0.5, 1.0, 2.0)


def _expect_scale(effort: Effort) -> Expectations:
    depth = DEPTHS[-1]
    theory = math.log10(theory_of_stream(r1(depth=depth, norm="no_norm"))[-1])
    return {
        "none": near(theory, 0.25 * theory, in_part=(1.0, math.inf)),
        "post": near(1.0, 1e-3),
        "pre": between(0.5, 1.5, in_part=(0.0, 3.0)),
    }


def _measure_scale(effort: Effort, trained: Trained) -> Measurement:
    """Mean square of the stream by depth: without norms at three gains, and with them."""
    depth, seeds = DEPTHS[-1], effort.draws
    models: dict[str, tuple[TransformerConfig, float]] = {
        f"no_norm, gain {gain:g}": (r1(depth=depth, norm="no_norm"), gain) for gain in GAINS
    } | {
        f"{placement}, {norm}": (r1(depth=depth, norm=norm, placement=placement), 1.0)
        for placement in ("pre_norm", "post_norm")
        for norm in ("layer_norm", "rms_norm")
    }
    squares = {
        label: [[rms**2 for rms in initial(config, seed, gain).profile.stream] for seed in seeds]
        for label, (config, gain) in models.items()
    }
    points = [
        point
        for label, (config, gain) in models.items()
        for point in mean_points(
            label, squares[label], theory_of_stream(config) if gain == 1.0 else None
        )
    ]
    ends = {label: [line[-1] for line in lines] for label, lines in squares.items()}
    numbers = {
        "none": [math.log10(end) for end in ends["no_norm, gain 1"]],
        "post": ends["post_norm, layer_norm"],
        "pre": [(end - 1.0) / depth for end in ends["pre_norm, layer_norm"]],
        "none_half": [math.log10(end) for end in ends["no_norm, gain 0.5"]],
        "none_twice": [math.log10(end) for end in ends["no_norm, gain 2"]],
    }
    return Measurement(numbers, points, {"model": "R1", "layers": depth, "tokens": TOKENS})


def _expect_token(effort: Effort) -> Expectations:
    return {"mean": below(1e-6), "variance": below(1e-4)}


def _measure_token(effort: Effort, trained: Trained) -> Measurement:
    """Every LayerNorm's output in the default model on a batch of text."""
    corpus = load_corpus()
    numbers: dict[str, list[float]] = {"mean": [], "variance": [], "eps_share": []}
    points: list[Point] = []
    for seed in effort.draws:
        run = training_run(Effort(), seed=seed)
        model = build_model(run, corpus.vocab_size)
        seen: list[tuple[float, float, float]] = []
        for norm in model.modules():
            if isinstance(norm, LayerNorm):
                norm.register_forward_hook(_token_statistics(seen))
        with torch.no_grad():
            model(next(OBJECTIVES[run.objective](run, corpus).batches()).inputs)
        means, variances, shares = zip(*seen, strict=True)
        for key, values in zip(numbers, (means, variances, shares), strict=True):
            numbers[key].append(max(values))
        if seed == 0:
            points = [
                {"label": "eps/(variance + eps)", "x": at, "y": share}
                for at, share in enumerate(shares)
            ]
    return Measurement(
        numbers, points, {"model": "R3", "text": corpus.source, "norms": len(shares)}
    )


def _token_statistics(seen: list[tuple[float, float, float]]) -> Callable[..., None]:
    """Largest |mean| of a token, largest distance of its variance from v/(v + eps), and the mean
    share that eps takes.
    """

    def hook(norm: LayerNorm, args: tuple[Tensor], out: Tensor) -> None:
        entry, y = args[0].double(), out.double()
        variance = entry.var(-1, unbiased=False)
        share = norm.eps / (variance + norm.eps)
        off = (y.var(-1, unbiased=False) - (1.0 - share)).abs().max()
        seen.append((float(y.mean(-1).abs().max()), float(off), float(share.mean())))

    return hook


def _expect_gradient(effort: Effort) -> Expectations:
    kept = below(1.0)
    return {"none": above(1.0), "pre": kept, "post": kept}


def _measure_gradient(effort: Effort, trained: Trained) -> Measurement:
    """Decades between the largest and the smallest gradient of a stream of 48 layers."""
    depth = 48
    models = {
        "none": ("no_norm", r1(depth=depth, norm="no_norm")),
        "pre": ("pre_norm", r1(depth=depth)),
        "post": ("post_norm", r1(depth=depth, placement="post_norm")),
    }
    numbers: dict[str, list[float]] = {}
    points: list[Point] = []
    for key, (label, config) in models.items():
        lines = [initial(config, seed).profile.stream_gradient for seed in effort.draws]
        numbers[key] = [math.log10(max(line) / min(line)) for line in lines]
        points += mean_points(label, [[g / line[-1] for g in line] for line in lines])
    return Measurement(numbers, points, {"model": "R1", "layers": depth, "tokens": TOKENS})


def _expect_logits(effort: Effort) -> Expectations:
    return {
        "none": above(1.0, in_part=(0.3, math.inf)),
        "output": above(1.0, in_part=(0.3, math.inf)),
        "pre": below(0.5, in_part=(-math.inf, 1.0)),
    }


@torch.no_grad()
def _measure_logits(effort: Effort, trained: Trained) -> Measurement:
    """Largest |logit| of each layer of 32, over seen and unseen keys alike."""
    depth = 32
    models = {
        "none": ("no_norm", r1(depth=depth, norm="no_norm")),
        "pre": ("pre_norm", r1(depth=depth)),
        "output": (
            "output_norm",
            r1(depth=depth, placement="output_norm", query_key_norm="none"),
        ),
        "bounded": (
            "output_norm, query/key norm",
            r1(depth=depth, placement="output_norm", query_key_norm="full"),
        ),
    }
    numbers: dict[str, list[float]] = {}
    points: list[Point] = []
    for key, (label, config) in models.items():
        lines = [_largest_logits(config, seed) for seed in effort.draws]
        numbers[key] = [math.log10(line[-1] / line[0]) for line in lines]
        points += mean_points(label, lines)
        if key == "bounded":
            numbers[key] = [max(line) / largest_logit(config.head_width) for line in lines]
    return Measurement(numbers, points, {"model": "R1", "layers": depth, "tokens": TOKENS})


def _largest_logits(config: TransformerConfig, seed: int) -> list[float]:
    model = reference_model(config, seed)
    found: list[float] = []

    def hook(attention: nn.Module, args: tuple[Tensor]) -> None:
        assert isinstance(attention, Attention)  # noqa: S101 - hooked below
        found.append(float(attention.logits(args[0]).abs().max()))

    for module in model.modules():
        if isinstance(module, Attention):
            module.register_forward_pre_hook(hook)
    model(inputs_embeds=inputs(config, seed)[0])
    return found


CLAIMS = {
    "why-scale": Claim(1, _expect_scale, _measure_scale, Picture("lines", y_log=True)),
    "why-token": Claim(1, _expect_token, _measure_token, Picture("lines", y_log=True)),
    "why-gradient": Claim(1, _expect_gradient, _measure_gradient, Picture("lines", y_log=True)),
    "why-logits": Claim(1, _expect_logits, _measure_logits, Picture("lines", y_log=True)),
}
