"""Trained models of others: `make test-real`.

Each is downloaded from the Hugging Face hub by its name. An environment variable may name a local
folder in its place, or FOLDER::FILE.gguf for weights in that format.
"""

import os
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

import normwise as nw
from normwise.anatomy.stream import anatomy

pytestmark = pytest.mark.real


@dataclass(frozen=True)
class Real:
    """A trained model and what is known of it.

    Args:
        hub: its name.
        variable: of the environment, names another place.
        loader: class of transformers.
        placement: by its paper.
        places: of the norms of a layer, how many.
        outside: norms outside of the layers.
        eps: name in the configuration.
    """

    hub: str
    variable: str
    loader: Any
    placement: str
    places: dict[str, int]
    outside: dict[str, int] = field(default_factory=dict)
    eps: str = "layer_norm_eps"


REAL = {
    "SmolLM2": Real(
        "HuggingFaceTB/SmolLM2-135M", "NORMWISE_REAL_SMOLLM2", AutoModelForCausalLM, "pre",
        {"pre": 2}, {"final": 1}, "rms_norm_eps",
    ),
    "MiniLM": Real(
        "sentence-transformers/all-MiniLM-L6-v2", "NORMWISE_REAL_MINILM", AutoModel, "post",
        {"post": 2}, {"embed": 1},
    ),
    "ALBERT": Real(
        "albert/albert-base-v2", "NORMWISE_REAL_ALBERT", AutoModelForMaskedLM, "post",
        {"post": 2}, {"embed": 1, "inner": 1},  # the last of the head of its language model
    ),
}  # fmt: skip
MODELS = pytest.mark.parametrize("name", REAL)


@cache
def loaded(name: str) -> nn.Module:
    known = REAL[name]
    folder, _, file = os.environ.get(known.variable, known.hub).partition("::")
    options = {"gguf_file": file} if file else {}
    model: nn.Module = known.loader.from_pretrained(folder, dtype=torch.float32, **options)
    return model.eval()


def tokens(model: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(5, model.config.vocab_size, (2, 64), generator=generator)


@MODELS
def test_the_placement_is_the_papers(name: str) -> None:
    found = anatomy(loaded(name), tokens(loaded(name)))
    assert found.placement == REAL[name].placement
    assert not found.parallel


@MODELS
def test_every_norm_has_its_place_and_its_eps(name: str) -> None:
    known, model = REAL[name], loaded(name)
    config: Any = model.config
    norms = nw.check(model, tokens(model)).record.norms
    layers = {place: each * config.num_hidden_layers for place, each in known.places.items()}
    assert Counter(norm.place for norm in norms) == layers | known.outside
    eps = getattr(config, known.eps)
    assert [norm.eps for norm in norms] == pytest.approx([eps] * len(norms), rel=1e-3)
    assert all(norm.share == norm.share for norm in norms)  # none was missed


@MODELS
def test_each_stream_is_the_sum_of_the_one_before_and_a_branch(name: str) -> None:
    model = loaded(name)
    found = anatomy(model, tokens(model)).connections
    config: Any = model.config
    kinds = Counter(connection.kind for connection in found)
    assert kinds == {kind: config.num_hidden_layers for kind in ("attention", "feed_forward")}
    for connection in found:
        skip, branch = (node.value for node in connection.add.inputs)
        apart = (connection.add.value - skip - branch).abs().max()
        assert apart <= 1e-6 * connection.add.value.abs().max()


@MODELS
def test_a_trained_model_does_not_fail(name: str) -> None:
    model = loaded(name)
    result = nw.check(model, tokens(model))
    assert result.record.stage == "trained"
    assert [one.line for one in result.findings if one.severity == "fail"] == []
