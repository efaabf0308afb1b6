"""One torch thread for each test process, and for every process that a test starts: two beside a
busy core are 70 times slower.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
