"""Every placement against its formula in float64, and against formulas that others got wrong."""

import pytest
import torch
from torch import Tensor

from normwise.residual.base import PerSublayer
from normwise.residual.registry import PLACEMENTS
from tests.residual.formulas import FORMULAS, WRONG, Formula, written_out
from tests.residual.stacks import DIM, NAMES, built, drawn, matrices, moved, relu_branches, run
from tests.tolerance import FLOAT64_OUTPUT, assert_close

DEPTH = 5  # mix_norm has one post-norm layer then
COTANGENT = 1e-6  # small: gpas clips the gradient of its gates at 0.01


def test_every_placement_is_written_out() -> None:
    assert set(FORMULAS) == set(PLACEMENTS)


def both(
    placement: PerSublayer, formula: Formula, branches: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Output and gradients of input, parameters and branches, by the code and by the formula."""
    weights = matrices(DEPTH * branches).requires_grad_()
    x = (2.0 * drawn(2, 5, DIM, seed=1)).requires_grad_()
    inputs = [x, *placement.parameters(), weights]
    cotangent = COTANGENT * drawn(2, 5, DIM, seed=2)
    functions = relu_branches(weights)
    ours, theirs = (
        [out, *torch.autograd.grad(out, inputs, cotangent, materialize_grads=True)]
        for out in (run(placement, x, functions), written_out(formula, placement, x, functions))
    )
    return ours, theirs


@pytest.mark.parametrize("branches", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_stack_is_its_formula_forward_and_backward(name: str, branches: int) -> None:
    placement = moved(built(name, DEPTH, branches))
    for result, expected in zip(*both(placement, FORMULAS[name], branches), strict=True):
        largest = expected.detach().abs().max()
        assert largest > 1e-9 * COTANGENT  # else it would pass without a share in the output
        assert_close(result, expected, FLOAT64_OUTPUT * (largest + COTANGENT))


@pytest.mark.parametrize(("name", "mistake"), WRONG)
def test_a_known_mistake_would_be_seen(name: str, mistake: str) -> None:
    placement = moved(built(name, DEPTH))
    ours, theirs = both(placement, WRONG[name, mistake], branches=2)
    differences = [
        ((result - wrong).abs().max() / wrong.abs().max()).item()
        for result, wrong in zip(ours, theirs, strict=True)
    ]
    assert max(differences[:2]) > 0.01
