"""Placements against their formulas written out, and the bugs of others' placements."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normwise.errors import UnknownName
from normwise.norms.registry import NORMS
from normwise.residual.base import PerSublayer
from normwise.residual.registry import PLACEMENTS, make_placement
from tests.tolerance import EPS_SHARE, FLOAT64_OUTPUT, assert_close

DIM, EPS = 16, 1e-5
NAMES = sorted(PLACEMENTS)
ENDS_WITH_OWN_NORM = ["pre_norm", "peri_norm"]
ENDS_WITH_THE_BLOCKS_NORM = ["post_norm", "deep_norm"]
Branch = Callable[[Tensor], Tensor]


def layer_norm(
    x: Tensor, weight: Tensor | float = 1.0, bias: Tensor | float = 0.0, eps: float = EPS
) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return weight * centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() + bias


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def built(name: str, depth: int = 3, branches: int = 2, **options: object) -> PerSublayer:
    placement = make_placement(name, DIM, depth, branches=branches, **options).double()
    assert isinstance(placement, PerSublayer)
    return placement


def with_random_norms(placement: PerSublayer) -> PerSublayer:
    """Gains and biases that differ from norm to norm, so that a shared or lost one shows."""
    with torch.no_grad():
        for seed, parameter in enumerate(placement.parameters()):
            parameter.add_(0.3 * drawn(DIM, seed=100 + seed))
    return placement


def run(placement: PerSublayer, x: Tensor, branches: list[Branch]) -> Tensor:
    state = placement.enter(x)
    for index in range(0, len(branches), placement.branches):
        first, last = branches[index], branches[index + placement.branches - 1]
        state = placement.layer(
            state, first if placement.branches == 2 else None, last, index // placement.branches
        )
    return placement.exit(state)


def relu_branches(count: int, width: int = DIM) -> list[Branch]:
    """Two-matrix ReLU branches with Xavier weights, variance 1/2 on a unit stream."""
    pairs = [drawn(2, width, width, seed=200 + s) / width**0.5 for s in range(count)]
    return [lambda x, p=pair: torch.relu(x @ p[0]) @ p[1] for pair in pairs]


# placements.md, section 1, column F=0
@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_layer_of_zero_branches(name: str, branches: int) -> None:
    x = 3.0 * drawn(4, DIM) + 1.0
    placement = built(name, branches=branches)
    zero: Branch = torch.zeros_like
    out = placement.layer(placement.enter(x), zero if branches == 2 else None, zero, 1)
    if name in ENDS_WITH_OWN_NORM:
        assert torch.equal(out, x)
    else:
        assert_close(out, layer_norm(x), EPS_SHARE * layer_norm(x).abs())
        assert (out - x).abs().max() > 0.5


def written_out(name: str, placement: PerSublayer, x: Tensor, branches: list[Branch]) -> Tensor:
    alpha = len(branches) ** 0.25
    for connection, branch in zip(placement.connections, branches, strict=True):
        g = {key: value for key, value in connection.named_parameters()}
        if name == "pre_norm":
            x = x + branch(layer_norm(x, g["norm.weight"], g["norm.bias"]))
        elif name == "post_norm":
            x = layer_norm(x + branch(x), g["norm.weight"], g["norm.bias"])
        elif name == "deep_norm":
            x = layer_norm(alpha * x + branch(x), g["norm.weight"], g["norm.bias"])
        else:
            inner = branch(layer_norm(x, g["norm_in.weight"], g["norm_in.bias"]))
            x = x + layer_norm(inner, g["norm_out.weight"], g["norm_out.bias"])
    if name in ENDS_WITH_OWN_NORM:
        final = placement.final_norm
        return layer_norm(x, final.weight, final.bias)
    return x


@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_stack_is_its_formula_forward_and_backward(name: str, branches: int) -> None:
    placement = with_random_norms(built(name, depth=3, branches=branches))
    functions = relu_branches(3 * branches)
    x = (2.0 * drawn(2, 5, DIM, seed=1)).requires_grad_()
    cotangent = drawn(2, 5, DIM, seed=2)
    out = run(placement, x, functions)
    expected = written_out(name, placement, x, functions)
    assert_close(out, expected, FLOAT64_OUTPUT)
    inputs = [x, *placement.parameters()]
    ours = torch.autograd.grad(out, inputs, cotangent)
    theirs = torch.autograd.grad(expected, inputs, cotangent)
    for gradient, reference in zip(ours, theirs, strict=True):
        assert_close(gradient, reference, FLOAT64_OUTPUT * (1 + reference.abs()))


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("depth", [6, 24])
@pytest.mark.parametrize("name", ENDS_WITH_OWN_NORM)
def test_P44_the_output_of_a_stack_with_a_free_stream_is_normed(
    name: str, depth: int, norm: str
) -> None:
    """P44: a pre-norm (and peri-norm) stack ends with one norm, and its output has RMS 1."""
    # NVIDIA-NeMo/Speech PR#2197; xformers#665; brightmart/albert_zh#41
    width = 64
    placement = make_placement(name, width, depth, norm).double()
    state = placement.enter(drawn(32, width))
    branches = relu_branches(2 * depth, width)
    for layer in range(depth):
        state = placement.layer(state, branches[2 * layer], branches[2 * layer + 1], layer)
    assert state.square().mean().sqrt() > 1.5  # the bug: this would go to the head
    out = placement.exit(state)
    assert out.square().mean().sqrt().item() == pytest.approx(1.0, abs=EPS_SHARE)
    assert_close(out.square().mean(-1), torch.ones(32, dtype=torch.float64), EPS_SHARE)


class Adds(TorchFunctionMode):
    """Notes every addition of torch tensors."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if getattr(func, "__name__", "") in ("add", "__add__", "__radd__", "add_", "__iadd__"):
            self.events.append("add")
        return func(*args, **(kwargs or {}))


