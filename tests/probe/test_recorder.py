"""What a recorder sees of any model, and that the model does not notice."""

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, scaled_dot_product_attention

import normwise as nw
from normwise.model.config import TransformerConfig
from normwise.model.transformer import Transformer
from normwise.probe.measured import record
from normwise.probe.points import find_points
from normwise.probe.record import Record
from normwise.probe.recorder import Recorder
from normwise.probe.stream import StreamRecorder
from tests.probe.models import PICK, WIDTH, Tiny, ids, loss_of

F32 = 2e-6  # sums of 1e4 terms in fp32, pairwise: far below


def recorded(model: nn.Module, *batches: Tensor, **options: Any) -> Record:
    """The record of one pass for each batch, the mean of their losses taken back."""
    recorder = Recorder(model, find_points(model, (batches[0],), {}), **options)
    recorder.attach()
    for batch in batches:
        (loss_of(model, batch) / len(batches)).backward()
    recorder.detach()
    sums, maxima = recorder.tally.collect().values()
    assert recorder.unseen(sums) == []
    return record(
        recorder.points, sums, maxima, recorder.dtypes, exact_attention=True, step=0,
        stage="initial",
    )  # fmt: skip


def values(found: Record) -> list[float]:
    """Every number of the stream, the branches and the norms."""
    (stack,) = found.stacks
    points = [one for one in stack.points if one is not None]
    branches = [one.branch for one in stack.connections if one.branch is not None]
    assert len(points) == len(stack.points) and len(branches) == len(stack.connections)
    return [
        *(v for p in points for v in (p.rms, p.mean, p.kurtosis, p.largest, p.gradient)),
        *(v for b in branches for v in (b.rms, b.mean, b.kurtosis, b.largest)),
        *(c.swallowed for c in stack.connections), *(norm.share for norm in found.norms),
        *(v for one in found.attentions for v in (*one.largest, *one.bound, *one.entropy)),
    ]  # fmt: skip


def test_values_by_hand() -> None:
    """Each against its definition in fp64, from the tensors of a pass."""
    model, batch = Tiny(depth=1), ids()
    block = model.blocks[0]
    seen = [model.embedding(batch).double()]
    double = Tiny(depth=1).double()
    one = double.blocks[0]
    branches = [one.attention(one.before_attention(seen[0]))]
    seen.append(seen[0] + branches[0])
    branches.append(one.feed_forward(one.before_feed_forward(seen[1])))
    seen.append(seen[1] + branches[1])
    found = recorded(model, batch)
    for x, point in zip(seen, found.stacks[0].points, strict=True):
        assert point is not None
        assert point.rms == pytest.approx(x.square().mean().sqrt().item(), rel=F32)
        assert point.mean == pytest.approx(x.mean().item(), abs=F32)
        assert point.largest == pytest.approx(x.abs().max().item(), rel=F32)
        fourth = (x**4).mean() / x.square().mean() ** 2
        assert point.kurtosis == pytest.approx(fourth.item(), rel=10 * F32)
    for at, (f, connection) in enumerate(zip(branches, found.stacks[0].connections, strict=True)):
        assert connection.branch is not None
        ratio = f.square().mean().sqrt() / seen[at].square().mean().sqrt()
        assert connection.ratio == pytest.approx(ratio.item(), rel=F32)
        swallowed = (f.abs() < 2.0**-9 * seen[at].abs()).double().mean().item()
        assert connection.swallowed == pytest.approx(swallowed, abs=1e-4)
        angle = cosine_similarity(seen[at], seen[at + 1], dim=-1).arccos().mean() / torch.pi
        point = found.stacks[0].points[at + 1]
        assert point is not None
        assert point.angle == pytest.approx(angle.item(), abs=1e-5)
    share = block.before_attention.eps / (seen[0].var(-1, correction=0) + 1e-5)
    assert found.norms[0].share == pytest.approx(share.mean().item(), rel=1e-4)


@pytest.mark.parametrize("placement", ["pre_norm", "post_norm", "deep_norm", "layer_scale"])
def test_our_own_model_is_read_as_by_its_connections(placement: str) -> None:
    """The stream and its gradient as `StreamRecorder` has them, which knows the connections."""
    model = Transformer(TransformerConfig(depth=3, placement=placement), seed=0)
    batch = torch.randint(0, 256, (2, 64), generator=torch.Generator().manual_seed(0))
    with StreamRecorder(model) as own:
        loss_of(model, batch).backward()
    profile = own.profile()
    (stack,) = recorded(model, batch).stacks
    assert [p.rms for p in stack.points if p] == pytest.approx(profile.stream, rel=1e-5)
    assert [p.gradient for p in stack.points if p] == pytest.approx(
        profile.stream_gradient, rel=1e-4
    )


@pytest.mark.parametrize("style", PICK)
def test_P57_however_a_block_is_called_and_answers(style: str) -> None:
    """P57: blocks called by keyword, that give tuples, lists, dicts and dataclasses with None and
    with tensors of no floats.
    """
    # pytorch#156695, #35643; sksq96/pytorch-summary#59
    assert values(recorded(Tiny(style=style), ids())) == values(recorded(Tiny(), ids()))


