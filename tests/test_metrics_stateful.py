"""`AveragePrecision`: equal to `average_precision` of all batches together, on one process and on several."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from apmax.metrics import AveragePrecision, average_precision

NAN = float("nan")


def data(n=90, tasks=None, seed=0):
    """Return scores with ties, labels (with gaps, of several tasks) and weights."""
    rng = np.random.default_rng(seed)
    shape = (n,) if tasks is None else (n, tasks)
    labels = (rng.random(shape) < 0.3).astype(np.float32)
    if tasks is not None:
        labels[rng.random(shape) < 0.2] = NAN
    scores = (rng.normal(size=shape) + np.nan_to_num(labels)).round(1).astype(np.float32)
    return torch.from_numpy(scores), torch.from_numpy(labels), torch.from_numpy(rng.exponential(size=n))


def updated(metric, scores, labels, weight=None, sizes=(40, 1, 49)):
    start = 0
    for size in sizes:
        part = slice(start, start + size)
        metric.update(scores[part], labels[part], sample_weight=None if weight is None else weight[part])
        start += size
    return metric


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("tasks", [None, 3])
def test_the_value_is_that_of_all_batches_together(tasks, weighted):
    scores, labels, weight = data(tasks=tasks)
    weight = weight if weighted else None
    found = updated(AveragePrecision(), scores, labels, weight).compute()
    assert torch.equal(found, average_precision(scores, labels, sample_weight=weight))


def test_columns_arrays_and_lists_are_taken():
    scores, labels, _ = data()
    metric = AveragePrecision()
    metric.update(scores[:30, None], labels[:30, None])
    metric.update(scores[30:60].numpy(), labels[30:60].numpy().astype(bool))
    metric.update(scores[60:].tolist(), labels[60:].tolist())
    assert metric.compute().item() == pytest.approx(average_precision(scores, labels).item(), abs=1e-15)


def test_a_call_returns_the_value_of_its_batch_and_adds_it():
    scores, labels, _ = data()
    metric = AveragePrecision()
    assert torch.equal(metric(scores[:40], labels[:40]), average_precision(scores[:40], labels[:40]))
    assert torch.equal(metric(scores[40:], labels[40:]), average_precision(scores[40:], labels[40:]))
    assert torch.equal(metric.compute(), average_precision(scores, labels))


def test_compute_does_not_end_the_accumulation_and_reset_does():
    scores, labels, _ = data()
    metric = AveragePrecision()
    metric.update(scores[:40], labels[:40])
    assert torch.equal(metric.compute(), average_precision(scores[:40], labels[:40]))
    metric.update(scores[40:], labels[40:])
    assert torch.equal(metric.compute(), average_precision(scores, labels))
    metric.reset()
    metric.update(scores[:7], labels[:7])
    assert torch.equal(metric.compute(), average_precision(scores[:7], labels[:7]))


def test_it_equals_torchmetrics_on_probabilities_without_ties():
    torchmetrics = pytest.importorskip("torchmetrics.classification")
    rng = np.random.default_rng(0)
    scores, labels = torch.from_numpy(rng.permutation(200) / 200.0), torch.from_numpy(rng.integers(0, 2, 200))
    theirs, ours = torchmetrics.BinaryAveragePrecision(), AveragePrecision()
    for part in (slice(0, 150), slice(150, 200)):
        assert ours(scores[part], labels[part]).item() == pytest.approx(
            theirs(scores[part], labels[part]).item(), abs=1e-6
        )
    assert ours.compute().item() == pytest.approx(theirs.compute().item(), abs=1e-6)


def test_without_positives_the_value_is_nan():
    metric = AveragePrecision()
    metric.update([1.0, 2.0], [0, 0])
    assert metric.compute().isnan()


def test_an_empty_batch_adds_nothing():
    scores, labels, _ = data()
    metric = updated(AveragePrecision(), scores, labels)
    metric.update(scores[:0], labels[:0])
    metric.update([], [])
    assert metric(scores[:0].numpy(), labels[:0].numpy()).isnan()
    assert torch.equal(metric.compute(), average_precision(scores, labels))


def test_a_batch_of_weight_zero_counts_as_none():
    scores, labels = [0.9, 0.8, 0.7], [1, 0, 1]
    metric = AveragePrecision()
    metric.update(scores, labels, sample_weight=[1, 2, 3])
    assert metric([0.1, 5.0], [1, 0], sample_weight=[0, 0]).isnan()
    assert metric.compute() == average_precision(scores, labels, sample_weight=[1, 2, 3])
    with pytest.raises(ValueError, match="scores must be finite"):
        metric.update([NAN], [1], sample_weight=[0])
    with pytest.raises(ValueError, match="sample_weight must have shape"):
        metric.update([0.5, 0.4], [1, 0], sample_weight=[0])
    metric.reset()
    metric.update([0.5], [1], sample_weight=[0])
    assert metric.compute().isnan()
    metric.reset()
    metric.update([[0.5, 0.4]], [[1, 0]], sample_weight=[0])
    assert metric.compute().isnan().tolist() == [True, True]


def test_the_error_of_another_number_of_tasks_has_the_shape_of_a_tuple():
    metric = AveragePrecision()
    metric.update([0.1, 0.2], [0, 1])
    with pytest.raises(ValueError, match=r"number of rows, \(n,\), got \(2, 3\)"):
        metric.update(torch.rand(2, 3), torch.ones(2, 3))


def test_no_graph_is_kept_and_later_changes_of_a_batch_do_not_matter():
    scores, labels, _ = data()
    metric, mine = AveragePrecision(), scores.clone().requires_grad_()
    metric.update(mine * 1, labels)
    assert not metric.compute().requires_grad
    with torch.no_grad():
        mine.zero_()
    assert torch.equal(metric.compute(), average_precision(scores, labels))
    changed = scores.clone(), labels.clone()
    other = AveragePrecision()
    other.update(*changed)
    for tensor in changed:
        tensor.zero_()
    assert torch.equal(other.compute(), average_precision(scores, labels))


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "has seen no examples"),
        ([{"scores": [1.0, NAN]}], "scores must be finite"),
        ([{"labels": [0, 2]}], "labels must be 0 or 1"),
        ([{"labels": [0]}], "must both have shape"),
        ([{}, {"scores": torch.zeros(2, 3), "labels": torch.ones(2, 3)}], "shape of earlier batches"),
        ([{}, {"sample_weight": [1.0, 2.0]}], "for every batch or for none"),
        ([{"sample_weight": [1.0, 2.0]}, {}], "for every batch or for none"),
    ],
)
def test_errors_name_the_argument(batches, message):
    metric = AveragePrecision()

    def run():
        for batch in batches:
            metric.update(**({"scores": [1.0, 2.0], "labels": [0, 1]} | batch))
        metric.compute()

    with pytest.raises(ValueError, match=message):
        run()


def test_a_refused_batch_is_not_added():
    scores, labels, _ = data()
    metric = updated(AveragePrecision(), scores, labels)
    with pytest.raises(ValueError, match="scores must be finite"):
        metric.update([NAN], [1])
    assert torch.equal(metric.compute(), average_precision(scores, labels))


def test_half_precision_of_the_module_does_not_merge_scores():
    scores, labels = torch.tensor([1.0, 1.0001, 0.5]), torch.tensor([0, 1, 0])
    metric = AveragePrecision()
    metric.update(scores, labels)
    assert metric.half().compute() == 1


def test_the_state_follows_the_module_and_is_not_saved():
    scores, labels, weight = data()
    metric = updated(AveragePrecision(), scores, labels, weight)
    assert not metric.state_dict()
    twin = copy.deepcopy(metric)
    metric.reset()
    assert torch.equal(twin.compute(), average_precision(scores, labels, sample_weight=weight))
    moved = twin.to("meta")
    assert {tensor.device.type for tensor in (*moved._scores, *moved._labels, *moved._weights)} == {"meta"}


# Where each process's examples begin and end; the second setting leaves one process without any.
SHARES = {"uneven": [0, 17, 90], "empty": [0, 90, 90]}


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    found = {}
    for name, bounds in SHARES.items():
        for tasks in (None, 3):
            for weighted in (False, True):
                part = slice(*bounds[rank : rank + 2])
                scores, labels, weight = data(tasks=tasks)
                metric = AveragePrecision()
                weight = weight[part] if weighted else None
                if part.stop > part.start:
                    metric.update(scores[part], labels[part], sample_weight=weight)
                found[name, tasks, weighted] = metric.compute()
    metric = AveragePrecision()
    try:
        metric.compute()
    except ValueError as error:
        found["nothing"] = str(error)
    metric.update([1.0, 2.0] if rank else [[1.0, 2.0]] * 2, [0, 1] if rank else [[0, 1]] * 2)
    try:
        metric.compute()
    except ValueError as error:
        found["tasks differ"] = str(error)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_have_the_value_of_all_examples(tmp_path):
    mp.spawn(work, (str(tmp_path),), nprocs=2)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert "has seen no examples" in found.pop("nothing")
        assert "processes must agree on the number of tasks" in found.pop("tasks differ")
        assert len(found) == 8
        for (_, tasks, weighted), value in found.items():
            scores, labels, weight = data(tasks=tasks)
            expected = average_precision(scores, labels, sample_weight=weight if weighted else None)
            torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)
