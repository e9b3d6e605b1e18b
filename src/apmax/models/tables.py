"""Networks for tables: linear model and multi-layer perceptron on scaled numbers and category codes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from apmax import validation


class OneHot(nn.Module):
    """One-hot encoding of category codes, next to the numbers.

    Args:
        sizes: For each column of the input 0 if it is a number, else the number of codes. A code of -1, no category,
            becomes zeros.

    >>> OneHot([0, 3])(torch.tensor([[0.5, 2.0], [1.5, -1.0]]))
    tensor([[0.5000, 0.0000, 0.0000, 1.0000],
            [1.5000, 0.0000, 0.0000, 0.0000]])
    """

    starts: Tensor
    numbers: Tensor
    codes: Tensor

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = [validation.whole("sizes", size) for size in sizes]
        if not self.sizes:
            raise ValueError("sizes must have an entry for each column of the input, got none")
        codes = [column for column, size in enumerate(self.sizes) if size]
        starts = torch.tensor([0] + [self.sizes[column] for column in codes]).cumsum(0)
        self.num_numbers = len(self.sizes) - len(codes)
        self.width = self.num_numbers + sum(self.sizes)
        numbers = [column for column, size in enumerate(self.sizes) if not size]
        # Not saved: the sizes determine them.
        self.register_buffer("starts", starts[:-1], persistent=False)
        self.register_buffer("numbers", torch.tensor(numbers, dtype=torch.long), persistent=False)
        self.register_buffer("codes", torch.tensor(codes, dtype=torch.long), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (B, width): the numbers, then the one-hot codes of each column of categories."""
        if inputs.ndim != 2 or inputs.shape[1] != len(self.sizes):
            raise ValueError(f"inputs must have shape (B, {len(self.sizes)}), got {tuple(inputs.shape)}")
        numbers = inputs[:, self.numbers]
        if not len(self.codes):
            return numbers
        codes = inputs[:, self.codes].long()
        places = codes + self.starts
        # No category: written to an additional last column, which is then cut off.
        total = self.width - self.num_numbers
        ones = inputs.new_zeros(len(inputs), total + 1).scatter_(1, torch.where(codes < 0, total, places), 1)
        return torch.cat([numbers, ones[:, :total]], 1)


class Linear(nn.Module):
    """Linear model of the numbers and the one-hot categories.

    >>> Linear([0, 0, 3])(torch.zeros(4, 3)).shape
    torch.Size([4])
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.inputs = OneHot(sizes)
        self.head = nn.Linear(self.inputs.width, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scores, (B,)."""
        scores: Tensor = self.head(self.inputs(inputs))
        return scores[:, 0]


class MLP(nn.Module):
    """Multi-layer perceptron with ReLU units.

    Args:
        sizes: As in `OneHot`.
        hidden: Number of units of each hidden layer.
        dropout: Dropout probability after each hidden layer.

    >>> sum(parameter.numel() for parameter in MLP([0] * 10, hidden=(64, 64)).parameters())
    4929
    """

    def __init__(self, sizes: Sequence[int], *, hidden: Sequence[int] = (64, 64), dropout: float = 0.0) -> None:
        super().__init__()
        validation.interval("dropout", dropout, 0, 1, closed="left")
        self.inputs = OneHot(sizes)
        width, layers = self.inputs.width, []
        for units in hidden:
            layers += [nn.Linear(width, validation.whole("hidden", units, 1)), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
            width = units
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scores, (B,)."""
        scores: Tensor = self.head(self.body(self.inputs(inputs)))
        return scores[:, 0]


TABLE_MODELS: dict[str, Callable[..., nn.Module]] = {"mlp": MLP, "linear": Linear}
"""Built as `TABLE_MODELS[name](sizes, **options)`; the first is the default."""


def build_table_model(name: str, sizes: Sequence[int], *, prior: float | None = None, **options: Any) -> nn.Module:
    """Return a new network of `TABLE_MODELS`.

    Args:
        name: Key of `TABLE_MODELS`.
        sizes: As in `OneHot`.
        prior: Share of positives in the training rows; the bias of the head becomes its log-odds. From a bias near 0
            hundreds of steps are spent on that one number, and validation AP selects among noise meanwhile.
        options: Keyword arguments of the network.

    Raises:
        ValueError: No such network, or a prior that is not between 0 and 1.

    >>> build_table_model("linear", [0, 0], prior=0.5).head.bias.item()
    0.0
    """
    network = TABLE_MODELS[validation.choice("model", name, TABLE_MODELS)](sizes, **options)
    if prior is not None:
        validation.interval("prior", prior, 0, 1, closed="neither")
        head = network.get_submodule("head")
        assert isinstance(head, nn.Linear)
        nn.init.constant_(head.bias, math.log(prior / (1 - prior)))
    return network
