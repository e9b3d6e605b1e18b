"""With several processes the gradient is that of one process on the joined batch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from apmax.distributed import Gathered, gather_shards
from apmax.losses import LOSSES
from apmax.optim import param_groups

STEPS = 3
# How each batch of ten is cut for 2 and for 4 processes: even and uneven, an empty shard, ranks without a positive.
CUTS = {2: [[5, 5], [8, 2], [10, 0]], 4: [[3, 3, 2, 2], [7, 1, 1, 1], [0, 4, 6, 0]]}


def problem() -> tuple[Tensor, Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    labels = (torch.arange(40) % 4 == 0).double()
    batches = []
    for step in range(STEPS):
        positives = (torch.arange(3) + 3 * step) * 4 % 40
        negatives = (labels == 0).nonzero()[:, 0][torch.randperm(30, generator=generator)[:7]]
        # Positives first: whatever is cut off behind them is a shard without any.
        batches.append(torch.cat([positives, negatives]))
    return features, labels, batches


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def train(name: str, rank: int, world: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return the model's gradient at every step and the loss's state at the end."""
    features, labels, batches = problem()
    model: nn.Module = network()
    if world > 1:
        model = DistributedDataParallel(model)
    loss = Gathered(LOSSES[name](labels).double())
    optimizer = torch.optim.SGD(param_groups(model, loss, lr=0.1), lr=0.1)
    gradients = []
    for step, batch in enumerate(batches):
        sizes = CUTS[world][step] if world > 1 else [len(batch)]
        rows = batch.split(sizes)[rank]
        optimizer.zero_grad()
        loss(model(features[rows]), labels[rows].unsqueeze(-1), rows).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).clone())
        optimizer.step()
    return gradients, loss.state_dict()


def worker(rank: int, world: int, folder: str) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    results = {name: train(name, rank, world) for name in LOSSES}
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=[2, 4], ids=["two", "four"])
def several(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("processes")
    mp.spawn(worker, args=(request.param, str(folder)), nprocs=request.param)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(request.param)]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_gradient_under_ddp_is_that_of_one_process_on_the_joined_batch(name: str, several: list[dict]) -> None:
    alone, _ = train(name, 0, 1)
    for of_rank in several:
        for gradient, expected in zip(of_rank[name][0], alone, strict=True):
            assert (gradient - expected).norm() <= 1e-9 * expected.norm()


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_state_is_the_same_on_every_process_to_the_bit(name: str, several: list[dict]) -> None:
    first = several[0][name][1]
    for of_rank in several[1:]:
        for key, value in of_rank[name][1].items():
            assert torch.equal(value, first[key])


@pytest.mark.slow
def test_state_is_that_of_one_process(several: list[dict]) -> None:
    _, alone = train("ap", 0, 1)
    for key, value in several[0]["ap"][1].items():
        torch.testing.assert_close(value, alone[key], rtol=1e-12, atol=0)


def test_one_process_needs_no_group() -> None:
    shard = torch.tensor([1.0, 2.0], requires_grad=True)
    assert gather_shards(shard) is shard
