"""Every placement written out in float64, and the wrong ones that others have shipped."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from normwise.residual.base import PerSublayer
from tests.residual.stacks import Branch, layer_norm


class At:
    """Where a formula stands: connection s of S in layer l of L, its norms and parameters."""

    def __init__(self, placement: PerSublayer, s: int) -> None:
        each = placement.branches
        self.S, self.L = len(placement.connections), len(placement.connections) // each
        self.s, self.l = s + 1, s // each + 1
        self.first, self.last = s % each == 0, (s + 1) % each == 0
        self.alone = each == 1
        self._own = dict(placement.connections[s].named_parameters())
        self._layer = dict(placement.connections[s - s % each].named_parameters())

    def __getitem__(self, name: str) -> Tensor:
        return self._own[name]

    def of_layer(self, name: str) -> Tensor:
        return self._layer[name]

    def norm(self, x: Tensor, name: str = "norm") -> Tensor:
        return layer_norm(x, self[f"{name}.weight"], self[f"{name}.bias"])

    def layer_norm(self, x: Tensor) -> Tensor:
        return layer_norm(x, self._layer["norm.weight"], self._layer["norm.bias"])


class End:
    """The norms after the last layer."""

    def __init__(self, placement: PerSublayer) -> None:
        self._own = dict(placement.named_parameters())

    def norm(self, x: Tensor, name: str = "final_norm") -> Tensor:
        return layer_norm(x, self._own[f"{name}.weight"], self._own[f"{name}.bias"])


Step = Callable[[At, Any, Branch], Any]


@dataclass(frozen=True)
class Formula:
    """A stack: what it starts with, one connection, and what it ends with."""

    step: Step
    exit: Callable[[End, Any], Tensor] = lambda end, state: end.norm(state)
    enter: Callable[[Tensor], Any] = lambda x: x


def written_out(
    formula: Formula, placement: PerSublayer, x: Tensor, branches: Sequence[Branch]
) -> Tensor:
    state = formula.enter(x)
    for s, branch in enumerate(branches):
        state = formula.step(At(placement, s), state, branch)
    return formula.exit(End(placement), state)


def _free(step: Step) -> Formula:
    """A stack that ends with a norm of its own."""
    return Formula(step)


def _closed(step: Step) -> Formula:
    """A stack that ends as its last connection does."""
    return Formula(step, exit=lambda end, state: state)


def _paired(step: Step, exit: Callable[[End, Any], Tensor]) -> Formula:
    """A stack that carries two tensors, both the entry at first."""
    return Formula(step, exit, lambda x: (x, x))


def _hyper_formula(step: Step) -> Formula:
    return Formula(step, lambda end, streams: end.norm(total(streams) / 4), lambda x: [x] * 4)


def total(terms: Iterable[Tensor]) -> Tensor:
    return torch.stack([*terms]).sum(0)


def _pre(at: At, x: Tensor, f: Branch) -> Tensor:
    return x + f(at.norm(x))


def _post(at: At, x: Tensor, f: Branch) -> Tensor:
    return at.norm(x + f(x))


def _keel(at: At, x: Tensor, f: Branch) -> Tensor:
    out = f(at.norm(x, "norm_in"))
    return x + out if at.s == 1 else at.norm(at.S * x + out, "norm_out")


def _norm_former(at: At, x: Tensor, f: Branch) -> Tensor:
    out = f(at.norm(x))
    return at["skip"] * x + out if at.last else x + at.norm(out, "after")


def _hybrid(at: At, x: Tensor, f: Branch) -> Tensor:
    y = at.norm(x) if at.last else x
    return y + f(y)


def _gpas(at: At, x: Tensor, f: Branch) -> Tensor:
    h, g = _pre(at, x, f), at.of_layer("number")
    return h - g / (1 + torch.exp(-g)) * h.detach()


Pair = tuple[Tensor, Tensor]


def _b2t(at: At, state: Pair, f: Branch) -> Pair:
    x, entry = (state[0], state[0]) if at.first else state
    return at.norm(x + f(x) + (entry if at.last and not at.alone else 0)), entry


def _parallel(at: At, state: Pair, f: Branch) -> Pair:
    x, entry = (state[0], state[0]) if at.first else state
    return x + f(at.layer_norm(entry)), entry


def _parallel_norms(at: At, state: Pair, f: Branch) -> Pair:
    x, entry = (state[0], state[0]) if at.first else state
    return x + f(at.norm(entry)), entry


def _resi_dual(at: At, state: Pair, f: Branch) -> Pair:
    x, r = state
    return at.norm(x + f(x)), r + f(x)


def _siamese(at: At, state: Pair, f: Branch) -> Pair:
    x, y = state
    out = f(x + at.norm(y, "norm_y"))
    return at.norm(x + out, "norm_x"), y + out


def _siamese_scaled(at: At, state: Pair, f: Branch) -> Pair:
    x, y = at.norm(state[0], "norm_x"), state[1]
    out = f(at.norm(x + at.norm(y, "norm_y"), "norm_in"))
    return x + out / math.sqrt(2 * at.l), y + out


def _hyper(at: At, streams: list[Tensor], f: Branch, *, mixes: bool = True) -> list[Tensor]:
    n = len(streams)
    found = [at["factor"] * torch.tanh(at.norm(h, "dynamic") @ at["weight"]) for h in streams]
    read = [at["read"][i] + found[i][..., :1] for i in range(n)]
    write = [at["write"][j] + found[j][..., 1:2] for j in range(n)]
    out = f(at.norm(total(read[i] * streams[i] for i in range(n))))
    mixed = [
        total((at["mix"][j, i] + found[i][..., j + 2, None]) * streams[i] for i in range(n))
        for j in range(n)
    ]
    return [kept + w * out for kept, w in zip(mixed if mixes else streams, write, strict=True)]


def _attended(at: At, state: tuple[Tensor, list[Tensor]], f: Branch) -> Any:
    h, values = state
    values = [*values, f(at.norm(h))]
    scores = [
        (v / (v.square().mean(-1, keepdim=True) + 1e-6).sqrt() * at["query"]).sum(-1, keepdim=True)
        for v in values
    ]
    shares = [score.exp() / total(s.exp() for s in scores) for score in scores]
    return total(share * v for share, v in zip(shares, values, strict=True)), values


FORMULAS: dict[str, Formula] = {
    "pre_norm": _free(_pre),
    "post_norm": _closed(_post),
    "deep_norm": _closed(lambda at, x, f: at.norm(at.S**0.25 * x + f(x))),
    "peri_norm": _free(lambda at, x, f: x + at.norm(f(at.norm(x, "norm_in")), "norm_out")),
    "output_norm": _free(lambda at, x, f: x + at.norm(f(x))),
    "depth_scaled_norm": _free(lambda at, x, f: x + f(at.norm(x) / math.sqrt(at.l))),
    "rezero": _closed(lambda at, x, f: x + at.of_layer("number") * f(x)),
    "skip_init": _closed(lambda at, x, f: x + at["alpha"] * f(x)),
    "t_fixup": _closed(lambda at, x, f: x + f(x)),
    "layer_scale": _free(lambda at, x, f: x + at["scale"] * f(at.norm(x))),
    "keel": _closed(_keel),
    "b2t": _paired(_b2t, lambda end, state: state[0]),
    "mix_norm": _free(lambda at, x, f: (_post if at.l <= at.L // 4 else _pre)(at, x, f)),
    "sub_norm": _free(_pre),
    "norm_former": _free(_norm_former),
    "norm_former_fairseq": _free(_norm_former),
    "resi_dual": _paired(_resi_dual, lambda end, state: state[0] + end.norm(state[1])),
    "admin": _closed(lambda at, x, f: at.norm(at["omega"] * x + f(x))),
    "hybrid_norm": _free(_hybrid),
    "hybrid_norm_star": _free(lambda at, x, f: (_pre if at.l == 1 else _hybrid)(at, x, f)),
    "parallel": _paired(_parallel, lambda end, state: end.norm(state[0])),
    "parallel_norms": _paired(_parallel_norms, lambda end, state: end.norm(state[0])),
    "scaled_residual": _free(
        lambda at, x, f: math.sqrt(1 - 1 / at.S) * x + math.sqrt(1 / at.S) * f(at.norm(x))
    ),
    "gpas": _free(_gpas),
    "siamese_norm": _paired(_siamese, lambda end, state: state[0] + end.norm(state[1])),
    "siamese_norm_scaled": _paired(
        _siamese_scaled,
        lambda end, state: end.norm(end.norm(state[0], "exit_x") + end.norm(state[1], "exit_y")),
    ),
    "hyper_connections": _hyper_formula(_hyper),
    "attention_residuals": Formula(
        _attended, lambda end, state: end.norm(state[0]), lambda x: (x, [x])
    ),
}


def _b2t_at_every_norm(at: At, state: Pair, f: Branch) -> Pair:
    x, entry = (state[0], state[0]) if at.first else state
    return at.norm(x + f(x) + entry), entry


def _keel_convex(at: At, x: Tensor, f: Branch) -> Tensor:
    out = f(at.norm(x, "norm_in"))
    return x + out if at.s == 1 else at.norm(at.S * x + (1 - at.S) * out, "norm_out")


def _norm_former_branch(at: At, x: Tensor, f: Branch) -> Tensor:
    return x + at["skip"] * f(at.norm(x)) if at.last else _norm_former(at, x, f)


def _gpas_without_stop(at: At, x: Tensor, f: Branch) -> Tensor:
    h, g = _pre(at, x, f), at.of_layer("number")
    return h - g / (1 + torch.exp(-g)) * h


WRONG: dict[tuple[str, str], Formula] = {
    ("deep_norm", "labmlai#145: alpha on the branch"): _closed(
        lambda at, x, f: at.norm(x + at.S**0.25 * f(x))
    ),
    ("deep_norm", "LayerNorm-Scaling, MixLN: alpha of 32 layers at every depth"): _closed(
        lambda at, x, f: at.norm(2.828 * x + f(x))
    ),
    ("depth_scaled_norm", "l counts branches"): _free(
        lambda at, x, f: x + f(at.norm(x) / math.sqrt(at.s))
    ),
    ("depth_scaled_norm", "l one too large"): _free(
        lambda at, x, f: x + f(at.norm(x) / math.sqrt(at.l + 1))
    ),
    ("keel", "LN(alpha x + (1 - alpha) F)"): _closed(_keel_convex),
    ("b2t", "the input of the last branch, not of the layer"): _paired(
        lambda at, state, f: _b2t(at, (state[0], state[0]), f), lambda end, state: state[0]
    ),
    ("b2t", "the entry at every norm"): _paired(_b2t_at_every_norm, lambda end, state: state[0]),
    ("admin", "omega on the branch"): _closed(lambda at, x, f: at.norm(x + at["omega"] * f(x))),
    ("hybrid_norm", "the feed-forward skip from Y"): _free(
        lambda at, x, f: x + f(at.norm(x) if at.last else x)
    ),
    ("norm_former", "the learned vector on the branch"): _free(_norm_former_branch),
    ("gpas", "the gate scales the gradient"): _free(_gpas_without_stop),
    ("hyper_connections", "hyper-connections#8, mHC#3: R unused"): _hyper_formula(
        partial(_hyper, mixes=False)
    ),
    ("resi_dual", "the norm of the dual stream alone"): _paired(
        _resi_dual, lambda end, state: end.norm(state[1])
    ),
}
