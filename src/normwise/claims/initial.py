"""What claims measure on the reference models before training."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from normwise.errors import PairingWarning
from normwise.lab.prediction import predicted_stream
from normwise.model.config import TransformerConfig, reference_config
from normwise.model.transformer import Transformer
from normwise.probe.stream import StreamProfile, StreamRecorder
from normwise.theory.moments import Moments

DEPTHS = (2, 4, 8, 16, 32, 64)
TOKENS = 32
ENTRY = Moments(1.0, 0.0)  # of unit Gaussian tokens
POINTS = 40  # of a line in a picture


@dataclass(frozen=True)
class Initial:
    """One model at initialisation.

    Args:
        profile: RMS of stream, branches and their gradients by connection.
        last_matrix: Frobenius norm of the gradient of each layer's last matrix.
    """

    profile: StreamProfile
    last_matrix: list[float]


def inputs(config: TransformerConfig, seed: int) -> tuple[Tensor, Tensor]:
    """Unit Gaussian tokens (1, T, D) in float64, and random targets (T,)."""
    generator = torch.Generator().manual_seed(50 + seed)
    x = torch.randn(1, TOKENS, config.width, generator=generator).double()
    return x, torch.randint(0, config.vocab_size, (TOKENS,), generator=generator)


def reference_model(config: TransformerConfig, seed: int, gain: float = 1.0) -> Transformer:
    """The model in float64, in which a stream without norms finds room, with the matrices of its
    layers times `gain`.
    """
    model = Transformer(config, seed=seed).double()
    with torch.no_grad():
        for weight in model.layer_weights():
            weight.tensor.mul_(gain)
    return model


def initial(config: TransformerConfig, seed: int, gain: float = 1.0) -> Initial:
    """Stream, branches and gradients of the loss on random targets."""
    model = reference_model(config, seed, gain)
    x, targets = inputs(config, seed)
    # torch's fused attention recomputes exp(logit - logsumexp), which at logits of 1e20 rounds by
    # 1e4 and gives NaN gradients
    with sdpa_kernel(SDPBackend.MATH), StreamRecorder(model) as recorder:
        cross_entropy(model(inputs_embeds=x.requires_grad_())[0], targets).backward()
    gradients = [layer.feed_forward.output.weight.grad for layer in model.layers]
    return Initial(
        recorder.profile(), [float(g.norm()) for g in gradients if g is not None]
    )  # fmt: skip


def theory_of_stream(config: TransformerConfig) -> list[float]:
    """Mean square of the stream by connection, as theory has it."""
    predicted = predicted_stream(config, ENTRY, TOKENS)
    assert predicted is not None, config.placement  # noqa: S101 - of claims' own models
    return [rms**2 for rms in predicted]


def r1(**changes: Any) -> TransformerConfig:
    """Reference model R1, changed, also where a change does not go with its placement."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PairingWarning)
        return reference_config("r1", **changes)


def power(sizes: Sequence[float], values: Iterable[float]) -> float:
    """Slope of log values over log sizes."""
    slope, _ = np.polyfit(np.log(sizes), np.log(list(values)), 1)
    return float(slope)


def mean_points(
    label: str, lines: Sequence[Sequence[float]], predicted: Sequence[float] | None = None
) -> list[dict[str, Any]]:
    """A line over connections, its mean over seeds, and theory's beside it, at `POINTS` places."""
    length = len(lines[0])
    places = sorted({*range(0, length, math.ceil(length / POINTS)), length - 1})
    mean = np.mean(np.array(lines), axis=0)
    theory = {} if predicted is None else {at: predicted[at] for at in places}
    return [
        {"label": label, "x": at, "y": float(mean[at])}
        | ({"predicted": theory[at]} if at in theory else {})
        for at in places
    ]
