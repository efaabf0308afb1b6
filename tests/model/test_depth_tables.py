"""Stream and gradient on the reference models from 2 to 64 layers: the tables of the literature and
of our own measurements, which no two sets of seeds repeat to better than the tolerances here.
"""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from normwise.lab.prediction import predicted_gradient, predicted_stream, why_no_gradient
from normwise.model.config import TransformerConfig, reference_config
from normwise.model.layers import Layer
from normwise.model.transformer import Transformer
from normwise.probe.stream import StreamRecorder
from normwise.residual.registry import PLACEMENTS
from normwise.theory.branches import FeedForward
from normwise.theory.moments import Moments

DEPTHS = (2, 4, 8, 16, 32, 64)
TOKENS, SEEDS = 32, 3
SEED_TO_SEED = 0.35  # of a mean over 3 seeds; single ones of pre_norm spread by a factor of 1.5
Row = tuple[float, ...]

# mean square of the stream at the end, at 2 ... 64 layers
STREAM: dict[str, Row] = {
    "pre_norm": (2.48, 4.48, 8.34, 21.1, 37, 89.5),
    "post_norm": (1, 1, 1, 1, 1, 1),
    "deep_norm": (1, 1, 1, 1, 1, 1),
    "keel": (1, 1, 1, 1, 1, 1),
    "b2t": (1, 1, 1, 1, 1, 1),
    "peri_norm": (4.8, 9.0, 16, 36, 60, 141),
    "output_norm": (4.8, 9.0, 16, 36, 60, 141),
    "depth_scaled_norm": (2.08, 2.59, 3.11, 4.08, 4.28, 5.08),
    "sub_norm": (6.5, 16.6, 45, 110, 272, 607),
    "mix_norm": (2.48, 3.89, 7.95, 18.9, 39.5, 80),  # at 2 layers none is post-norm
}
ON_R2: dict[str, dict[int, float]] = {
    "hybrid_norm": {4: 1.64, 16: 1.61, 64: 1.44},
    "scaled_residual": {4: 0.605, 16: 0.580, 64: 0.613},
    "siamese_norm_scaled": {4: 4.29, 16: 17.8, 64: 80},
}
# Frobenius norm of the gradient of the last layer's last matrix
GRADIENT: dict[str, Row] = {
    "pre_norm": (0.902, 0.700, 0.500, 0.355, 0.233, 0.146),
    "post_norm": (1.18, 1.27, 1.21, 1.29, 1.37, 1.32),
    "deep_norm": (0.493, 0.341, 0.249, 0.177, 0.123, 0.0870),
    "keel": (0.345, 0.168, 0.0859, 0.0444, 0.0216, 0.0110),
    "peri_norm": (0.94, 0.71, 0.55, 0.38, 0.27, 0.186),
    "depth_scaled_norm": (0.693, 0.444, 0.282, 0.186, 0.127, 0.0758),
    "b2t": (0.69, 0.69, 0.70, 0.77, 0.87, 0.78),
    "resi_dual": (2.2, 2.4, 2.4, 2.3, 2.1, 2.2),
    "sub_norm": (0.80, 0.50, 0.30, 0.20, 0.13, 0.085),
}
SLOPES = {
    "pre_norm": (-0.5, 0.07), "post_norm": (0.0, 0.07), "deep_norm": (-0.5, 0.03),
    "keel": (-1.0, 0.03), "peri_norm": (-0.47, 0.07), "depth_scaled_norm": (-0.64, 0.07),
    "b2t": (0.0, 0.1), "resi_dual": (0.0, 0.07),
}  # fmt: skip
LAST_OVER_FIRST = {
    ("r1", "pre_norm"): 0.131, ("r1", "deep_norm"): 0.98, ("r1", "keel"): 1.06,
    ("r1", "peri_norm"): 0.126, ("r1", "depth_scaled_norm"): 0.057,
    ("r2", "siamese_norm_scaled"): 0.11, ("r2", "scaled_residual"): 1.06,
}  # fmt: skip


