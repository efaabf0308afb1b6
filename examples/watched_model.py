"""A model of your own, checked before its training and watched in it.

Run: python examples/watched_model.py [STEPS]
"""

import sys

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import normwise as nw

text = torch.tensor(list(b"to be or not to be, that is the question. " * 200))


class Model(nn.Module):
    """torch's own layers between an embedding and a head: pre-norm, and a last norm."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True, norm_first=True)
        self.embedding = nn.Embedding(256, 64)
        self.layers = nn.TransformerEncoder(layer, 4, nn.LayerNorm(64), enable_nested_tensor=False)
        self.head = nn.Linear(64, 256)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        logits: Tensor = self.head(self.layers(self.embedding(ids), mask=mask, is_causal=True))
        return logits


def batch() -> Tensor:
    starts = torch.randint(0, len(text) - 32, (8,))
    return torch.stack([text[start : start + 32] for start in starts])


torch.manual_seed(0)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
model = Model()
optimizer = torch.optim.AdamW(nw.parameter_groups(model, weight_decay=0.1), lr=1e-3)
nw.show(nw.check(model, batch(), optimizer=optimizer))  # nw.assert_healthy(...) in a test

with nw.Monitor(model, optimizer, every=10, steps=steps, log="runs/watched.jsonl") as monitor:
    for _ in range(steps):
        ids = batch()
        loss = cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss=loss)
story = monitor.story  # what moved first; `normwise report runs/watched.jsonl` makes a page
sys.stdout.write(
    f"{story.line if story else 'No warning in'} {len(monitor.run.records)} records.\n"
)
