"""Is the signal of this model healthy? One forward and backward pass, one step taken back."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from normwise.anatomy.leaves import leaves
from normwise.anatomy.points import Points
from normwise.anatomy.trace import buffers_kept
from normwise.conditions import conditions
from normwise.errors import SettingError, UnhealthySignal
from normwise.norms.registry import NORM_MODULES
from normwise.probe.batch_pass import LossFunction, Pass
from normwise.probe.checks.registry import apply
from normwise.probe.diagnosis import Diagnosis
from normwise.probe.expectation import declared, expected
from normwise.probe.findings import SEVERITIES, lines
from normwise.probe.measured import record
from normwise.probe.points import arguments, find_points, token_ids
from normwise.probe.record import ParameterUpdate, Record, Run, Trial
from normwise.probe.recorder import Recorder
from normwise.probe.trial import trial_step
from normwise.probe.updates import frozen, gradient_sums

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
STAGES = ("initial", "trained")


def check(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFunction | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    dtype: str | None = None,
    *,
    checks: Sequence[str] | None = None,
    stage: str | None = None,
    pattern: str | None = None,
) -> Diagnosis:
    """Tells whether signal and gradient of a model are healthy, and what to change.

    One forward pass finds the residual stream, one forward and backward pass measures, and where
    there is an optimizer, one step at its rate is taken back. Parameters, their gradients,
    optimizer, buffers, modes and random state are as before, to the last bit.

    At initialisation the measured profile is held against a prediction, where the initialisation is
    declared: by the configuration of a Hugging Face model, or by a method `recipes(tokens)` of the
    model that gives a `Recipe` for each of its stacks.

    Args:
        model: any Transformer. It is looked at in evaluation, but for its batch norms.
        batch: a mapping is given by keyword, a tuple or list by position, a tensor alone.
        loss_fn: loss from the model's output and the batch. None takes the output's own `loss`;
            for logits (B, T, V) of tokens (B, T) that of the next token; else gradients are those
            of a random projection of the output, and no step is tried.
        optimizer: of the model's parameters, at its peak rate.
        dtype: in which it is trained, "fp32", "bf16" or "fp16"; None for that of its weights. Other
            weights run under autocast.
        checks: names from `normwise list checks`; None for the default ones.
        stage: "initial" or "trained"; None looks whether the norms' gains are as they start.
        pattern: a regular expression for the paths of the blocks, where the stream is not found.

    Raises:
        AnatomyUnknown: the residual stream was not found.
        SettingError, UnknownName: an argument outside of what it may be.
    """
    started = time.perf_counter()
    model = getattr(model, "_orig_mod", model)  # of torch.compile: a compiled graph has no hooks
    _check_arguments(dtype, stage)
    dtype = dtype or _dtype(model)
    args, options = arguments(batch)
    found = find_points(model, args, options, pattern)
    with _as_before(model, optimizer), _precision(model, dtype):
        measured, passed = _measure(model, found, (args, options), batch, loss_fn, optimizer)
    told = replace(measured, dtype=dtype, stage=stage or _stage(model, found))
    if told.stage == "initial":
        told = _with_expected(told, model, args, options)
    sheet, names = apply(Run([told]), checks)
    return Diagnosis.of(
        told, sheet, names, model=type(model).__name__, seconds=time.perf_counter() - started,
        conditions=conditions(), parameters=sum(p.numel() for p in model.parameters()),
        tokens=passed,
    )  # fmt: skip


def assert_healthy(model: nn.Module, batch: Any, severity: str = "warn", **options: Any) -> None:
    """Raises unless `check` finds nothing of this severity or worse; for tests.

    Args:
        model, batch: as for `check`.
        severity: "warn" or "fail".
        options: of `check`.

    Raises:
        UnhealthySignal: with a line for each check. It is an AssertionError.
    """
    if severity not in SEVERITIES[2:]:
        raise SettingError(f'severity must be "warn" or "fail". It is {severity!r}.')
    result = check(model, batch, **options)
    bad = [
        one for one in result.findings
        if SEVERITIES.index(one.severity) >= SEVERITIES.index(severity)
    ]  # fmt: skip
    if bad:
        raise UnhealthySignal("\n".join([result.summary, *lines(bad)]))


def _check_arguments(dtype: str | None, stage: str | None) -> None:
    for name, value, known in (("dtype", dtype, tuple(DTYPES)), ("stage", stage, STAGES)):
        if value is not None and value not in known:
            raise SettingError(f"{name} must be one of {', '.join(known)}. It is {value!r}.")


def _dtype(model: nn.Module) -> str:
    first = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return next((name for name, dtype in DTYPES.items() if dtype == first), "fp32")


def _precision(model: nn.Module, dtype: str) -> AbstractContextManager[Any]:
    """Autocast for weights of fp32 that are trained in half."""
    if dtype == "fp32" or _dtype(model) != "fp32":
        return nullcontext()
    device = next((p.device.type for p in model.parameters()), "cpu")
    return torch.autocast(device, DTYPES[dtype])


@contextmanager
def _as_before(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """Evaluation but for norms over a batch; everything is put back. Hooks with which an optimizer
    steps within the backward pass are off meanwhile.
    """
    modes = [(module, module.training) for module in model.modules()]
    held = {
        p for group in (optimizer.param_groups if optimizer else []) for p in group["params"]
    }  # fmt: skip
    weights = [(p, p.grad) for p in {*model.parameters(), *held}]
    stepping = [p._post_accumulate_grad_hooks for p, _ in weights if p._post_accumulate_grad_hooks]
    switched_off = [dict(hooks) for hooks in stepping]
    model.eval()
    for module in model.modules():
        over_batch = isinstance(module, _BatchNorm) or (
            isinstance(module, NORM_MODULES) and hasattr(module, "running_mean")
        )
        module.training = over_batch
    cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with (
            buffers_kept(model), torch.random.fork_rng(devices=cuda),
            torch.inference_mode(mode=False), torch.enable_grad(),
        ):  # fmt: skip
            for p, _ in weights:
                p.grad = None
            for hooks in stepping:
                hooks.clear()
            yield
    finally:
        for module, training in modes:
            module.training = training
        for p, gradient in weights:
            p.grad = gradient
        for hooks, before in zip(stepping, switched_off, strict=True):
            hooks.update(before)


def _measure(
    model: nn.Module, found: Points, call: tuple[Any, Any], batch: Any,
    loss_fn: LossFunction | None, optimizer: torch.optim.Optimizer | None,
) -> tuple[Record, int]:  # fmt: skip
    """The record of one pass, with a trial step where there is an optimizer; and its tokens."""
    run = Pass(model, call, batch, loss_fn)
    recorder = Recorder(model, found)
    try:
        recorder.attach()
        loss, out = run()
        if not loss.requires_grad:
            raise SettingError(
                "A check needs a gradient of the loss. This loss has none: all parameters are "
                "frozen, or it was made without autograd."
            )
        loss.backward()
    finally:
        recorder.detach()
    sums, maxima = recorder.tally.collect().values()
    keys, squares = gradient_sums(model, found)
    still = frozen(model, found)
    parameters = {
        key: ((square / count) ** 0.5 if count else None, still[key])
        for key, (count, square) in zip(keys, squares.tolist(), strict=True)
    }
    missing = [*found.missing, *recorder.unseen(sums)]
    if run.projected:
        missing.append("the loss: gradients are those of a random projection of the output")
    trial: Trial | None = None
    updates: list[ParameterUpdate] = []
    if optimizer is not None and not run.projected:
        trial, updates = trial_step(run, optimizer, loss.detach(), out)
    made = record(
        found, sums, maxima, recorder.dtypes, exact_attention=True, parameters=parameters,
        step=0, stage="initial", loss=float(loss.detach()), trial=trial, updates=updates,
        missing=missing,
    )  # fmt: skip
    entry = found.stacks[0]
    width = len(maxima.get(("stream", 0, len(entry.connections)), [])) or 1
    return made, int(sums["stream", 0, len(entry.connections)][0] // width)


@torch.no_grad()
def _stage(model: nn.Module, found: Points) -> str:
    """Fresh weights have gains that are all alike."""
    modules = dict(model.named_modules())
    for norm in found.norms:
        if norm.name:
            for p in modules[norm.name].parameters(recurse=False):
                if p.numel() and bool(p.min() != p.max()):
                    return "trained"
    return "initial"


def _with_expected(
    told: Record, model: nn.Module, args: tuple[Any, ...], options: Mapping[str, Any]
) -> Record:
    ids = token_ids(args, options)
    tokens = ids.shape[1] if ids is not None else _tokens(args, options)
    found = declared(model, told.placement, tokens)
    if isinstance(found, str):
        return replace(told, why_not_expected=found)
    return replace(told, expected=expected(told, found))


def _tokens(args: tuple[Any, ...], options: Mapping[str, Any]) -> int:
    """Length of a batch of embeddings."""
    floats = [t for _, t in leaves((args, options)) if t.is_floating_point() and t.ndim == 3]
    return floats[0].shape[1] if floats else 1
