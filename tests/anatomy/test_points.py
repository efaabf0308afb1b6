"""The places that hooks read."""

import pytest

from normwise.anatomy.points import points
from normwise.anatomy.stream import anatomy
from tests.anatomy.families import tiny

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers


def test_a_decoder_s_branches_are_not_made_of_the_encoder() -> None:
    """Cross-attention reads the encoder; its weights and attentions are no part of the branch."""
    model, batch = tiny("t5")
    encoder, decoder = points(model, anatomy(model, **batch)).stacks
    numbers = [n for stack in (encoder, decoder) for c in stack.connections for n in c.attention]
    assert numbers == list(range(12))
    for stack, name in ((encoder, "encoder."), (decoder, "decoder.")):
        modules = [module for c in stack.connections for module in c.modules]
        assert modules and all(module.startswith(name) for module in modules)
