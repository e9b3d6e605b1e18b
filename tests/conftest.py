"""Set-up shared by all tests."""

import torch

# Tests work on tiny tensors, where a second thread costs more than it brings.
torch.set_num_threads(1)