def events_of(placement: PerSublayer) -> list[str]:
    """Additions to the stream and norms, in the order in which they happen."""
    events: list[str] = []
    inside: list[str] = []

    def begin(module: nn.Module, args: object) -> None:
        inside[:] = events

    def end(module: nn.Module, args: object, out: Tensor) -> None:
        events[:] = [*inside, "norm"]

    for module in placement.modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_pre_hook(begin)
            module.register_forward_hook(end)
    with Adds(events):
        run(placement, drawn(4, DIM), relu_branches(2 * 3))
    return events


def norms_after_the_last_add(events: list[str]) -> int:
    return events[::-1].index("add")


@pytest.mark.parametrize("name", NAMES)
def test_P45_one_norm_after_the_last_addition(name: str) -> None:
    """P45: post-norm and DeepNorm end with the block's own norm, the others with one more."""
    # pytorch#24930, #50086, #74092, #51447; Atten4Vis/ConditionalDETR#11
    placement = built(name)
    events = events_of(placement)
    assert events.count("add") == 6
    assert norms_after_the_last_add(events) == 1
    assert isinstance(placement.final_norm, nn.LayerNorm) == (name in ENDS_WITH_OWN_NORM)


@pytest.mark.parametrize("name", ENDS_WITH_THE_BLOCKS_NORM)
def test_P45_the_count_sees_a_second_norm(name: str) -> None:
    """P45, negative control: with torch's extra encoder.norm the count is 2."""
    placement = built(name)
    placement.final_norm = nn.LayerNorm(DIM, dtype=torch.float64)
    assert norms_after_the_last_add(events_of(placement)) == 2


# labmlai/annotated_deep_learning_paper_implementations#145; placements.md, section 7, item 1
@pytest.mark.parametrize("depth", [6, 12, 24, 100])
def test_P46_zero_branch_gives_the_norm_of_the_scaled_skip(depth: int) -> None:
    """P46: f = 0 gives LN(alpha x), with the gradient through alpha. A large eps shows alpha."""
    eps = 0.5
    connection = built("deep_norm", depth, eps=eps).connections[0]
    x = drawn(4, DIM).requires_grad_()
    alpha = (2 * depth) ** 0.25
    cotangent = drawn(4, DIM, seed=5)
    out, expected = connection(x, torch.zeros_like), layer_norm(alpha * x, eps=eps)
    assert_close(out, expected, FLOAT64_OUTPUT)
    (ours,) = torch.autograd.grad(out, x, cotangent)
    (reference,) = torch.autograd.grad(expected, x, cotangent, retain_graph=True)
    assert_close(ours, reference, FLOAT64_OUTPUT)
    (unscaled,) = torch.autograd.grad(layer_norm(x, eps=eps), x, cotangent)
    assert (ours - unscaled).abs().max() > 0.01


