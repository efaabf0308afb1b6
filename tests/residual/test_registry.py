"""What every placement has: its layer of zero branches, its norms, its end, its names."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normwise.errors import UnknownName
from normwise.norms.registry import NORMS
from normwise.residual.base import PerSublayer
from normwise.residual.registry import PLACEMENTS, make_placement
from tests.residual.stacks import (
    DIM,
    NAMES,
    built,
    connections,
    drawn,
    last_state,
    layer,
    layer_norm,
    matrices,
    moved,
    norms_of,
    relu_branches,
    reset,
    run,
)
from tests.tolerance import EPS_SHARE, FLOAT64_OUTPUT, assert_close

NO_FINAL_NORM = {"post_norm", "deep_norm", "keel", "b2t", "admin", "rezero", "skip_init", "t_fixup"}
NO_NORM = {"rezero", "skip_init", "t_fixup"}
ENDS_IN_A_SUM = {"resi_dual", "siamese_norm"}  # x + norm(y)
ENDS_IN_A_NORM = [name for name in NAMES if name not in NO_FINAL_NORM | ENDS_IN_A_SUM]
NORMED = {
    "post_norm", "deep_norm", "keel", "b2t", "admin", "resi_dual", "hybrid_norm",
    "hybrid_norm_star",
}  # fmt: skip


# placements.md, section 1, column F=0
@pytest.mark.parametrize("branches", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_layer_of_zero_branches(name: str, branches: int) -> None:
    x = 3.0 * drawn(4, DIM) + 1.0
    placement = built(name, branches=branches)
    state = layer(placement, placement.enter(x), [torch.zeros_like] * branches, 1)
    out = connections(placement)[0].stream(state)
    if name in NORMED:
        assert_close(out, layer_norm(x), EPS_SHARE * layer_norm(x).abs())
        assert (out - x).abs().max() > 0.5
    elif name == "scaled_residual":  # lambda^2 x with two branches
        assert_close(out, (1 - 1 / (3 * branches)) ** (branches / 2) * x, FLOAT64_OUTPUT)
    elif name == "attention_residuals":  # v_0/s
        assert_close(out, x / (1 + branches), FLOAT64_OUTPUT)
    else:
        assert torch.equal(out, x)


# placements.md, section 1, column F=0
@pytest.mark.parametrize("name", ["siamese_norm", "siamese_norm_scaled", "resi_dual"])
def test_of_two_streams_one_is_normed_by_zero_branches(name: str) -> None:
    x = 3.0 * drawn(4, DIM) + 1.0
    placement = built(name)
    normed, free = layer(placement, placement.enter(x), [torch.zeros_like] * 2, 1)
    assert_close(normed, layer_norm(x), EPS_SHARE * layer_norm(x).abs())
    assert torch.equal(free, x)


def test_zero_branches_of_mix_norm_go_by_depth_and_of_gpas_by_the_gate() -> None:
    x, zero = 3.0 * drawn(4, DIM) + 1.0, [torch.zeros_like] * 2
    mixed = built("mix_norm", depth=8)
    for index, expected in [(1, layer_norm(x)), (2, x)]:
        assert_close(layer(mixed, x, zero, index), expected, EPS_SHARE * expected.abs())
    gated = built("gpas")
    nn.init.constant_(connections(gated)[2].number, 0.7)
    share = 1 - 0.7 / (1 + math.exp(-0.7))
    out, _ = layer(gated, gated.enter(x), zero, 1)
    assert_close(out, share**2 * x, FLOAT64_OUTPUT)


def norm_count(name: str, layers: int, branches: int) -> int:
    """Sections 2 to 4 of placements.md, for L layers of S/L branches; those inside are not here."""
    every = layers * branches
    not_feed_forward = layers * (branches - 1)
    once = dict.fromkeys(NAMES, every + 1) | dict.fromkeys(NO_FINAL_NORM, every)
    return {
        **once,
        **dict.fromkeys(NO_NORM, 0),
        "peri_norm": 2 * every + 1,
        "keel": 2 * every - 1,
        "norm_former": every + not_feed_forward + 1,
        "norm_former_fairseq": every + not_feed_forward + 1,
        "hybrid_norm": layers + 1,
        "hybrid_norm_star": layers + branches,
        "parallel": layers + 1,
        "siamese_norm": 2 * every + 1,
        "siamese_norm_scaled": 3 * every + 3,
        "hyper_connections": 2 * every + 1,  # one for the parts that depend on the token
    }[name]


@pytest.mark.parametrize("branches", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_place_has_a_norm_of_its_own(name: str, branches: int) -> None:
    placement = built(name, depth=5, branches=branches)
    norms = norms_of(placement)
    assert len(norms) == norm_count(name, 5, branches)
    assert len({norm.weight.data_ptr() for norm in norms}) == len(norms)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("depth", [6, 24])
@pytest.mark.parametrize("name", ENDS_IN_A_NORM)
def test_P44_the_output_of_a_stack_with_a_free_stream_is_normed(
    name: str, depth: int, norm: str
) -> None:
    """P44: a stack whose stream is free ends with one norm, and its output has RMS 1."""
    # NVIDIA-NeMo/Speech PR#2197; xformers#665; brightmart/albert_zh#41
    width = 64
    placement = make_placement(name, width, depth, norm, eps=0.0).double()
    branches = relu_branches(matrices(2 * depth, width))
    state = last_state(placement, 3.0 * drawn(32, width), branches)
    stream = connections(placement)[0].stream(state)
    assert abs(stream.square().mean().sqrt() - 1) > 0.1  # the bug: this would go to the head
    out = placement.exit(state)
    assert_close(out.square().mean(-1), torch.ones(32, dtype=torch.float64), FLOAT64_OUTPUT)


class Changes(TorchFunctionMode):
    """Notes every operation that can join a branch and a stream."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = getattr(func, "__name__", "").strip("_")
        if name in ("add", "radd", "iadd", "sub", "mul", "rmul", "matmul"):
            self.events.append("change")
        return func(*args, **(kwargs or {}))


