"""Section 2 of the notes, trained: which placement learns, and with which warm-up."""

import math
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean

import torch

from normwise.claims.claim import Claim, Measurement, Picture, Point
from normwise.claims.initial import initial, r1
from normwise.claims.settings import Effort
from normwise.claims.trained import FAST, RATE, Trained, base_run, training_run, warmup
from normwise.claims.verdict import Expectations, above
from normwise.lab.data import Corpus, load_corpus
from normwise.lab.objective import OBJECTIVES, token_loss
from normwise.lab.settings import RunSettings
from normwise.lab.train import OPTIMIZERS, model_config
from normwise.model.transformer import Transformer
from normwise.schedules import Schedule, parameter_groups, set_rate

INITS = ("xavier_packed", "xavier", "normal")
LEARNS = above(0.3, one_seed=0.1)
"""A difference of losses that counts, in nats: a third of what a run that learns is below the
unigram level, 0.9. Runs that learn differ by 0.03 between seeds."""


def _run(
    effort: Effort, placement: str, seed: int, init: str = INITS[0], *, warm: bool = False
) -> RunSettings:
    """At the default rate."""
    at = warmup(effort) if warm else 0
    if init == INITS[0]:
        return base_run(effort, placement, seed, at)
    return training_run(effort, placement, seed, init=init, warmup=at)


def _fast(effort: Effort, placement: str, seed: int, *, warm: bool) -> RunSettings:
    """At four times that rate."""
    own = "deep_norm" if placement == "deep_norm" else INITS[0]
    at = warmup(effort) if warm else 0
    return training_run(effort, placement, seed, init=own, lr=FAST, warmup=at)


def _differences(trained: Trained, pairs: Iterable[tuple[RunSettings, RunSettings]]) -> list[float]:
    """Loss of the first minus loss of the second, one for each seed."""
    return [trained.loss(first) - trained.loss(second) for first, second in pairs]


def _points(trained: Trained, named: Mapping[str, Iterable[RunSettings]]) -> list[Point]:
    """The losses of each kind of run, seed by seed."""
    return [
        {"label": label, "y": trained.loss(run)} for label, runs in named.items() for run in runs
    ]


def _conditions(effort: Effort, layers: int = 12) -> dict[str, object]:
    steps = base_run(effort, "pre_norm", 0).steps
    return {
        "model": "R3", "layers": layers, "steps": steps, "warmup": warmup(effort),
        "rate": RATE, "seeds": effort.seeds,
    }  # fmt: skip


def _easy_runs(effort: Effort) -> list[RunSettings]:
    return [
        run
        for seed in range(effort.seeds)
        for placement in ("pre_norm", "post_norm")
        for run in (
            *(_run(effort, placement, seed, init) for init in INITS),
            _fast(effort, placement, seed, warm=True),
        )
    ]


def _expect_easy(effort: Effort) -> Expectations:
    return {**dict.fromkeys(INITS, LEARNS), "fast": LEARNS}


def _measure_easy(effort: Effort, trained: Trained) -> Measurement:
    """Loss of post-norm minus loss of pre-norm: without warm-up for each initialisation, and with
    warm-up at four times the rate.
    """
    seeds = range(effort.seeds)
    numbers = {
        init: _differences(
            trained,
            [
                (_run(effort, "post_norm", s, init), _run(effort, "pre_norm", s, init))
                for s in seeds
            ],
        )
        for init in INITS
    }
    numbers["fast"] = _differences(
        trained,
        [(_fast(effort, "post_norm", s, warm=True), _fast(effort, "pre_norm", s, warm=True))
         for s in seeds],
    )  # fmt: skip
    points = _points(trained, {
        f"{placement}, {init}": [_run(effort, placement, seed, init) for seed in seeds]
        for init in INITS for placement in ("pre_norm", "post_norm")
    } | {
        f"{placement}, {FAST:g}": [_fast(effort, placement, seed, warm=True) for seed in seeds]
        for placement in ("pre_norm", "post_norm")
    })  # fmt: skip
    return Measurement(numbers, points, _conditions(effort), level=trained.unigram)


def _warm_runs(effort: Effort) -> list[RunSettings]:
    return [
        run
        for seed in range(effort.seeds)
        for warm in (False, True)
        for run in (
            *(_run(effort, "post_norm", seed, init, warm=warm) for init in INITS),
            _fast(effort, "post_norm", seed, warm=warm),
        )
    ]


def _expect_warm(effort: Effort) -> Expectations:
    return {
        **dict.fromkeys(INITS, LEARNS),
        "fast": LEARNS,
        "gradient": above(1.5, in_part=(1.0, math.inf)),
    }


def _measure_warm(effort: Effort, trained: Trained) -> Measurement:
    """What warm-up takes off the loss of post-norm; how large Adam's first update is over the rate,
    and the last layer's gradient over that of pre-norm.
    """
    seeds = range(effort.seeds)
    numbers = {
        init: _differences(
            trained,
            [(_run(effort, "post_norm", s, init), _run(effort, "post_norm", s, init, warm=True))
             for s in seeds],
        )
        for init in INITS
    }  # fmt: skip
    numbers["fast"] = _differences(
        trained,
        [(_fast(effort, "post_norm", s, warm=False), _fast(effort, "post_norm", s, warm=True))
         for s in seeds],
    )  # fmt: skip
    last = {
        placement: [
            initial(r1(depth=12, placement=placement), seed).last_matrix[-1]
            for seed in effort.draws
        ]
        for placement in ("pre_norm", "post_norm")
    }
    pairs = zip(last["post_norm"], last["pre_norm"], strict=True)
    numbers["gradient"] = [post / pre for post, pre in pairs]
    corpus = load_corpus()
    points: list[Point] = []
    for warm in (0, warmup(effort)):
        gradients, update = _first_steps(base_run(effort, "post_norm", 0, warm), corpus)
        points += [
            {"label": f"post_norm, warm-up {warm}", "x": step, "y": gradient}
            for step, gradient in enumerate(gradients, start=1)
        ]
        numbers["update_warm" if warm else "update"] = [update / RATE]
    return Measurement(numbers, points, {**_conditions(effort), "model": "R3, R1"})


