"""Section 4 of the notes: RMSNorm."""

import math
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from normwise.bench.cases import tensors_of
from normwise.bench.measure import take_turns, with_gradients
from normwise.bench.peers import PEERS as PEER_OPS
from normwise.bench.settings import Case
from normwise.claims.claim import Claim, Measurement, Picture, Point
from normwise.claims.settings import Effort
from normwise.claims.trained import Trained, base_run, training_run
from normwise.claims.verdict import Expectations, above, below, between, near
from normwise.lab.settings import RunSettings
from normwise.model.config import TransformerConfig
from normwise.model.transformer import Transformer
from normwise.norms.rms_norm import RMSNorm
from normwise.ops.functional import layer_norm, rms_norm
from normwise.theory.rounding import double_rounding_share

WIDTH, ROWS = 768, 256
NORMS: dict[str, Callable[..., Tensor]] = {"layer_norm": layer_norm, "rms_norm": rms_norm}


def _rows(seed: int, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """Rows (256, 768) of mean exactly 0 and mean square about 1: each entry and its opposite."""
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(ROWS, WIDTH // 2, generator=generator).to(dtype)
    return torch.cat((half, -half), dim=-1)


def _difference_with_mean(mean: float) -> float:
    """RMS of z - (m + z)/sqrt(1 + m^2) for unit z."""
    size = math.hypot(1.0, mean)
    return math.hypot(1.0 - 1.0 / size, mean / size)


MEANS = (0.0, 0.1, 0.3, 1.0, 3.0)


def _expect_same(effort: Effort) -> Expectations:
    return {"zero_mean": below(4.0), "unit_mean": near(_difference_with_mean(1.0), 0.02)}


def _measure_same(effort: Effort, trained: Trained) -> Measurement:
    """The two norms on fp32 rows with and without a mean."""
    numbers: dict[str, list[float]] = {"zero_mean": [], "unit_mean": []}
    differences: list[list[float]] = []
    for seed in effort.draws:
        rows = _rows(seed, dtype=torch.float32)
        apart = [
            layer_norm(rows + mean, WIDTH, eps=0.0).double() - rms_norm(rows + mean, WIDTH, eps=0.0)
            for mean in MEANS
        ]
        differences.append([float(one.square().mean().sqrt()) for one in apart])
        units = torch.finfo(torch.float32).eps * rms_norm(rows, WIDTH, eps=0.0).abs().clamp_min(1.0)
        numbers["zero_mean"].append(float((apart[0].abs() / units).max()))
        numbers["unit_mean"].append(differences[-1][MEANS.index(1.0)])
    points = [
        {"label": "rms(LN - RMS)", "x": mean, "y": sum(line[at] for line in differences) /
         len(differences), "predicted": _difference_with_mean(mean)}
        for at, mean in enumerate(MEANS)
    ]  # fmt: skip
    return Measurement(numbers, points, {"width": WIDTH, "rows": ROWS, "precision": "fp32"})


def _expect_invariance(effort: Effort) -> Expectations:
    exact = below(1e-12)
    return {
        "layer_scale": exact, "rms_scale": exact, "layer_shift": exact, "rms_shift": above(0.1),
        "layer_orthogonal": exact, "rms_orthogonal": exact,
    }  # fmt: skip


def _measure_invariance(effort: Effort, trained: Trained) -> Measurement:
    """What a factor and a shift of the input change, in float64 without eps; and the cosine between
    the input and its gradient.
    """
    numbers: dict[str, list[float]] = {}
    points: list[Point] = []
    for name, norm in NORMS.items():
        short = name.removesuffix("_norm")
        for seed in effort.draws:
            x = _rows(seed) + 0.3
            y = norm(x, WIDTH, eps=0.0)
            changes = {
                "scale": norm(3.0 * x, WIDTH, eps=0.0) - y,
                "shift": norm(x + 1.0, WIDTH, eps=0.0) - y,
            }
            for what, change in changes.items():
                numbers.setdefault(f"{short}_{what}", []).append(float(change.abs().max()))
            numbers.setdefault(f"{short}_orthogonal", []).append(_cosine(norm, x, seed))
        points += [
            {"label": name, "mark": what, "y": max(numbers[f"{short}_{what}"][0], 1e-17)}
            for what in ("scale", "shift", "orthogonal")
        ]
    return Measurement(numbers, points, {"width": WIDTH, "rows": ROWS, "precision": "fp64"})


def _cosine(norm: Callable[..., Tensor], x: Tensor, seed: int) -> float:
    """Largest |cos| between a row and the gradient of a random function of its normed value."""
    x = x.clone().requires_grad_()
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).double()
    (gradient,) = torch.autograd.grad((norm(x, WIDTH, eps=0.0) * direction).sum(), x)
    inner = (gradient * x).sum(-1) / (gradient.norm(dim=-1) * x.norm(dim=-1))
    return float(inner.detach().abs().max())


def _expect_faster(effort: Effort) -> Expectations:
    stated = between(0.07, 0.64, in_part=(0.0, 1.0))
    return dict.fromkeys((*PEERS, "model"), stated)


ROUNDS, TIMED_ROWS = 3, 2048
PEERS = {
    "ours": ("normwise", "fp32"),
    "ours_bf16": ("normwise", "bf16"),
    "compiled": ("torch.compile", "fp32"),
    "compiled_bf16": ("torch.compile", "bf16"),
    "eager": ("torch", "fp32"),
}
PAPER = (
    ("Transformer, TensorFlow", 248.0, 231.0),
    ("RNNSearch, TensorFlow", 665.0, 501.0),
    ("RNNSearch, Theano", 988.0, 652.0),
    ("RNNSearch, PyTorch", 857.0, 763.0),
    ("order-embedding, Theano", 12.02, 7.12),
    ("order-embedding, Theano, partial RMSNorm", 12.02, 4.34),
)
"""Model, seconds with LayerNorm and with RMSNorm; Zhang and Sennrich 2019 (1910.07467), tables 2,
3, 4 and 8."""


def _measure_faster(effort: Effort, trained: Trained) -> Measurement:
    """Share of the time of forward and backward that RMSNorm saves over LayerNorm: the norms alone,
    and a step of a model; three times over, so that the machine's own spread is seen. A quick run
    is too short for it.
    """
    if effort.quick:
        return Measurement({}, [], {})
    runs = {**_norms_alone(), **_models()}
    rounds = [take_turns(runs, 15) for _ in range(ROUNDS)]
    seconds = {run: [times[run]["median"] for times in rounds] for run in runs}
    numbers: dict[str, list[float]] = {}
    rows: list[Point] = []
    for key in (*PEERS, "model"):
        pairs = zip(seconds[key, "layer_norm"], seconds[key, "rms_norm"], strict=True)
        numbers[key] = [1.0 - rms / layer for layer, rms in pairs]
        rows.append(_row(key, *(1e3 * median(seconds[key, norm]) for norm in NORMS)))
    points = [{"label": key, "y": value} for key, values in numbers.items() for value in values]
    rows += [_row(*line) for line in PAPER]
    conditions = {"rows": TIMED_ROWS, "width": WIDTH, "threads": torch.get_num_threads()}
    return Measurement(numbers, points, conditions, rows)


def _row(what: str, layer: float, rms: float) -> Point:
    return {"what": what, "layer_norm": layer, "rms_norm": rms, "saved": 1.0 - rms / layer}


Runs = dict[tuple[str, str], Callable[[], object]]


def _norms_alone() -> Runs:
    """Forward and backward of both norms by peer."""
    runs: Runs = {}
    for norm in NORMS:
        for key, (peer, dtype) in PEERS.items():
            case = Case("reused", norm, TIMED_ROWS, WIDTH, dtype)
            tensors = tensors_of(case)
            op = PEER_OPS[peer](norm, tensors)
            assert op is not None, peer  # noqa: S101 - these have both norms
            runs[key, norm] = with_gradients(case, op, tensors)
    return runs


def _models() -> Runs:
    """Forward and backward of a model of width 256 with either norm."""

    def step_of(norm: str) -> Callable[[], object]:
        config = TransformerConfig(width=256, depth=2, norm=norm, bias=False)
        model = Transformer(config, seed=0)
        tokens = torch.randint(0, 256, (8, 64), generator=torch.Generator().manual_seed(0))

        def step() -> None:
            model.zero_grad()
            cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()

        return step

    return {("model", norm): step_of(norm) for norm in NORMS}


def _quality_run(effort: Effort, norm: str, seed: int) -> RunSettings:
    if norm == "layer_norm":
        return base_run(effort, "pre_norm", seed)
    return training_run(effort, seed=seed, norm=norm)


def _quality_runs(effort: Effort) -> list[RunSettings]:
    return [_quality_run(effort, norm, seed) for seed in range(effort.seeds) for norm in NORMS]


def _expect_quality(effort: Effort) -> Expectations:
    return {"difference": near(0.0, 0.05, one_seed=0.03)}


def _measure_quality(effort: Effort, trained: Trained) -> Measurement:
    """Loss with RMSNorm minus loss with LayerNorm, seed by seed."""
    losses = {
        norm: [trained.loss(_quality_run(effort, norm, seed)) for seed in range(effort.seeds)]
        for norm in NORMS
    }
    pairs = zip(losses["rms_norm"], losses["layer_norm"], strict=True)
    points = [{"label": norm, "y": loss} for norm, values in losses.items() for loss in values]
    run = _quality_run(effort, "rms_norm", 0)
    conditions = {"model": "R3", "layers": run.depth, "steps": run.steps, "rate": run.lr,
                  "seeds": effort.seeds}  # fmt: skip
    return Measurement({"difference": [rms - layer for rms, layer in pairs]}, points, conditions)


DECAY, RATE, DECAY_STEPS = 0.1, 0.01, 1000


def _expect_offset(effort: Effort) -> Expectations:
    left = (1.0 - DECAY * RATE) ** DECAY_STEPS
    return {
        "start": near(0.0, 0.0),
        "with_offset": near(1.0 + 0.5 * left, 1e-3),
        "without": near(1.5 * left, 1e-3),
        "trap": near(0.0, 0.0),
    }


def _measure_offset(effort: Effort, trained: Trained) -> Measurement:
    """The start, and a gain of 1.5 under weight decay alone."""
    x = _rows(0, dtype=torch.float32)
    offset, plain = RMSNorm(WIDTH, unit_offset=True), RMSNorm(WIDTH)
    start = float((offset(x) - plain(x)).abs().max().detach())
    decayed = {"with_offset": _decayed(offset, 0.5, 1.0), "without": _decayed(plain, 1.5, 0.0)}
    with torch.no_grad():
        trap = RMSNorm(WIDTH)
        trap.weight.zero_()
        numbers = {key: [line[-1]] for key, line in decayed.items()}
        numbers |= {"start": [start], "trap": [float(trap(x).abs().max())]}
    points = [
        {"label": key, "x": 100 * at, "y": gain}
        for key, line in decayed.items()
        for at, gain in enumerate(line)
    ]
    conditions = {"rate": RATE, "weight_decay": DECAY, "steps": DECAY_STEPS}
    return Measurement(numbers, points, conditions)


def _decayed(norm: RMSNorm, weight: float, offset: float) -> list[float]:
    """The gain every 100 steps of AdamW on a gradient of 0, from a weight."""
    parameter = norm.weight
    assert parameter is not None  # noqa: S101 - built with one
    with torch.no_grad():
        parameter.fill_(weight)
    optimizer = torch.optim.AdamW([parameter], lr=RATE, weight_decay=DECAY)
    parameter.grad = torch.zeros_like(parameter)
    gains = [offset + weight]
    for step in range(1, DECAY_STEPS + 1):
        optimizer.step()
        if step % 100 == 0:
            gains.append(offset + float(parameter[0].detach()))
    return gains


def _bf16(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, WIDTH, generator=generator).bfloat16()
    return x, (1.0 + 0.1 * torch.randn(WIDTH, generator=generator)).bfloat16()


def _predicted_share(seed: int) -> float:
    x, weight = _bf16(seed)
    values = rms_norm(x.double(), WIDTH, eps=1e-6)
    return double_rounding_share(values.numpy(), weight.double().numpy())


def _expect_cast(effort: Effort) -> Expectations:
    return {"share": near(_predicted_share(0), 0.02, in_part=(0.01, 1.0))}


def _measure_cast(effort: Effort, trained: Trained) -> Measurement:
    """Share of bf16 results that differ between the two rounding orders."""
    shares, points = [], []
    for seed in effort.draws:
        x, weight = _bf16(seed)
        llama, fp32 = (
            rms_norm(x, WIDTH, weight, eps=1e-6, rounding=name) for name in ("llama", "fp32")
        )
        shares.append(float((llama != fp32).double().mean()))
        points.append({"label": "llama, fp32", "x": seed, "y": shares[-1],
                       "predicted": _predicted_share(seed)})  # fmt: skip
    return Measurement(
        {"share": shares}, points, {"rows": ROWS, "width": WIDTH, "precision": "bf16"}
    )


CLAIMS: dict[str, Claim] = {
    "rms-is-ln": Claim(4, _expect_same, _measure_same, Picture("lines")),
    "rms-invariance": Claim(
        4, _expect_invariance, _measure_invariance, Picture("marks", y_log=True)
    ),
    "rms-faster": Claim(4, _expect_faster, _measure_faster, Picture("marks"), timed=True),
    "rms-quality": Claim(4, _expect_quality, _measure_quality, Picture("marks"), _quality_runs),
    "rms-offset": Claim(4, _expect_offset, _measure_offset, Picture("lines")),
    "rms-cast": Claim(4, _expect_cast, _measure_cast, Picture("lines")),
}
