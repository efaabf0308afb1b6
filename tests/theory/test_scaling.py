"""Constants of depth and width against the numbers that papers and bug reports print."""

import math

import pytest

from normwise.theory.scaling import (
    admin_omega,
    branch_share,
    deep_norm_alpha,
    deep_norm_beta,
    depth_scale,
    keel_alpha,
    layer_scale_start,
    noam_peak_rate,
    post_norm_layers,
    query_key_scale,
    residual_projection_scale,
    sub_norm_gain,
    t_fixup_embedding_gain,
    t_fixup_gain,
    xavier_std,
)
from normwise.theory.stack import Stack
from normwise.weight_init import initial_std

DEPTHS = [1, 2, 6, 12, 24, 100, 1000]


def encoder(depth: int, other_depth: int) -> Stack:
    return Stack(depth, 2, "encoder", other_depth)


def decoder(depth: int, other_depth: int) -> Stack:
    return Stack(depth, 3, "decoder", other_depth)


@pytest.mark.parametrize(
    ("branches", "kinds"),
    [
        (1, ("feed_forward",)),
        (2, ("attention", "feed_forward")),
        (3, ("attention", "cross_attention", "feed_forward")),
    ],
)
def test_a_stack_counts_its_branches(branches: int, kinds: tuple[str, ...]) -> None:
    assert Stack(6, branches).sublayers == 6 * branches
    assert Stack(6, branches).kinds == kinds


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
    assert deep_norm_alpha(Stack(layers)) == pytest.approx(alpha, abs=5e-7)
    assert deep_norm_beta(Stack(layers)) == pytest.approx(beta, abs=5e-7)


# placements.md, deep_norm, worked numbers; section 7, item 2: beta is never 0.6569 at (6, 6)
@pytest.mark.parametrize(
    ("stack", "alpha", "beta"),
    [
        (Stack(12), 2.2134, 0.3195),
        (Stack(100), 3.7606, 0.1880),
        (Stack(1000), 6.6874, 0.1057),
        (encoder(6, 6), 1.4179, 0.4970),
        (decoder(6, 6), 2.0598, 0.3433),
        (encoder(18, 18), 1.9987, 0.3526),
        (decoder(18, 18), 2.7108, 0.2608),
        (encoder(100, 100), 3.4157, 0.2063),
        (decoder(100, 100), 4.1618, 0.1699),
    ],
    ids=str,
)
def test_P46_worked_numbers(stack: Stack, alpha: float, beta: float) -> None:
    """P46: the worked numbers of whole stacks and of pairs, to the four printed digits."""
    assert round(deep_norm_alpha(stack), 4) == alpha
    assert round(deep_norm_beta(stack), 4) == beta


@pytest.mark.parametrize(("layers", "others"), [(6, 6), (12, 3), (2, 50)])
def test_P46_an_encoder_s_constants_know_both_depths(layers: int, others: int) -> None:
    """P46: 0.81 (N^4 M)^(1/16) and 0.87 (N^4 M)^(-1/16); torchscale has 1.15 for 0.87."""
    both = (layers**4 * others) ** (1 / 16)
    assert deep_norm_alpha(encoder(layers, others)) == pytest.approx(0.81 * both, rel=1e-12)
    assert deep_norm_beta(encoder(layers, others)) == pytest.approx(0.87 / both, rel=1e-12)


@pytest.mark.parametrize("layers", DEPTHS)
def test_P46_identities_of_alpha_and_beta(layers: int) -> None:
    """P46: alpha/beta = 2 sqrt(N), 2N * 2 beta^2/alpha^2 = 1, and 3M * 2 beta^2/alpha^2 = 1."""
    alpha, beta = deep_norm_alpha(Stack(layers)), deep_norm_beta(Stack(layers))
    assert alpha / beta == pytest.approx(2 * math.sqrt(layers), rel=1e-12)
    assert 2 * layers * 2 * beta**2 / alpha**2 == pytest.approx(1.0, rel=1e-12)
    alpha, beta = deep_norm_alpha(decoder(layers, 6)), deep_norm_beta(decoder(layers, 6))
    assert 3 * layers * 2 * beta**2 / alpha**2 == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("layers", [12, 24, 100])
def test_wrong_constants_of_peers_would_be_seen(layers: int) -> None:
    # LayerNorm-Scaling and MixLN, "deeppost": gain (8N)^(+1/4), alpha 2.828 at every depth
    assert deep_norm_beta(Stack(layers)) < 1.0 < (8 * layers) ** 0.25
    assert deep_norm_alpha(Stack(layers)) != pytest.approx(2.828, rel=0.05)


# Radford et al. 2019 (GPT-2), section 2.3; placements.md, pre_norm
@pytest.mark.parametrize(("layers", "factor"), [(12, 0.2041), (24, 0.1443), (32, 0.1250)])
def test_gpt2_factor_on_the_last_matrix_of_a_branch(layers: int, factor: float) -> None:
    assert round(residual_projection_scale(Stack(layers)), 4) == factor


# Wang et al. 2022 (2210.06423), figure 2; placements.md, sub_norm
@pytest.mark.parametrize(
    ("stack", "gain"),
    [
        (Stack(6), 1.5764),
        (Stack(12), 1.7827),
        (Stack(24), 1.9675),
        (encoder(6, 6), 1.5473),
        (decoder(6, 6), 1.7001),
    ],
    ids=str,
)
def test_worked_gains_of_sub_norm(stack: Stack, gain: float) -> None:
    assert round(sub_norm_gain(stack), 4) == gain


