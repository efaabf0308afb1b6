"""Which norm for a model of your own? Run: python examples/own_model.py [RUN_FOLDER]

The builder is called in every worker with the run's settings; the settings that it reads are what
the comparison varies. Here: a byte model on the last eight bytes, with a norm between its layers.
"""

import sys

import torch
from torch import Tensor, nn

import normwise as nw

CONTEXT = 8


class ByteMixer(nn.Module):
    """Tokens (B, T) to logits (B, T, vocab_size), each position seeing the eight last bytes."""

    def __init__(self, vocab_size: int, width: int, depth: int, norm: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.mix = nn.Conv1d(width, width, CONTEXT)
        self.norms = nn.ModuleList(nw.make_norm(norm, width) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        padded = nn.functional.pad(self.embedding(ids).transpose(1, 2), (CONTEXT - 1, 0))
        x = self.mix(padded).transpose(1, 2)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + torch.relu(layer(norm(x)))
        return self.head(x)


def build(run: nw.RunSettings, vocab_size: int) -> nn.Module:
    return ByteMixer(vocab_size, run.width, run.depth, run.norm)


if __name__ == "__main__":
    settings = nw.CompareSettings(
        norms=("layer_norm", "rms_norm", "no_norm"),
        placements="pre_norm",
        warmup=0,
        depth=(4, 16),
        steps=100,
        seeds=1,
        out=sys.argv[1] if len(sys.argv) > 1 else "runs/own_model",
    )
    nw.show(nw.compare(settings, build=build))
