"""Contracts of the sampler of several tasks."""

from collections import Counter

import numpy as np
import pytest

from apmax.samplers import MultiTaskBatchSampler

NAN = float("nan")


def make_table(tasks=3, rows=60, missing=0.3, seed=0):
    rng = np.random.default_rng(seed)
    table = (rng.random((rows, tasks)) < 0.3).astype(float)
    table[rng.random((rows, tasks)) < missing] = NAN
    return table


def test_tasks_take_turns_on_through_the_epochs():
    table = make_table()
    sampler = MultiTaskBatchSampler(table, 8, num_pos=3)
    assert len(sampler) % 3 != 0, "the turn has to carry over from one epoch to the next"
    batches = [batch for _ in range(4) for batch in sampler]
    for number, batch in enumerate(batches):
        labels = table[batch, number % 3]
        assert labels.tolist() == [1] * 3 + [0] * 5


def test_an_epoch_has_as_many_rows_as_are_measured():
    table = make_table()
    table[:7] = NAN
    sampler = MultiTaskBatchSampler(table, 8, num_pos=3)
    assert len(sampler) == len(list(sampler)) == -(-int((~np.isnan(table)).any(1).sum()) // 8)


def test_no_row_comes_twice_in_a_batch_of_a_task():
    sampler = MultiTaskBatchSampler(make_table(rows=40), 24, num_pos=5)
    for _ in range(10):
        for batch in sampler:
            assert len(set(batch)) == len(batch)


def test_each_task_serves_its_rows_equally_often_over_the_run():
    table = make_table()
    sampler = MultiTaskBatchSampler(table, 8, num_pos=3)
    batches = [batch for _ in range(25) for batch in sampler]
    for task in range(3):
        counts = Counter(row for batch in batches[task::3] for row in batch)
        for label in (0, 1):
            served = [counts[row] for row in np.flatnonzero(table[:, task] == label)]
            assert max(served) - min(served) <= 1


def test_a_task_without_both_classes_is_skipped_and_named():
    table = make_table(tasks=4)
    table[table[:, 1] == 1, 1] = 0
    table[table[:, 3] == 0, 3] = NAN
    with pytest.warns(UserWarning, match=r"skips 2 of 4 tasks.*1, 3"):
        sampler = MultiTaskBatchSampler(table, 8, num_pos=3)
    assert sampler.tasks == [0, 2]
    for number, batch in enumerate(sampler):
        assert table[batch, sampler.tasks[number % 2]].tolist() == [1] * 3 + [0] * 5


def test_no_task_with_both_classes_is_an_error():
    with pytest.raises(ValueError, match=r"none of 2 task"):
        MultiTaskBatchSampler([[1, NAN], [1, 0]], 4, num_pos=1)


def test_a_task_short_of_positives_gives_all_it_has():
    table = np.zeros((20, 2))
    table[:2, 0] = table[:9, 1] = 1
    scarce, rich = list(MultiTaskBatchSampler(table, 10, num_pos=4))[:2]
    assert table[scarce, 0].tolist() == [1] * 2 + [0] * 8
    assert table[rich, 1].tolist() == [1] * 4 + [0] * 6


def test_ranks_and_positions_of_several_tasks_agree_with_the_joined_run():
    table = make_table()
    whole = MultiTaskBatchSampler(table, 9, num_pos=3, seed=2)
    whole.set_epoch(5)
    joined = list(whole)
    for rank in range(2):
        share = MultiTaskBatchSampler(table, 9, num_pos=3, seed=2, rank=rank, world_size=2)
        share.set_position(5, 2)
        assert list(share) == [batch[rank::2] for batch in joined[2:]]


def test_batches_of_a_task_too_small_for_all_ranks_are_an_error():
    with pytest.raises(ValueError, match=r"task 0 has batches of 2 row.*world_size=3"):
        MultiTaskBatchSampler([[1, 0], [0, 1], [NAN, 1], [NAN, 0]], 4, num_pos=1, world_size=3)