@pytest.mark.parametrize("depth", [6, 100])
def test_P46_zero_stream_gives_the_norm_of_the_branch(depth: int) -> None:
    """P46: x = 0 gives LN(f), the branch without alpha. A large eps shows it."""
    branch = drawn(4, DIM)
    out = built("deep_norm", depth, eps=0.5).connections[0](
        torch.zeros_like(branch), lambda x: branch
    )
    assert_close(out, layer_norm(branch, eps=0.5), FLOAT64_OUTPUT)
    scaled = layer_norm((2 * depth) ** 0.25 * branch, eps=0.5)
    assert (out - scaled).abs().max() > 0.01


def test_P46_alpha_to_infinity_leaves_the_skip() -> None:
    """P46: LN(x), never LN(f); with alpha on the branch it would be LN(f)."""
    connection = built("deep_norm").connections[0]
    connection.alpha = 1e12
    x, branch = drawn(4, DIM), drawn(4, DIM, seed=1)
    out = connection(x, lambda entry: branch)
    assert_close(out, layer_norm(x, eps=0.0), FLOAT64_OUTPUT)
    wrong = layer_norm(x + connection.alpha * branch)
    assert_close(wrong, layer_norm(branch, eps=0.0), FLOAT64_OUTPUT)
    assert (out - wrong).abs().max() > 0.5


@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize("depth", [6, 12, 24, 100])
def test_P46_alpha_follows_the_number_of_branches(depth: int, branches: int) -> None:
    """P46: every connection has alpha = (2N)^(1/4), and N^(1/4) with one branch a layer."""
    placement = built("deep_norm", depth, branches)
    expected = pytest.approx((branches * depth) ** 0.25, rel=1e-12)
    assert [connection.alpha for connection in placement.connections] == [expected] * (
        branches * depth
    )


# placements.md, section 2: S + 1 norms for pre, S for post and deep, 2 S + 1 for peri
@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize(
    ("name", "each", "last"),
    [("pre_norm", 1, 1), ("post_norm", 1, 0), ("deep_norm", 1, 0), ("peri_norm", 2, 1)],
)
def test_every_place_has_a_norm_of_its_own(name: str, each: int, last: int, branches: int) -> None:
    placement = built(name, depth=5, branches=branches)
    norms = [module for module in placement.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == each * 5 * branches + last
    storages = {p.data_ptr() for p in placement.parameters()}
    assert len(storages) == 2 * len(norms)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_in_any_case_changes_the_output(name: str) -> None:
    # placements.md, section 7, item 4: lower() made a name of LNS unreachable
    x, branches = drawn(4, DIM), relu_branches(6)
    expected = run(built(name), x, branches)
    plain = x
    for branch in branches:
        plain = plain + branch(plain)
    assert (expected - plain).abs().max() > 0.1
    for spelled in (name.upper(), name.replace("_", "-"), f" {name.title()} "):
        assert torch.equal(run(built(spelled), x, branches), expected)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("pre_ln", "pre_norm"), ("post_ln", "post_norm"), ("deepnorm", "deep_norm"),
        ("DeepNorm", "deep_norm"), ("peri_ln", "peri_norm"), ("sandwich", "peri_norm"),
        ("Pre-LN", "pre_norm"),
    ],
)  # fmt: skip
def test_aliases(alias: str, name: str) -> None:
    assert PLACEMENTS.resolve(alias) == name
    assert PLACEMENTS[alias] is PLACEMENTS[name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "pre_nrom",
            "Unknown placement 'pre_nrom'. Did you mean pre_norm? "
            "Known: deep_norm, peri_norm, post_norm, pre_norm.",
        ),
        (
            "zzz",
            "Unknown placement 'zzz'. Known: deep_norm, peri_norm, post_norm, pre_norm.",
        ),
    ],
)
def test_an_unknown_name_names_the_known_ones(name: str, message: str) -> None:
    with pytest.raises(UnknownName) as raised:
        make_placement(name, DIM, 1)
    assert str(raised.value) == message
    assert isinstance(raised.value, ValueError)


def test_an_unknown_norm_is_told() -> None:
    with pytest.raises(UnknownName) as raised:
        make_placement("pre_norm", DIM, 1, "layer_nrom")
    assert str(raised.value) == (
        f"Unknown norm 'layer_nrom'. Did you mean layer_norm? Known: {', '.join(sorted(NORMS))}."
    )
