"""Steps of an optimiser with gradients that are given."""

import numpy as np
import torch
from torch import nn

START = [0.5, -1.0, 2.0]
GRADIENTS = [[1.0, -2.0, 0.0], [3.0, 0.5, 0.0], [0.1, 0.0, -4.0], [-2.0, 0.01, 1.0], [0.0, 1.5, 0.3], [0.2, -0.1, 0.0]]


def parameter(values=START):
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def trajectory(optimizer, w, gradients=GRADIENTS):
    """Return w after every step with the given gradients."""
    history = []
    for gradient in gradients:
        w.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        history.append(w.detach().clone().numpy())
    return np.array(history)