def test_P58_a_shared_block_is_read_at_every_call() -> None:
    """P58: the one block of four layers is read four times, each for itself."""
    # frgfm/torch-scan PR#24; fairscale#617
    found = recorded(Tiny(depth=4, shared=True), ids())
    assert len(found.stacks[0].connections) == 8
    assert len(found.norms) == 9
    shares = [norm.share for norm in found.norms if norm.name == "blocks.0.before_attention"]
    assert len(set(shares)) == len(shares) == 4
    assert len({p.rms for p in found.stacks[0].points if p}) == 9


def test_P58_one_norm_under_two_names() -> None:
    model = Tiny(depth=2)
    model.blocks[1].before_attention = model.blocks[0].before_attention
    model.another = model.blocks[0].before_attention
    assert len(recorded(model, ids()).norms) == 5


def test_P60_operations_in_place() -> None:
    """P60: a ReLU in place in a recorded branch; gradients are those of a run without it."""
    # pytorch#61519; f-dangel/singd#56; pytorch-grad-cam PR#183
    plain, watched = Tiny(inplace=True), Tiny(inplace=True)
    loss_of(plain, ids()).backward()
    recorded(watched, ids())
    assert all(map(torch.equal, *([p.grad for p in m.parameters()] for m in (plain, watched))))


@pytest.mark.parametrize("recompute", ["reentrant", "saved"])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_activation_checkpointing_is_recorded_once(recompute: str) -> None:
    """Counts and values are those without it, of gradients too."""
    plain, again = recorded(Tiny(), ids()), recorded(Tiny(recompute=recompute), ids())
    assert values(again) == values(plain)
    assert [p.count for p in again.stacks[0].points if p] == [
        p.count for p in plain.stacks[0].points if p
    ]


def test_micro_batches_are_one_batch() -> None:
    """Accumulated gradients and statistics are exact: two halves are the whole."""
    whole = values(recorded(Tiny(), ids(rows=8)))
    halves = values(recorded(Tiny(), *ids(rows=8).chunk(2)))
    assert halves == pytest.approx(whole, rel=1e-5, abs=1e-9)


@pytest.fixture
def only_new_objects() -> Iterator[None]:
    """Sets what is alive already aside, so that collecting is quick."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


MODES: dict[str, Callable[[], Any]] = {
    "train": nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode,
}  # fmt: skip


@pytest.mark.usefixtures("only_new_objects")
@pytest.mark.parametrize("mode", MODES)
def test_P56_recording_holds_no_memory(mode: str) -> None:
    """P56: the number of live tensors is flat over 50 passes."""
    # meta-pytorch/opacus#176; gromo#135; zennit PR#13
    model = Tiny()
    recorder = Recorder(model, find_points(model, (ids(),), {}))
    recorder.attach()
    counts = []
    for seed in range(50):
        with MODES[mode]():
            loss = loss_of(model, ids(seed))
        if mode == "train":
            loss.backward()
        model.zero_grad()
        del loss
        if seed % 7 == 1:
            gc.collect()
            things = gc.get_objects()
            counts.append(sum(issubclass(type(thing), Tensor) for thing in things))
            del things
    recorder.detach()
    assert len(set(counts)) == 1 and counts[0] > 0


def test_a_pass_that_fails_leaves_no_trace() -> None:
    model = Tiny()
    recorder = Recorder(model, find_points(model, (ids(),), {}))
    recorder.attach()
    handle = model.blocks[1].register_forward_hook(lambda *rest: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(ids())
    handle.remove()
    recorder.detach()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.overrides._get_current_function_mode_stack() == []


def test_a_stride_leaves_the_maximum_alone() -> None:
    """A large entry at a token that no mean is over is still the largest."""
    model, batch = Tiny(), ids()
    hot = 5  # with a stride of 8 from token 1, tokens 0, 1, 9, 17 ... are seen

    def heat(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        changed = out.clone()
        changed[0, hot, 3] = 5000.0
        return changed

    plain = recorded(model, batch, stride=8)
    handle = model.blocks[0].register_forward_hook(heat)
    found = recorded(model, batch, stride=8)
    handle.remove()
    cold, point = plain.stacks[0].points[2], found.stacks[0].points[2]
    assert cold is not None and point is not None
    assert point.largest == 5000.0 and point.massive[0] == (3, 5000.0)
    assert point.rms == cold.rms
    assert point.count == 4 * 6 * WIDTH


def test_the_attention_of_torch_s_own_layers_is_seen() -> None:
    """Logits by hand from the packed projection of nn.MultiheadAttention."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 3, nn.LayerNorm(16), enable_nested_tensor=False)
    x = torch.randn(2, 12, 16)
    found = nw.check(model, x, checks=["attn-logit-max"]).record
    attention = model.layers[0].self_attn
    q, k, _ = (model.layers[0].norm1(x) @ attention.in_proj_weight.T).chunk(3, dim=-1)
    q, k = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in (q, k))
    expected = (q @ k.mT / 8**0.5).abs().amax((0, 2, 3)).tolist()
    assert [one.layer for one in found.attentions] == [0, 1, 2]
    assert found.attentions[0].largest == pytest.approx(expected, rel=1e-5)
    assert torch.nn.functional.scaled_dot_product_attention is scaled_dot_product_attention
