"""Pair sums across processes: uneven shards give, on every process, what one call on all of the data gives."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from apmax.exact import PairStream, pair_sums, pair_sums_across_ranks
from apmax.functional import outer
from apmax.surrogates import SURROGATES

pytestmark = pytest.mark.slow  # starts four processes

FAST = {name: "grid" if name in ("logistic", "sigmoid") else "bucket" for name in SURROGATES}
# Where each rank's share begins and ends. Of four, rank 1 has examples but no positive, rank 2 has nothing at all.
SHARES = {2: [0, 13, 50], 4: [0, 17, 29, 29, 50]}
WORLD = 4


def problem():
    """Return scores with ties, labels and weights of 50 examples; rows 17 to 28 are negative."""
    rng = np.random.default_rng(0)
    scores = torch.from_numpy((rng.normal(size=50) * 4).round() / 4)
    labels = torch.from_numpy((rng.random(50) < 0.4).astype(float))
    labels[17:29] = 0
    weight = torch.from_numpy(rng.exponential(size=50))
    return scores, labels, weight


def objective(sums):
    return outer(sums.cumsum(0)).mean()


def share(rank, count):
    start, stop = SHARES[count][rank : rank + 2]
    return tuple(part[start:stop] for part in problem())


def joint(name, rank, count, group):
    """Return this process's sums, value and gradients by `pair_sums_across_ranks`."""
    scores, labels, weight = share(rank, count)
    scores.requires_grad_()
    anchors = scores[labels == 1]
    sums = pair_sums_across_ranks(
        scores, anchors, labels * weight, (1 - labels) * weight, surrogate=name, margin=0.7, group=group
    )
    value = objective(sums)
    value.backward()
    return sums.detach(), value.detach(), scores.grad


def streamed(name, rank, count, group):
    """Return the sums and gradients by a stream whose moments are reduced."""
    everything, all_labels, _ = problem()
    stream = PairStream(
        everything[all_labels == 1], surrogate=name, margin=0.7, low=everything.min(), high=everything.max()
    )
    scores, labels, weight = share(rank, count)
    half = len(scores) // 2
    chunks = [(part[:half], part[half:]) for part in (scores, labels * weight, (1 - labels) * weight)]
    for chunk in zip(*chunks, strict=True):
        stream.add(*chunk)
    stream.reduce(group)
    sums = stream.sums().requires_grad_()
    (cotangent,) = torch.autograd.grad(objective(sums), sums)
    of_anchors = stream.backward(cotangent)
    return sums.detach(), torch.cat([stream.gradient(*chunk) for chunk in zip(*chunks, strict=True)]), of_anchors


def no_anchor_anywhere():
    """Return the message that a process raises where no process holds an anchor."""
    try:
        pair_sums_across_ranks(torch.zeros(3), torch.zeros(0), torch.zeros(3), torch.ones(3))
    except ValueError as error:
        return str(error)
    return None


def with_nan(name, rank, where):
    """Return the sums where one process has a NaN, after a backward pass."""
    scores, labels, weight = share(rank, 4)
    anchors = scores[labels == 1]
    if rank == 0:
        (scores if where == "scores" else anchors)[0] = torch.nan
    scores.requires_grad_()
    sums = pair_sums_across_ranks(scores, anchors, labels * weight, (1 - labels) * weight, surrogate=name, margin=0.7)
    sums.sum().backward()
    return sums.detach()


def work(rank, folder):
    """Run everything in one process of four; two of them also work as a pair."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    pair = dist.new_group([0, 1])
    found = {}
    for count, group in ((4, None), (2, pair)):
        if rank < count:
            for name in SURROGATES:
                found["joint", name, count] = joint(name, rank, count, group)
                found["stream", name, count] = streamed(name, rank, count, group)
    for name in SURROGATES:
        for where in ("scores", "anchors"):
            found["nan", name, where] = with_nan(name, rank, where)
    found["no anchor"] = no_anchor_anywhere()
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return what each of four processes found."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(work, (str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


def expected(name):
    """Return sums, value, and the gradients of the scores as examples and anchors together, and of each alone."""
    scores, labels, weight = problem()
    scores.requires_grad_()
    anchors = scores[labels == 1].detach().requires_grad_()
    sums = pair_sums(
        scores, anchors, labels * weight, (1 - labels) * weight, surrogate=name, margin=0.7, method=FAST[name]
    )
    value = objective(sums)
    value.backward()
    together = scores.grad.clone()
    together[labels == 1] += anchors.grad
    return sums.detach(), value.detach(), together, scores.grad, anchors.grad


def assert_agree(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12 * float(theirs.abs().max()))


every_surrogate = pytest.mark.parametrize("name", SURROGATES)
either_count = pytest.mark.parametrize("count", SHARES)


@every_surrogate
@either_count
def test_every_process_has_the_sums_and_the_value_of_all_data(found, name, count):
    sums, value, *_ = expected(name)
    for rank in range(count):
        assert_agree(found[rank]["joint", name, count][0], sums)
        assert_agree(found[rank]["joint", name, count][1], value)


@every_surrogate
@either_count
def test_every_process_has_its_own_scores_part_of_the_joint_gradient(found, name, count):
    gradient = torch.cat([found[rank]["joint", name, count][2] for rank in range(count)])
    assert_agree(gradient, expected(name)[2])


@every_surrogate
@either_count
def test_reduced_streams_have_the_sums_of_all_data(found, name, count):
    for rank in range(count):
        assert_agree(found[rank]["stream", name, count][0], expected(name)[0])


@every_surrogate
@either_count
def test_reduced_streams_have_the_gradients_of_all_data(found, name, count):
    _, _, _, of_scores, of_anchors = expected(name)
    assert_agree(torch.cat([found[rank]["stream", name, count][1] for rank in range(count)]), of_scores)
    for rank in range(count):
        assert_agree(found[rank]["stream", name, count][2], of_anchors)


@every_surrogate
@pytest.mark.parametrize("where", ["scores", "anchors"])
def test_nan_on_one_process_gives_nan_on_every_process(found, name, where):
    for result in found:
        assert result["nan", name, where].isnan().all()


def test_no_anchor_on_any_process_is_an_error_on_every_process(found):
    assert all("anchors must not be empty" in result["no anchor"] for result in found)
