"""The recorder measures what is there, and leaves no trace."""

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from normwise.errors import ShapeError
from normwise.model.config import TransformerConfig
from normwise.model.transformer import Transformer
from normwise.probe.stream import StreamProfile, StreamRecorder
from normwise.residual.registry import make_placement

DIM, EPS = 6, 1e-5
EXACT = 1e-12  # float64 sums of a few hundred terms in another order


class Stack(nn.Module):
    """Two pre-norm layers of one linear branch each, and dropout in the branches."""

    def __init__(self, dropout: float = 0.0, placement: str = "pre_norm") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.placement = make_placement(placement, DIM, depth=2, branches=1)
        self.linears = nn.ModuleList(nn.Linear(DIM, DIM, bias=False) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        state = self.placement.enter(x)
        for index, linear in enumerate(self.linears):
            state = self.placement.layer(state, None, self._branch(linear), index)
        return self.placement.exit(state)

    def _branch(self, linear: nn.Module) -> Callable[[Tensor], Tensor]:
        return lambda entry: self.dropout(linear(entry))


def batch(seed: int = 1, rows: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, DIM, generator=generator, dtype=torch.float64)


def layer_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt()


def root(*tensors: Tensor) -> float:
    return torch.cat([t.flatten() for t in tensors]).square().mean().sqrt().item()


def by_hand(model: Stack, x: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Streams, branches and the loss of a pre-norm stack, written out."""
    streams, branches = [x], []
    for linear in model.linears:
        branches.append(layer_norm(streams[-1]) @ linear.weight.T)
        streams.append(streams[-1] + branches[-1])
    return streams, branches, loss_of(layer_norm(streams[-1]))


def loss_of(out: Tensor) -> Tensor:
    return (out * torch.linspace(-1, 2, DIM, dtype=torch.float64)).pow(3).sum()


@pytest.mark.parametrize("passes", [1, 3])
def test_profile_equals_the_values_computed_by_hand(passes: int) -> None:
    """Several passes add up as if they had been one."""
    model = Stack()
    streams: list[list[Tensor]] = [[], [], []]
    branches: list[list[Tensor]] = [[], []]
    stream_gradients: list[list[Tensor]] = [[], [], []]
    branch_gradients: list[list[Tensor]] = [[], []]
    with StreamRecorder(model) as recorder:
        for seed in range(passes):
            loss_of(model(batch(seed, rows=seed + 2).requires_grad_())).backward()
    for seed in range(passes):
        own, inner, loss = by_hand(model, batch(seed, rows=seed + 2).requires_grad_())
        gradients = torch.autograd.grad(loss, [*own, *inner])
        for kept, found in (
            (streams, own),
            (branches, inner),
            (stream_gradients, gradients[:3]),
            (branch_gradients, gradients[3:]),
        ):
            for at, tensor in zip(kept, found, strict=True):
                at.append(tensor.detach())
    profile = recorder.profile()
    assert profile.stream == pytest.approx([root(*at) for at in streams], rel=EXACT)
    assert profile.branch == pytest.approx([root(*at) for at in branches], rel=EXACT)
    expected = [root(*at) for at in stream_gradients]
    assert profile.stream_gradient == pytest.approx(expected, rel=EXACT)
    expected = [root(*at) for at in branch_gradients]
    assert profile.branch_gradient == pytest.approx(expected, rel=EXACT)


def test_branches_are_measured_before_the_placements_own_norm() -> None:
    model = Stack(placement="peri_norm")
    with torch.no_grad():
        model.linears[0].weight.mul_(50.0)
    with StreamRecorder(model) as recorder:
        model(batch())
    inner = layer_norm(batch()) @ model.linears[0].weight.T
    profile = recorder.profile()
    assert profile.branch[0] == pytest.approx(root(inner), rel=EXACT)
    assert profile.stream[1] == pytest.approx(root(batch() + layer_norm(inner)), rel=EXACT)


def test_one_input_used_in_two_passes_is_counted_once_a_pass() -> None:
    model, x = Stack(), batch().requires_grad_()
    once, twice = StreamRecorder(model), StreamRecorder(model)
    with once:
        loss_of(model(batch().requires_grad_())).backward()
    with twice:
        for _ in range(2):
            loss_of(model(x)).backward()
    assert twice.profile().stream_gradient == pytest.approx(
        once.profile().stream_gradient, rel=EXACT
    )
    assert twice._entry.gradient.count == 2 * once._entry.gradient.count


def test_an_input_is_watched_no_longer_than_the_block() -> None:
    model, x = Stack(), batch().requires_grad_()
    with StreamRecorder(model) as recorder:
        loss_of(model(x)).backward()
    before = recorder.profile()
    (1e6 * x.sum()).backward()
    assert recorder.profile() == before


def trained(model: nn.Module, x: Tensor, *, recorded: bool) -> list[Tensor]:
    """Output, gradients and the generator's state after a pass."""
    model.zero_grad()
    entry = x.clone().requires_grad_(x.is_floating_point())
    torch.manual_seed(11)
    if recorded:
        with StreamRecorder(model):
            out = model(entry)
            out.square().sum().backward()
    else:
        out = model(entry)
        out.square().sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    own = [] if entry.grad is None else [entry.grad]
    return [out.detach(), torch.get_rng_state(), *own, *gradients]


@pytest.mark.parametrize("placement", ["pre_norm", "post_norm", "deep_norm", "peri_norm"])
def test_P59_recording_changes_no_bit_with_dropout(placement: str) -> None:
    """P59: outputs, gradients and the generator's state are the same with and without."""
    # required.md, "State"
    model = Stack(dropout=0.3, placement=placement)
    plain, recorded = (trained(model, batch(), recorded=on) for on in (False, True))
    assert all(torch.equal(*pair) for pair in zip(plain, recorded, strict=True))
    assert torch.equal(trained(model, batch(), recorded=False)[0], plain[0])


@pytest.mark.parametrize("placement", ["pre_norm", "post_norm", "deep_norm", "peri_norm"])
def test_P59_recording_changes_no_bit_of_a_transformer(placement: str) -> None:
    """P59: float32, attention and embeddings too."""
    config = TransformerConfig(depth=2, width=16, heads=2, vocab_size=9, placement=placement)
    model = Transformer(config, seed=0)
    tokens = torch.arange(18).reshape(2, 9) % 9
    plain, recorded = (trained(model, tokens, recorded=on) for on in (False, True))
    assert all(torch.equal(*pair) for pair in zip(plain, recorded, strict=True))


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_hooks_are_gone_after_the_block() -> None:
    model = Stack()
    with StreamRecorder(model) as recorder:
        assert hooks(model) == 4
        model(batch())
    assert hooks(model) == 0
    before = recorder.profile()
    model(3 * batch())
    assert recorder.profile() == before


def test_hooks_are_gone_after_an_exception() -> None:
    model = Stack()
    with pytest.raises(ShapeError), StreamRecorder(model):
        model(torch.ones(2, DIM + 1, dtype=torch.float64))
    assert hooks(model) == 0


def test_a_recorder_opened_again_goes_on() -> None:
    model = Stack()
    recorder = StreamRecorder(model)
    for seed in (1, 2):
        with recorder:
            model(batch(seed))
    assert recorder.profile().stream[0] == pytest.approx(root(batch(1), batch(2)), rel=EXACT)
    assert hooks(model) == 0


@pytest.fixture
def only_new_objects() -> Iterator[None]:
    """Sets what is alive already aside, so that collecting is quick."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


@pytest.mark.usefixtures("only_new_objects")
@pytest.mark.parametrize("backward", [True, False])
def test_P56_nothing_recorded_keeps_a_tensor(backward: bool) -> None:  # noqa: FBT001
    """P56: the number of live tensors is flat over 20 passes."""
    # meta-pytorch/opacus#176; gromo#135; zennit PR#13
    model = Stack(dropout=0.1)
    counts = []
    with StreamRecorder(model) as recorder:
        for seed in range(20):
            out = model(batch(seed).requires_grad_())
            if backward:
                loss_of(out).backward()
            del out
            counts.append(live_tensors())
    assert len(set(counts)) == 1
    assert counts[0] > 0
    assert recorder._entry.value.count == 20 * 5 * DIM


def test_inputs_without_gradient_are_recorded() -> None:
    model = Stack()
    with StreamRecorder(model) as recorder:
        loss_of(model(batch())).backward()
    own, inner, loss = by_hand(model, batch().requires_grad_())
    gradients = torch.autograd.grad(loss, [*own[1:], *inner])
    profile = recorder.profile()
    assert profile.stream[0] == pytest.approx(root(batch()), rel=EXACT)
    assert profile.stream_gradient[1:] == pytest.approx(
        [root(at) for at in gradients[:2]], rel=EXACT
    )
    assert profile.stream_gradient[0] != profile.stream_gradient[0]  # NaN: no gradient was there


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_passes_without_autograd_are_recorded(mode: Callable[[], torch.no_grad]) -> None:
    model = Stack()
    with mode(), StreamRecorder(model) as recorder:
        model(batch())
    streams, branches, _ = by_hand(model, batch())
    profile = recorder.profile()
    assert profile.stream == pytest.approx([root(at) for at in streams], rel=EXACT)
    assert profile.branch == pytest.approx([root(at) for at in branches], rel=EXACT)


def test_a_model_without_connections_has_an_empty_profile() -> None:
    with StreamRecorder(nn.Linear(2, 2)) as recorder:
        pass
    assert recorder.profile() == StreamProfile([], [], [], [])
