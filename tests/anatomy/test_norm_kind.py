"""Which norm a module is, from what it computes."""

import pytest
import torch
from torch import Tensor, nn
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

import normwise as nw
from normwise.anatomy.norm_kind import norm_kind
from normwise.anatomy.norm_semantics import norm_semantics

WIDTH = 32


def rows(scale: float = 1.0, count: int = 24) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.rand(count, 1, generator=generator) + 0.5
    return scale * sizes * (torch.randn(count, WIDTH, generator=generator) + 0.5)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("formula", ["layer_norm", "rms_norm"])
def test_numbers_tell_the_formula(formula: str, scale: float) -> None:
    """Also where eps, 1e-5, takes most of the rows' mean square."""
    norm = nw.make_norm(formula, WIDTH, eps=1e-5)
    nn.init.uniform_(norm.weight, 0.5, 2.0)  # type: ignore[arg-type]
    x = rows(scale)
    found = norm_kind(x, norm(x))
    assert found is not None and found.formula == formula
    if scale == 1e-3:
        assert found.eps == pytest.approx(1e-5, rel=0.01)


@pytest.mark.parametrize(
    "module",
    [
        nn.Identity(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Tanh(), nn.Softmax(dim=-1),
        nw.DynamicTanh(WIDTH), nn.Dropout(0.5), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()),
    ],
    ids=lambda module: type(module).__name__,
)  # fmt: skip
def test_what_is_no_norm(module: nn.Module) -> None:
    x = rows()
    assert norm_kind(x, module(x)) is None
    assert norm_semantics(module, WIDTH) is None


def test_rows_of_one_size_tell_nothing() -> None:
    x = nw.rms_norm(rows(), WIDTH)
    assert norm_kind(x, nw.rms_norm(x, WIDTH)) is None


OURS, NATIVE = nw.RMSNorm(WIDTH, 1e-8, unit_offset=True), nw.RMSNorm(WIDTH, 1e-5, rounding="native")

# module: formula, eps, unit offset, has a weight, has a bias, rounding
MODULES = {
    "Llama": (LlamaRMSNorm(WIDTH, 1e-6), "rms_norm", 1e-6, False, True, False, "llama"),
    "OLMo 2": (Olmo2RMSNorm(WIDTH, 1e-6), "rms_norm", 1e-6, False, True, False, "fp32"),
    "Gemma": (GemmaRMSNorm(WIDTH, 1e-6), "rms_norm", 1e-6, True, True, False, "fp32"),
    "T5": (T5LayerNorm(WIDTH, 1e-6), "rms_norm", 1e-6, False, True, False, "llama"),
    "Cohere": (CohereLayerNorm(WIDTH), "layer_norm", 1e-5, False, True, False, "fp32"),
    # 1 + weight is rounded to bf16 before the product, as in none of our orders
    "Nemotron": (NemotronLayerNorm1P(WIDTH), "layer_norm", 1e-5, True, True, True, None),
    "OLMo": (OlmoLayerNorm(WIDTH), "layer_norm", 1e-5, False, False, False, "fp32"),
    "torch": (nn.LayerNorm(WIDTH, 1e-12), "layer_norm", 1e-12, False, True, True, "fp32"),
    "torch RMS": (nn.RMSNorm(WIDTH, 1e-3), "rms_norm", 1e-3, False, True, False, "fp32"),
    "ours": (OURS, "rms_norm", 1e-8, True, True, False, "fp32"),
    "native": (NATIVE, "rms_norm", 1e-5, False, True, False, "native"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_semantics_of_a_module(name: str) -> None:
    module, formula, eps, offset, weight, bias, rounding = MODULES[name]
    before = {key: value.clone() for key, value in module.state_dict().items()}
    found = norm_semantics(module, WIDTH)
    assert found is not None
    assert (found.formula, found.unit_offset, found.rounding) == (formula, offset, rounding)
    assert found.eps == pytest.approx(eps, rel=2e-3)
    assert (found.weight is not None, found.bias is not None) == (weight, bias)
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())


def test_a_module_that_takes_more_is_unknown() -> None:
    class Gated(nn.Module):
        def forward(self, x: Tensor, gate: Tensor) -> Tensor:
            return x * gate

    assert norm_semantics(Gated(), WIDTH) is None


def test_a_module_without_a_width_needs_one() -> None:
    assert norm_semantics(OlmoLayerNorm(WIDTH)) is None
    assert norm_semantics(LlamaRMSNorm(WIDTH)) is not None
