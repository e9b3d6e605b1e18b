"""Set-up shared by all tests."""

import os

import torch
from hypothesis import settings

# Tests work on tiny tensors, where a second thread costs more than it brings.
torch.set_num_threads(1)

# At home every run tries new examples; a check of a change must not fail by chance.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