@cache
def measured(name: str, placement: str, depth: int) -> tuple[float, tuple[float, ...]]:
    """Mean square of the stream at the end, and gradients of the last matrix of each layer; means
    over seeds.
    """
    options: dict[str, Any] = {"init": "xavier"} if placement == "scaled_residual" else {}
    config = reference_config(name, depth=depth, placement=placement, **options)
    streams, gradients = [], []
    for seed in range(SEEDS):
        model = Transformer(config, seed=seed)
        generator = torch.Generator().manual_seed(50 + seed)
        x = torch.randn(1, TOKENS, config.width, generator=generator)
        targets = torch.randint(0, config.vocab_size, (TOKENS,), generator=generator)
        with StreamRecorder(model) as recorder:
            cross_entropy(model(inputs_embeds=x)[0], targets).backward()
        streams.append(recorder.profile().stream[-1] ** 2)
        gradients.append([last_matrix_gradient(layer) for layer in model.layers])
    return float(np.mean(streams)), tuple(np.mean(gradients, axis=0))


def last_matrix_gradient(layer: Layer) -> float:
    gradient = layer.feed_forward.output.weight.grad
    assert gradient is not None
    return float(gradient.norm())


unmatched = pytest.mark.filterwarnings("ignore::normwise.errors.PairingWarning")


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("placement", STREAM)
def test_the_stream_grows_as_in_the_table(placement: str, depth: int) -> None:
    expected = STREAM[placement][DEPTHS.index(depth)]
    tolerance = 1e-3 if expected == 1 else SEED_TO_SEED
    assert measured("r1", placement, depth)[0] == pytest.approx(expected, rel=tolerance)


@unmatched
@pytest.mark.parametrize(
    ("placement", "depth"), [(name, depth) for name, row in ON_R2.items() for depth in row]
)
def test_the_stream_grows_as_in_the_table_of_r2(placement: str, depth: int) -> None:
    stream, _ = measured("r2", placement, depth)
    assert stream == pytest.approx(ON_R2[placement][depth], rel=SEED_TO_SEED)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("placement", GRADIENT)
def test_the_last_gradient_is_that_of_the_table(placement: str, depth: int) -> None:
    _, gradients = measured("r1", placement, depth)
    expected = GRADIENT[placement][DEPTHS.index(depth)]
    assert gradients[-1] == pytest.approx(expected, rel=SEED_TO_SEED)


@pytest.mark.parametrize("placement", SLOPES)
def test_the_last_gradient_falls_with_depth_by_its_power(placement: str) -> None:
    last = [measured("r1", placement, depth)[1][-1] for depth in DEPTHS]
    slope, _ = np.polyfit(np.log(DEPTHS), np.log(last), 1)
    expected, tolerance = SLOPES[placement]
    assert slope == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(("placement", "share"), [("deep_norm", 0.05), ("keel", 0.08)])
@pytest.mark.parametrize("depth", [16, 64])
def test_gradients_are_equal_at_every_layer(placement: str, share: float, depth: int) -> None:
    """From the second layer on; keel's first one starts with a pre-norm connection."""
    _, gradients = measured("r1", placement, depth)
    assert gradients[1:] == pytest.approx([np.mean(gradients)] * (depth - 1), rel=share)


@unmatched
@pytest.mark.parametrize(("name", "placement"), LAST_OVER_FIRST)
def test_the_last_gradient_over_the_first_at_64_layers(name: str, placement: str) -> None:
    _, gradients = measured(name, placement, 64)
    expected = LAST_OVER_FIRST[name, placement]
    assert gradients[-1] / gradients[0] == pytest.approx(expected, rel=0.5)  # both ends spread


@unmatched
def test_output_norm_without_a_query_key_norm_loses_its_first_layers() -> None:
    """The gradient of the first layer explodes, 1.8e-4 last over first at 64 layers; with the norm
    it does not.
    """
    config = reference_config("r1", depth=64, placement="output_norm", query_key_norm="none")
    ratios = []
    for made in (config, reference_config("r1", depth=64, placement="output_norm")):
        model = Transformer(made, seed=0)
        x = torch.randn(1, TOKENS, 128, generator=torch.Generator().manual_seed(50))
        cross_entropy(model(inputs_embeds=x)[0], torch.arange(TOKENS)).backward()
        first, last = (last_matrix_gradient(model.layers[at]) for at in (0, -1))
        ratios.append(last / first)
    assert ratios[0] < 0.01 < 0.05 < ratios[1]