def events_of(placement: PerSublayer) -> list[str]:
    """Changes of the stream and norms, in the order in which they happen."""
    events: list[str] = []
    inside: list[str] = []

    def begin(module: nn.Module, args: object) -> None:
        inside[:] = events

    def end(module: nn.Module, args: object, out: Tensor) -> None:
        events[:] = [*inside, "norm"]

    for module in norms_of(placement):
        module.register_forward_pre_hook(begin)
        module.register_forward_hook(end)
    with Changes(events):
        run(placement, drawn(4, DIM), relu_branches(matrices(2 * 3)))
    return events


def norms_after_the_last_change(placement: PerSublayer) -> int:
    return events_of(placement)[::-1].index("change")


@pytest.mark.parametrize("name", NAMES)
def test_P45_one_norm_after_the_last_addition(name: str) -> None:
    """P45: post-norm and its kin end with the block's own norm, the others with one more."""
    # pytorch#24930, #50086, #74092, #51447; Atten4Vis/ConditionalDETR#11
    placement = built(name)
    assert norms_after_the_last_change(placement) == (name not in NO_NORM | ENDS_IN_A_SUM)
    assert isinstance(placement.final_norm, nn.LayerNorm) == (name not in NO_FINAL_NORM)


@pytest.mark.parametrize("name", sorted(NO_FINAL_NORM - NO_NORM))
def test_P45_the_count_sees_a_second_norm(name: str) -> None:
    """P45, negative control: with torch's extra encoder.norm the count is 2."""
    placement = built(name)
    placement.final_norm = nn.LayerNorm(DIM, dtype=torch.float64)
    assert norms_after_the_last_change(placement) == 2


@pytest.mark.parametrize("name", NAMES)
def test_a_reset_undoes_everything(name: str) -> None:
    own, fresh = reset(moved(built(name))).float(), built(name).float()
    pairs = zip(own.named_parameters(), fresh.named_parameters(), strict=True)
    for (key, parameter), (_, start) in pairs:
        assert torch.equal(parameter, start), key


@pytest.mark.parametrize("name", NAMES)
def test_every_name_in_any_case_changes_the_output(name: str) -> None:
    # placements.md, section 7, item 4: lower() made a name of LNS unreachable
    x, branches = drawn(4, DIM), relu_branches(matrices(2 * 3))
    expected = run(moved(built(name)), x, branches)
    assert (expected - x).abs().max() > 0.1
    for spelled in (name.upper(), name.replace("_", "-"), f" {name.title()} "):
        assert torch.equal(run(moved(built(spelled)), x, branches), expected)


# placements.md, section 1, aliases to accept
@pytest.mark.parametrize(
    ("name", "aliases"),
    [
        ("pre_norm", ["pre_ln", "Pre-LN"]),
        ("post_norm", ["post_ln"]),
        ("deep_norm", ["deepnorm", "DeepNorm"]),
        ("peri_norm", ["sandwich", "peri_ln"]),
        ("output_norm", ["reordered", "res_post", "norm_after"]),
        ("depth_scaled_norm", ["lns", "LNS", "layer_norm_scaling"]),
        ("keel", ["post_ln_is_back"]),
        ("b2t", ["bottom_to_top"]),
        ("mix_norm", ["mix_ln", "Mix-LN"]),
        ("sub_norm", ["sub_ln", "magneto"]),
        ("resi_dual", ["residual_dual"]),
        ("parallel", ["parallel_block"]),
        ("scaled_residual", ["deepscale_lm"]),
        ("hyper_connections", ["hc"]),
        ("attention_residuals", ["attn_res"]),
    ],
)
def test_aliases(name: str, aliases: list[str]) -> None:
    for alias in aliases:
        assert PLACEMENTS.resolve(alias) == name
        assert PLACEMENTS[alias] is PLACEMENTS[name]


@pytest.mark.parametrize(("name", "hint"), [("pre_nrom", " Did you mean pre_norm?"), ("zzz", "")])
def test_an_unknown_name_names_the_known_ones(name: str, hint: str) -> None:
    with pytest.raises(UnknownName) as raised:
        make_placement(name, DIM, 1)
    known = ", ".join(NAMES)
    assert str(raised.value) == f"Unknown placement {name!r}.{hint} Known: {known}."
    assert isinstance(raised.value, ValueError)


def test_an_unknown_norm_is_told() -> None:
    with pytest.raises(UnknownName) as raised:
        make_placement("pre_norm", DIM, 1, "layer_nrom")
    assert str(raised.value) == (
        f"Unknown norm 'layer_nrom'. Did you mean layer_norm? Known: {', '.join(sorted(NORMS))}."
    )
