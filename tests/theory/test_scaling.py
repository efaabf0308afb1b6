"""Constants of depth and width against the numbers that papers and bug reports print."""

import math

import pytest

from normwise.theory.scaling import (
    deep_norm_alpha,
    deep_norm_beta,
    noam_peak_rate,
    residual_projection_scale,
    xavier_std,
)
from normwise.weight_init import initial_std

DEPTHS = [1, 2, 6, 12, 24, 100, 1000]


# labmlai/annotated_deep_learning_paper_implementations#145; Wang et al. 2022 (2203.00555)
@pytest.mark.parametrize(
    ("layers", "alpha", "beta"),
    [
        (6, 1.861210, 0.379918),
        (12, 2.213364, 0.319472),
        (24, 2.632148, 0.268642),
        (100, 3.760603, 0.188030),
    ],
)
def test_P46_alpha_and_beta_at_the_depths_of_the_case(
    layers: int, alpha: float, beta: float
) -> None:
    """P46: alpha = (2N)^(1/4), beta = (8N)^(-1/4), to the six printed digits."""
    assert deep_norm_alpha(2 * layers) == pytest.approx(alpha, abs=5e-7)
    assert deep_norm_beta(2 * layers) == pytest.approx(beta, abs=5e-7)


# placements.md, deep_norm, worked decoder-only numbers
@pytest.mark.parametrize(
    ("layers", "alpha", "beta"),
    [(12, 2.2134, 0.3195), (100, 3.7606, 0.1880), (1000, 6.6874, 0.1057)],
)
def test_P46_worked_decoder_only_numbers(layers: int, alpha: float, beta: float) -> None:
    """P46: the worked numbers for decoders, to the four printed digits."""
    assert round(deep_norm_alpha(2 * layers), 4) == alpha
    assert round(deep_norm_beta(2 * layers), 4) == beta


@pytest.mark.parametrize("layers", DEPTHS)
def test_P46_identities_of_alpha_and_beta(layers: int) -> None:
    """P46: alpha/beta = 2 sqrt(N), and 2N * 2 beta^2/alpha^2 = 1."""
    alpha, beta = deep_norm_alpha(2 * layers), deep_norm_beta(2 * layers)
    assert alpha / beta == pytest.approx(2 * math.sqrt(layers), rel=1e-12)
    assert 2 * layers * 2 * beta**2 / alpha**2 == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("layers", [12, 24, 100])
def test_wrong_constants_of_peers_would_be_seen(layers: int) -> None:
    # LayerNorm-Scaling and MixLN, "deeppost": gain (8N)^(+1/4), alpha 2.828 at every depth
    assert deep_norm_beta(2 * layers) < 1.0 < (8 * layers) ** 0.25
    assert deep_norm_alpha(2 * layers) != pytest.approx(2.828, rel=0.05)


# Radford et al. 2019 (GPT-2), section 2.3; placements.md, pre_norm
@pytest.mark.parametrize(("layers", "factor"), [(12, 0.2041), (24, 0.1443), (32, 0.1250)])
def test_gpt2_factor_on_the_last_matrix_of_a_branch(layers: int, factor: float) -> None:
    assert round(residual_projection_scale(2 * layers), 4) == factor


# Glorot and Bengio 2010, equation 16: a uniform on +-sqrt(6/(m + n)) has variance 2/(m + n)
@pytest.mark.parametrize(("fan_in", "fan_out"), [(64, 64), (64, 256), (512, 7)])
def test_xavier_normal_has_the_variance_of_xavier_uniform(fan_in: int, fan_out: int) -> None:
    bound = math.sqrt(6 / (fan_in + fan_out))
    assert xavier_std(fan_in, fan_out) == pytest.approx(bound / math.sqrt(3), rel=1e-12)


@pytest.mark.parametrize("role", ["query", "key", "value"])
@pytest.mark.parametrize("width", [8, 64, 1024])
def test_packed_xavier_is_smaller_by_sqrt_2_on_square_matrices(role: str, width: int) -> None:
    # placements.md, deep_norm: a packed (3d, d) matrix gets sqrt(2/(4d))
    packed = initial_std("xavier_packed", role, width, width, sublayers=24)
    assert packed == pytest.approx(math.sqrt(2 / (4 * width)), rel=1e-12)
    alone = initial_std("xavier", role, width, width, sublayers=24)
    assert packed / alone == pytest.approx(1 / math.sqrt(2), rel=1e-12)


def test_P53_noam_peak() -> None:
    """P53: d = 512 and W = 4000 peak at 6.987712e-4, and a warm-up of 0 is finite."""
    # transformers#28835; Vaswani et al. 2017, equation 3
    peak = noam_peak_rate(512, 4000)
    assert peak == pytest.approx(6.987712e-4, rel=1e-7)
    step = 4000
    assert peak == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5), rel=1e-12)
    assert noam_peak_rate(512, 0) == noam_peak_rate(512, 1) == pytest.approx(512**-0.5)
