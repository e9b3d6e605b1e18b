"""Categories of atoms and bonds as small whole numbers, and their one-hot form.

An atom is a row of eight whole numbers, seven categories and its mass in millionths of a dalton; a bond is a row of
four. Every one-hot has a last slot for "other", except the bond's type, where another type (a dative bond) sets
none of the four flags. The dense form is that of the paper's experiments: 133 numbers per atom, 14 per bond.
"""

from __future__ import annotations

import torch
from torch import Tensor

FEATURISER_VERSION = 1
"""To be raised when a SMILES gives other numbers: caches are rebuilt, checkpoints of another version refused."""

ATOM_FIELDS = ("number", "degree", "charge", "chirality", "hydrogens", "hybridisation", "aromatic", "mass")
ATOM_SIZES = (101, 7, 6, 5, 6, 6)
"""Slots of the one-hot fields, "other" included; the aromaticity flag and the mass follow them."""
ATOM_WIDTH = sum(ATOM_SIZES) + 2
MASS_UNIT = 1e-6

BOND_FIELDS = ("type", "conjugated", "ring", "stereo")
BOND_TYPES = 4
STEREO_SIZE = 7
BOND_WIDTH = 1 + BOND_TYPES + 2 + STEREO_SIZE

CLIQUE_KINDS = ("ring", "bond", "bridged rings", "atom")


def dense_atoms(rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return atoms' categories (n, 8) as the paper's features (n, 133): six one-hots, aromaticity, mass/100.

    >>> carbon = torch.tensor([[5, 4, 4, 0, 3, 2, 0, 12_011_000]])
    >>> dense_atoms(carbon).nonzero()[:, 1].tolist(), round(dense_atoms(carbon)[0, -1].item(), 5)
    ([5, 105, 112, 114, 122, 127, 132], 0.12011)
    """
    check_width(rows, len(ATOM_FIELDS), "x")
    starts = torch.tensor((0, *ATOM_SIZES[:-1]), device=rows.device).cumsum(0)
    dense = torch.zeros(len(rows), ATOM_WIDTH, dtype=dtype, device=rows.device)
    dense.scatter_(1, rows[:, : len(ATOM_SIZES)].long() + starts, 1.0)
    dense[:, -2] = rows[:, -2].to(dtype)
    dense[:, -1] = rows[:, -1].to(dtype) * (MASS_UNIT / 100)
    return dense


def dense_bonds(rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return bonds' categories (m, 4) as the paper's features (m, 14): no bond, type, conjugated, ring, stereo.

    >>> double_bond = torch.tensor([[1, 1, 0, 0]])
    >>> dense_bonds(double_bond).nonzero()[:, 1].tolist()
    [2, 5, 7]
    """
    check_width(rows, len(BOND_FIELDS), "edge_attr")
    rows = rows.long()
    types = torch.zeros(len(rows), BOND_TYPES + 1, dtype=dtype, device=rows.device).scatter_(1, rows[:, :1], 1.0)
    stereo = torch.zeros(len(rows), STEREO_SIZE, dtype=dtype, device=rows.device).scatter_(1, rows[:, 3:], 1.0)
    missing = torch.zeros(len(rows), 1, dtype=dtype, device=rows.device)
    return torch.cat([missing, types[:, :BOND_TYPES], rows[:, 1:3].to(dtype), stereo], dim=1)


def check_width(rows: Tensor, width: int, name: str) -> None:
    """Raise unless `rows` is a table of `width` columns."""
    if rows.ndim != 2 or rows.shape[1] != width:
        raise ValueError(f"{name} of categories must have shape (n, {width}), got {tuple(rows.shape)}")
