"""Single entries of the stream that dwarf the others, and streams that are only large."""

import math

import pytest
import torch
from torch import Tensor, nn

import normwise as nw
from normwise.probe.checks.massive_activation import CHECK
from normwise.probe.findings import Reading
from normwise.probe.preflight import check
from tests.probe.runs import point, readings, record, stack

IDS = torch.randint(0, 256, (2, 48), generator=torch.Generator().manual_seed(0))
TOKEN, CHANNEL = 29, 5  # 29 is no multiple of a stride, and not the first


def planted(size: float, dtype: str = "bf16", scale: float = 1.0) -> list[Reading]:
    """Readings of a model that holds one entry of a size between its second and its last but one
    layer.
    """
    made = nw.Transformer(nw.TransformerConfig(depth=6, embedding_scale="sqrt"), seed=0)
    with torch.no_grad():
        made.entry.embedding.weight *= scale
    if dtype == "fp16":
        made = made.half()
    entry = torch.zeros(48, 64)
    entry[TOKEN, CHANNEL] = size

    def adds(sign: float) -> object:
        def hook(module: nn.Module, args: object, out: Tensor) -> Tensor:
            return out + sign * entry.to(out.dtype)

        return hook

    if size:
        made.layers[1].feed_forward.register_forward_hook(adds(1.0))
        made.layers[4].feed_forward.register_forward_hook(adds(-1.0))
    return check(made, IDS, dtype=dtype, checks=[CHECK.name]).readings


@pytest.mark.parametrize(
    ("size", "dtype", "found"),
    [
        (90.0, "bf16", ["ok"]), (300.0, "bf16", ["info", "ok"]), (300.0, "fp16", ["warn", "ok"]),
        (90.0, "fp16", ["ok"]), (2e4, "bf16", ["info", "warn"]), (2e4, "fp32", ["info", "warn"]),
    ],
)  # fmt: skip
def test_one_massive_entry(size: float, dtype: str, found: list[str]) -> None:
    told = planted(size, dtype)
    assert [one.severity for one in told] == found
    assert told[0].layer == (None if found[0] == "ok" else 1)
    if len(told) == 2:
        assert told[1].value == pytest.approx(size, rel=0.01)  # beside it the stream is small
        assert f"1 channels ({CHANNEL}), after layer 1 feed-forward" in told[0].note
        assert "after layer 4 attention" in told[0].note


def test_a_stream_that_is_large_as_a_whole_has_none() -> None:
    (one,) = planted(0.0, "fp32", scale=1e5)
    assert (one.severity, one.value < 20.0) == ("ok", True)


def test_many_channels_are_counted() -> None:
    channels = tuple((c, 500.0 - c) for c in range(6))
    massive = stack([point(), point(largest=500.0, median=0.1, massive=channels)])
    ratio, size = readings(CHECK, record(stacks=[massive]))
    assert ratio.note.startswith("6 channels (0, 1, 2, 3, ...), after layer 0 attention.")
    assert (size.value, ratio.value) == (500.0, pytest.approx(5000.0))


def test_a_stream_of_nothing_but_zeros_is_in_order() -> None:
    (one,) = readings(CHECK, record(stacks=[stack([point(largest=0.0, median=0.0)])]))
    assert one.severity == "ok"


def test_an_unseen_stream_gives_nothing() -> None:
    assert readings(CHECK, record(stacks=[stack([None, None])])) == []


def test_entries_that_are_no_numbers_are_seen() -> None:
    (one,) = readings(CHECK, record(stacks=[stack([point(largest=math.nan)])]))
    assert math.isnan(one.value)
