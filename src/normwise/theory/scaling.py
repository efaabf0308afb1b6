"""Constants that papers prescribe, as functions of depth and width.

A `Stack` counts its residual branches: S = 2 L where every layer has an attention and a
feed-forward branch, L where it has one, 3 L with cross-attention.
"""

import math

from normwise.theory.stack import Stack


def xavier_std(fan_in: int, fan_out: int) -> float:
    """sqrt(2 / (fan_in + fan_out)), Glorot and Bengio 2010, equation 16, as a normal."""
    return math.sqrt(2.0 / (fan_in + fan_out))


def deep_norm_alpha(stack: Stack) -> float:
    """The factor on the skip (Wang et al. 2022, 2203.00555, figure 2).

    S^(1/4), which is (2 N)^(1/4) for N layers of two branches and (3 M)^(1/4) for a decoder with
    cross-attention; 0.81 (N^4 M)^(1/16) for the encoder of a pair.
    """
    if stack.part == "encoder":
        return 0.81 * _encoder_depth(stack)
    return float(stack.sublayers**0.25)


def deep_norm_beta(stack: Stack) -> float:
    """The gain on value, output and feed-forward matrices (2203.00555, figure 2).

    (4 S)^(-1/4): (8 N)^(-1/4), and (12 M)^(-1/4) for a decoder with cross-attention;
    0.87 (N^4 M)^(-1/16) for the encoder of a pair.
    """
    if stack.part == "encoder":
        return 0.87 / _encoder_depth(stack)
    return float((4 * stack.sublayers) ** -0.25)


def _encoder_depth(stack: Stack) -> float:
    """(N^4 M)^(1/16)."""
    return float(stack.depth**0.25 * stack.other_depth**0.0625)


def sub_norm_gain(stack: Stack) -> float:
    """The gain on value, output and feed-forward matrices (Wang et al. 2022, 2210.06423, figure 2).

    sqrt(ln S): sqrt(ln 2N), and sqrt(ln 3M) for a decoder with cross-attention;
    sqrt(ln(3M) ln(2N)/3) for the encoder of a pair. A stack of one branch would get 0.
    """
    own = math.log(stack.sublayers)
    if stack.part == "encoder":
        return math.sqrt(math.log(3 * stack.other_depth) * own / 3.0)
    return math.sqrt(own)


def t_fixup_gain(stack: Stack) -> float:
    """The gain on value, output and feed-forward matrices (Huang et al. 2020, section 3.3).

    0.67 N^(-1/4); (9 M)^(-1/4) for a decoder with cross-attention.
    """
    if stack.part == "decoder":
        return t_fixup_embedding_gain(stack)
    return float(0.67 * stack.depth**-0.25)


def t_fixup_embedding_gain(stack: Stack) -> float:
    """The gain on embeddings of std d^(-1/2): (9 N)^(-1/4) (Huang et al. 2020, section 3.3)."""
    return float((9 * stack.depth) ** -0.25)


def residual_projection_scale(stack: Stack) -> float:
    """1/sqrt(S), the factor on each branch's last matrix (GPT-2, Radford et al. 2019, 2.3)."""
    return float(stack.sublayers**-0.5)


def depth_scale(layer: int) -> float:
    """1/sqrt(l), l counted from 1 and `layer` from 0 (Sun et al. 2025, 2502.05795, equation 4)."""
    return float((layer + 1) ** -0.5)


def keel_alpha(stack: Stack) -> float:
    """S, the factor on the skip; the paper (2601.19895) takes one of the order of the depth."""
    return float(stack.sublayers)


def layer_scale_start(stack: Stack) -> float:
    """1e-5 up to 24 layers and 1e-6 above, as the code of CaiT has it (Touvron et al. 2021)."""
    return 1e-5 if stack.depth <= 24 else 1e-6


def post_norm_layers(share: float, stack: Stack) -> int:
    """floor(share L), the layers of Mix-LN that are post-norm (Li et al. 2024, 2412.13795)."""
    return math.floor(round(share * stack.depth, 9))  # 0.29 * 100 is 28.999999999999996


def branch_share(stack: Stack) -> float:
    """1/S, at most 1/2: the square of the branch's factor where the squares add up to 1."""
    return 1.0 / max(stack.sublayers, 2)


def admin_omega(growth: str, stack: Stack) -> float:
    """Admin's skip factor without profiling, for the named growth of the output's changes.

    "logarithmic": sqrt((S + 1)/ln(S + 1) - 1); "linear": 1; "constant": sqrt(S). As the package
    admin-torch by the author of Liu et al. 2020 (2004.08249).
    """
    terms = stack.sublayers + 1
    return {
        "logarithmic": math.sqrt(terms / math.log(terms) - 1.0),
        "linear": 1.0,
        "constant": math.sqrt(stack.sublayers),
    }[growth]


def query_key_scale(length: float) -> float:
    """log2(length^2 - length), where the learned factor on unit queries and keys starts; `length`
    is the 97.5th percentile of the sequences' (Henry et al. 2020, 2010.04245, section 3.1), and
    counts as 2 below that.
    """
    length = max(length, 2.0)
    return math.log2(length**2 - length)


def noam_peak_rate(dim: int, warmup: int) -> float:
    """1/sqrt(dim * warmup), the peak of Vaswani et al. 2017, equation 3; warmup 0 counts as 1."""
    return float((dim * max(warmup, 1)) ** -0.5)