def _first_steps(run: RunSettings, corpus: Corpus) -> tuple[list[float], float]:
    """Norm of the gradient of the last layer's last matrix over 30 steps, and the RMS of the first
    update of all matrices.
    """
    model = Transformer(model_config(run, corpus.vocab_size), seed=run.seed)
    matrices = [weight.tensor for weight in model.layer_weights()]
    before = [matrix.detach().clone() for matrix in matrices]
    optimizer = OPTIMIZERS[run.optimizer](parameter_groups(model, run.weight_decay), run)
    schedule = Schedule("constant", steps=run.steps, warmup=run.warmup)
    batches = OBJECTIVES[run.objective](run, corpus).batches()
    gradients, update = [], 0.0
    for step in range(30):
        batch = next(batches)
        optimizer.zero_grad()
        token_loss(model(batch.inputs), batch.targets).backward()
        gradient = matrices[-1].grad
        assert gradient is not None  # noqa: S101 - it is trained
        gradients.append(float(gradient.norm()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), run.clip)
        set_rate(optimizer, schedule, step)
        optimizer.step()
        if step == 0:
            squares = [
                float((after.detach() - start).square().mean())
                for after, start in zip(matrices, before, strict=True)
            ]
            update = fmean(squares) ** 0.5
    return gradients, update


def _better_runs(effort: Effort) -> list[RunSettings]:
    if effort.quick:
        return []
    return [
        training_run(effort, placement, seed, depth=6, warmup=warm)
        for seed in range(effort.seeds)
        for placement in ("pre_norm", "post_norm")
        for warm in (0, warmup(effort))
    ]


def _expect_better(effort: Effort) -> Expectations:
    return {"difference": above(0.0)}


def _measure_better(effort: Effort, trained: Trained) -> Measurement:
    """Loss of pre-norm minus loss of post-norm at 6 layers, each at the warm-up that suits it."""
    runs = _better_runs(effort)
    losses: dict[tuple[str, int], list[float]] = {}
    for run in runs:
        losses.setdefault((run.placement, run.warmup), []).append(trained.loss(run))
    best = {
        placement: min((values for (at, _), values in losses.items() if at == placement), key=fmean)
        for placement in {run.placement for run in runs}
    }
    pairs = zip(best.get("pre_norm", []), best.get("post_norm", []), strict=True)
    points = [
        {"label": f"{placement}, warm-up {warm}", "y": loss}
        for (placement, warm), values in losses.items()
        for loss in values
    ]
    numbers = {
        "difference": [pre - post for pre, post in pairs],
        "learned": [trained.unigram - loss for loss in best.get("post_norm", [])],
    }
    return Measurement(numbers, points, _conditions(effort, 6), level=trained.unigram)


DEEP = 100


def _deep(effort: Effort, placement: str, seed: int) -> RunSettings:
    """100 layers of width 32, on half the batch."""
    own = "deep_norm" if placement == "deep_norm" else INITS[0]
    return training_run(
        effort, placement, seed, init=own, depth=DEEP, width=32, heads=2, batch_size=8
    )


def _deep_runs(effort: Effort) -> list[RunSettings]:
    if effort.quick:
        return []
    return [
        run
        for seed in range(effort.seeds)
        for placement in ("deep_norm", "post_norm")
        for run in (
            _fast(effort, placement, seed, warm=False),
            _fast(effort, placement, seed, warm=True),
            _deep(effort, placement, seed),
        )
    ]


def _expect_deep(effort: Effort) -> Expectations:
    return {"fast": LEARNS, "fast_warm": LEARNS, "deep": LEARNS}


def _measure_deep(effort: Effort, trained: Trained) -> Measurement:
    """Loss of post-norm minus loss of DeepNorm at four times the rate and at 100 layers."""
    seeds = range(0 if effort.quick else effort.seeds)
    kinds: dict[str, Callable[[str, int], RunSettings]] = {
        "fast": lambda placement, seed: _fast(effort, placement, seed, warm=False),
        "fast_warm": lambda placement, seed: _fast(effort, placement, seed, warm=True),
        "deep": lambda placement, seed: _deep(effort, placement, seed),
    }
    numbers = {
        key: _differences(
            trained, [(kind("post_norm", seed), kind("deep_norm", seed)) for seed in seeds]
        )
        for key, kind in kinds.items()
    }
    points = _points(trained, {
        f"{placement}, {key}": [kind(placement, seed) for seed in seeds]
        for key, kind in kinds.items() for placement in ("deep_norm", "post_norm")
    })  # fmt: skip
    conditions = {**_conditions(effort), "fast": FAST, "deep": DEEP}
    return Measurement(numbers, points, conditions, level=trained.unigram)


CLAIMS = {
    "pre-easy": Claim(2, _expect_easy, _measure_easy, Picture("marks"), _easy_runs),
    "post-warmup": Claim(2, _expect_warm, _measure_warm, Picture("lines", y_log=True), _warm_runs),
    "post-better": Claim(2, _expect_better, _measure_better, Picture("marks"), _better_runs),
    "deep-norm": Claim(2, _expect_deep, _measure_deep, Picture("marks"), _deep_runs),
}