def predicted_last_gradient(config: TransformerConfig) -> float:
    """Of a mean over tokens whose gradients at the normed output are independent and of length 1:
    sqrt(tokens) |hidden| |gradient at the branch's output|/tokens.
    """
    entry = Moments(1.0, 0.0)
    profile = predicted_gradient(config, entry, TOKENS)
    stream = predicted_stream(config, entry, TOKENS)
    assert profile is not None
    assert stream is not None
    end = 1.0 / stream[-1] if config.placement_row.final_norm else 1.0
    hidden = config.ff_width * hidden_square(config, stream)
    return math.sqrt(hidden / TOKENS) * profile.branch[-1] * end


def hidden_square(config: TransformerConfig, stream: list[float]) -> float:
    """Mean square of what the last matrix is given: half of a unit stream, and of what the
    placement makes of it.
    """
    beta = (8 * config.depth) ** -0.25 if config.placement == "deep_norm" else 1.0
    scale = config.depth**-0.5 if config.placement == "depth_scaled_norm" else 1.0
    return FeedForward("relu", beta**2, 1.0).hidden(Moments(scale**2, 0.0)).square


@pytest.mark.parametrize("depth", [2, 8, 32])
@pytest.mark.parametrize(
    "placement", ["pre_norm", "post_norm", "deep_norm", "keel", "peri_norm", "depth_scaled_norm"]
)
def test_theory_gives_the_last_gradient(placement: str, depth: int) -> None:
    config = reference_config("r1", depth=depth, placement=placement)
    _, gradients = measured("r1", placement, depth)
    assert gradients[-1] == pytest.approx(predicted_last_gradient(config), rel=0.3)


KNOWN = [
    name for name in PLACEMENTS if why_no_gradient(reference_config("r1", placement=name)) is None
]
# Over 12 layers, theory's worst point lay within these of four seeds' mean. It leaves out that
# queries that are alike look at the same keys, more so where attention branches are large.
PROFILES = {"post_norm": 1.1, "mix_norm": 0.45, "hybrid_norm": 0.6, "hybrid_norm_star": 0.6}
PROFILE = 0.3


@pytest.mark.parametrize("placement", [name for name in KNOWN if name != "hyper_connections"])
@pytest.mark.parametrize("name", ["r1", "r2"])
def test_theory_gives_the_gradient_by_depth(name: str, placement: str) -> None:
    config = reference_config(name, depth=12, placement=placement)
    expected = predicted_gradient(config, Moments(1.0, 0.0), TOKENS)
    assert expected is not None
    found = np.sqrt(np.mean(np.square([gradients(config, seed) for seed in range(4)]), axis=0))
    tolerance = PROFILES.get(placement, PROFILE)
    ratio = np.abs(np.log(found / found[-1] / expected.stream))
    assert ratio.max() < math.log(1.0 + tolerance)


def gradients(config: TransformerConfig, seed: int) -> list[float]:
    """RMS of the gradient at each point of the stream."""
    generator = torch.Generator().manual_seed(50 + seed)
    x = torch.randn(1, TOKENS, config.width, generator=generator).requires_grad_()
    targets = torch.randint(0, config.vocab_size, (TOKENS,), generator=generator)
    model = Transformer(config, seed=seed)
    with StreamRecorder(model) as recorder:
        cross_entropy(model(inputs_embeds=x)[0], targets).backward()
    return recorder.profile().stream_gradient


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_theory_gives_the_gradient_of_other_branches(activation: str, *, causal: bool) -> None:
    config = reference_config("r2", depth=8, activation=activation, causal=causal)
    expected = predicted_gradient(config, Moments(1.0, 0.0), TOKENS)
    assert expected is not None
    found = np.sqrt(np.mean(np.square([gradients(config, seed) for seed in range(4)]), axis=0))
    ratio = np.abs(np.log(found / found[-1] / expected.stream))
    assert ratio.max() < math.log(1.5)  # of SwiGLU, whose branches leave more to attention


def test_why_there_is_no_prediction() -> None:
    for name in PLACEMENTS:
        config = reference_config("r1", placement=name)
        reason = why_no_gradient(config)
        found = predicted_gradient(config, Moments(1.0, 0.0), TOKENS)
        assert (found is None) == (reason is not None)
    assert why_no_gradient(reference_config("r1", norm="derf")) is not None