# Huang et al. 2020, section 3.3; placements.md, t_fixup, without the sqrt(2) of packed Q, K, V
def test_worked_gains_of_t_fixup() -> None:
    assert round(t_fixup_gain(encoder(6, 6)), 4) == round(t_fixup_gain(Stack(6)), 4) == 0.4281
    assert round(t_fixup_gain(decoder(6, 6)), 4) == 0.3689
    assert round(t_fixup_embedding_gain(encoder(6, 6)), 4) == 0.3689
    assert round(t_fixup_gain(Stack(12)), 4) == 0.3600
    assert round(t_fixup_embedding_gain(Stack(12)), 4) == 0.3102
    assert t_fixup_gain(decoder(24, 6)) == pytest.approx((9 * 24) ** -0.25, rel=1e-12)


# placements.md, depth_scaled_norm
@pytest.mark.parametrize(
    ("number", "factor"), [(1, 1.0), (2, 0.7071), (4, 0.5), (12, 0.2887), (32, 0.1768)]
)
def test_worked_factors_of_depth_scaled_norm(number: int, factor: float) -> None:
    assert round(depth_scale(number - 1), 4) == factor


@pytest.mark.parametrize("branches", [1, 2, 3])
def test_keel_and_scaled_residual_count_branches(branches: int) -> None:
    # placements.md, keel: alpha = S by default; scaled_residual: lambda^2 = 1 - 1/S
    assert keel_alpha(Stack(12, branches)) == 12 * branches
    assert branch_share(Stack(12, branches)) == pytest.approx(1 / (12 * branches), rel=1e-15)


@pytest.mark.parametrize(("depth", "start"), [(12, 1e-5), (24, 1e-5), (25, 1e-6), (36, 1e-6)])
def test_layer_scale_starts_smaller_above_24_layers(depth: int, start: float) -> None:
    assert layer_scale_start(Stack(depth)) == start


# placements.md, mix_norm: 12 -> 3, 32 -> 8, and below 4 none
@pytest.mark.parametrize(
    ("depth", "count"), [(1, 0), (2, 0), (3, 0), (4, 1), (11, 2), (12, 3), (32, 8)]
)
def test_a_quarter_of_the_layers_rounded_down(depth: int, count: int) -> None:
    assert post_norm_layers(0.25, Stack(depth)) == count


# placements.md, admin: worked values of O(log n); the author's package for the others
@pytest.mark.parametrize(
    ("layers", "omega"), [(6, 2.0170), (12, 2.6013), (24, 3.4045), (64, 5.0541)]
)
def test_worked_factors_of_admin(layers: int, omega: float) -> None:
    assert round(admin_omega("logarithmic", Stack(layers)), 4) == omega
    assert admin_omega("linear", Stack(layers)) == 1.0
    assert admin_omega("constant", Stack(layers)) == pytest.approx(math.sqrt(2 * layers))


# Henry et al. 2020 (2010.04245), section 3.1; placements.md, qk_norm
@pytest.mark.parametrize(
    ("length", "scale"), [(64, 11.977), (128, 13.989), (512, 17.997), (1024, 19.999)]
)
def test_worked_scales_of_unit_queries_and_keys(length: int, scale: float) -> None:
    assert round(query_key_scale(length), 3) == scale


# Glorot and Bengio 2010, equation 16: a uniform on +-sqrt(6/(m + n)) has variance 2/(m + n)
@pytest.mark.parametrize(("fan_in", "fan_out"), [(64, 64), (64, 256), (512, 7)])
def test_xavier_normal_has_the_variance_of_xavier_uniform(fan_in: int, fan_out: int) -> None:
    bound = math.sqrt(6 / (fan_in + fan_out))
    assert xavier_std(fan_in, fan_out) == pytest.approx(bound / math.sqrt(3), rel=1e-12)


@pytest.mark.parametrize("role", ["query", "key", "value"])
@pytest.mark.parametrize("width", [8, 64, 1024])
def test_packed_xavier_is_smaller_by_sqrt_2_on_square_matrices(role: str, width: int) -> None:
    # placements.md, deep_norm: a packed (3d, d) matrix gets sqrt(2/(4d))
    packed = initial_std("xavier_packed", role, width, width, Stack(12))
    assert packed == pytest.approx(math.sqrt(2 / (4 * width)), rel=1e-12)
    alone = initial_std("xavier", role, width, width, Stack(12))
    assert packed / alone == pytest.approx(1 / math.sqrt(2), rel=1e-12)


def test_P53_noam_peak() -> None:
    """P53: d = 512 and W = 4000 peak at 6.987712e-4, and a warm-up of 0 is finite."""
    # transformers#28835; Vaswani et al. 2017, equation 3
    peak = noam_peak_rate(512, 4000)
    assert peak == pytest.approx(6.987712e-4, rel=1e-7)
    step = 4000
    assert peak == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5), rel=1e-12)
    assert noam_peak_rate(512, 0) == noam_peak_rate(512, 1) == pytest.approx(512**-0.5)
