"""normwise in a training loop of your own. Run: python examples/own_loop.py [STEPS]

A DeepNorm Transformer, its optimizer groups and its schedule; and the stream before training.
"""

import sys

import torch
from torch.nn.functional import cross_entropy

import normwise as nw

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
text = torch.tensor(list(b"to be or not to be, that is the question. " * 200))
config = nw.TransformerConfig(placement="deep_norm", norm="rms_norm", depth=6, max_len=32)
model = nw.Transformer(config, seed=0)
optimizer = torch.optim.AdamW(nw.parameter_groups(model, weight_decay=0.1), lr=3e-3)
schedule = nw.Schedule("cosine", steps=steps, warmup=steps // 10)
generator = torch.Generator().manual_seed(0)


def loss() -> torch.Tensor:
    starts = torch.randint(0, len(text) - 33, (8,), generator=generator)
    window = torch.stack([text[start : start + 33] for start in starts])
    return cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())


with nw.StreamRecorder(model) as recorder:
    loss().backward()
rms = " ".join(f"{value:.2f}" for value in recorder.profile().stream)
sys.stdout.write(f"RMS of the stream after each branch: {rms}\n")

for step in range(steps):
    nw.set_rate(optimizer, schedule, step)
    optimizer.zero_grad()
    current = loss()
    current.backward()
    optimizer.step()
sys.stdout.write(f"loss after {steps} steps: {current.item():.3f}\n")
