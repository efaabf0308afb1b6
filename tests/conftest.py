"""One torch thread for each test process: two beside a busy core are 70 times slower."""

import torch

torch.set_num_threads(1)
