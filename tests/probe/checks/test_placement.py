"""`placement`: a last norm for a stream that has none, a warm-up for post-norm."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import normwise as nw
from normwise.probe.checks import placement
from normwise.probe.findings import Reading
from normwise.probe.record import Run
from tests.probe.models import Tiny, ids

TOKENS = torch.randint(0, 256, (2, 32), generator=torch.Generator().manual_seed(0))


def asked(model: nn.Module, batch: torch.Tensor) -> list[Reading]:
    return nw.check(model, batch, checks=["placement"]).readings


def encoder(*, norm: bool) -> nn.Module:
    """torch's own, whose last norm must be asked for."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
    last = nn.LayerNorm(16) if norm else None
    return nn.TransformerEncoder(layer, 4, last, enable_nested_tensor=False)


def test_P44_a_stack_without_a_last_norm() -> None:
    """P44: a pre-norm stack ends with one norm; torch's has none unless it is given."""
    # NVIDIA-NeMo/Speech#2197; xformers#665
    x = torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(0))
    (bad,), (good,) = asked(encoder(norm=False), x), asked(encoder(norm=True), x)
    assert (bad.severity, good.severity) == ("warn", "ok")
    assert bad.remedy is not None and "behind the last layer" in bad.remedy.text


def test_P44_the_last_norm_taken_out() -> None:
    model = Tiny()
    assert [one.severity for one in asked(model, ids())] == ["ok"]
    model.norm = nn.Identity()  # type: ignore[assignment]
    assert [one.severity for one in asked(model, ids())] == ["warn"]


@pytest.mark.parametrize("name", ["pre_norm", "peri_norm", "output_norm"])
def test_our_own_end_with_a_norm(name: str) -> None:
    model = nw.Transformer(nw.TransformerConfig(depth=4, placement=name), seed=0)
    assert [one.severity for one in asked(model, TOKENS)] == ["ok"]


def test_P48_post_norm_is_told_to_warm_up() -> None:
    """P48: the gradients by layer at initialisation, and the warm-up: info where it is not known,
    a warning in a training without one, nothing in one with it.
    """
    # pytorch#55270; lucidrains/vit-pytorch#56; LiyuanLucasLiu/Transformer-Clinic#16
    model = nw.Transformer(nw.TransformerConfig(depth=6, placement="post_norm"), seed=0)
    result = nw.check(model, TOKENS, checks=["placement"])
    (told,) = result.readings
    assert told.severity == "info" and result.verdict == "ok"
    assert told.remedy is not None and "nw.Schedule" in told.remedy.text
    assert float(told.note.split(": ")[1].rstrip(".")) > 0.5, "flat, or larger toward the output"
    training = replace(result.record, stage="training")
    for warmup, severity in ((0, "warn"), (100, "ok")):
        (one,) = placement.measure(Run([training], warmup=warmup))
        assert isinstance(one, Reading) and one.severity == severity
