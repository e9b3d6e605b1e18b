"""The first layer of ML-MPNN works on tables of kinds: the same as on every member written out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from apmax.models.graphs.levels import Level
from apmax.models.graphs.links import Links
from apmax.models.graphs.looked_up import Kinds, LookedUp

BATCH = torch.tensor([0, 0, 0, 1, 3, 3, 3, 3, 3])
IDS = torch.tensor([2, 0, 2, 1, 1, 1, 2, 0, 2])


def level():
    return Level.of(BATCH, 4, torch.float64)


def table():
    return torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()


def norms():
    """Two equal norms, away from where they begin."""
    generator = torch.Generator().manual_seed(1)
    pair = nn.BatchNorm1d(5).double(), nn.BatchNorm1d(5).double()
    for value in ("weight", "bias", "running_mean", "running_var"):
        drawn = torch.rand(5, dtype=torch.float64, generator=generator) + 0.5
        for norm in pair:
            getattr(norm, value).data.copy_(drawn)
    return pair


def written_out(norm, rows):
    sizes = torch.bincount(BATCH, minlength=4).double()
    return norm(rows[IDS] / sizes[BATCH].sqrt()[:, None])


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_kinds_is_that_of_all_members(training):
    plain, ours = (norm.train(training) for norm in norms())
    rows = table()
    state = Kinds.of(level(), IDS, rows).normalised(ours)
    expected = written_out(plain, rows)
    torch.testing.assert_close(state.shares @ state.table, expected, rtol=1e-12, atol=1e-13)
    weight = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    found = torch.autograd.grad((state.shares @ state.table * weight).sum(), [rows, ours.weight, ours.bias])
    wanted = torch.autograd.grad((expected * weight).sum(), [rows, plain.weight, plain.bias])
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-11, atol=1e-12)


def test_running_statistics_go_on_as_if_members_were_written_out():
    plain, ours = norms()
    for _ in range(3):
        written_out(plain, table())
        Kinds.of(level(), IDS, table()).normalised(ours)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-12, atol=1e-13)


def test_level_without_members_leaves_the_running_statistics_as_they_are():
    plain, ours = norms()
    none = torch.zeros(0, dtype=torch.long)
    state = Kinds.of(Level.of(none, 2, torch.float64), none, table()[:0]).normalised(ours)
    assert (state.shares @ state.table).shape == (0, 5)
    assert torch.equal(ours.running_mean, plain.running_mean)
    assert torch.equal(ours.running_var, plain.running_var)


def test_mean_of_kinds_is_that_of_their_rows_and_zero_of_none():
    rows = table()
    zero = torch.zeros(5, dtype=torch.float64)
    expected = torch.stack([rows[ids].mean(0) if len(ids) else zero for ids in IDS.split([3, 1, 0, 5])])
    torch.testing.assert_close(Kinds.of(level(), IDS, rows).mean(level()), expected, rtol=1e-12, atol=1e-13)


def test_sums_along_links_are_those_of_the_states():
    links = Links.of(torch.tensor([2, 0, 1]), torch.tensor([0, 1, 1]), senders=3, receivers=3)
    shares, rows = torch.rand(3, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    state = LookedUp(shares, rows).along(links)
    torch.testing.assert_close(state.shares @ state.table, links.sum(shares @ rows), rtol=1e-12, atol=1e-13)
