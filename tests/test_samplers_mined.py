"""Mined negatives: the sampler's contracts, and the stage `ce_mined`."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from apmax.estimator import APClassifier
from apmax.samplers import MinedBatchSampler, PositiveBatchSampler
from apmax.train import (
    Checkpoints,
    Optimizer,
    Run,
    Sampler,
    Stage,
    mined_stage,
    predict,
    run_from_toml,
    run_to_table,
)
from apmax.train.stage import build_loss, build_sampler
from apmax.workflows.overrides import Overrides, override_run
from small_training import TRAIN, VALID, StoppingNetwork, interrupt, network, run_of, same, train, weights

LABELS = TRAIN.tensors[1]


@st.composite
def cases(draw):
    num_pos = draw(st.integers(1, 4))
    positives, negatives = draw(st.integers(num_pos, 9)), draw(st.integers(4, 60))
    labels = np.random.default_rng(draw(st.integers(0, 5))).permutation([1] * positives + [0] * negatives)
    options = {
        "batch_size": num_pos + draw(st.integers(1, 9)),
        "num_pos": num_pos,
        "hard": draw(st.sampled_from([0.01, 0.25, 0.7, 1.0])),
        "rounds": draw(st.integers(1, 7)),
        "pool": draw(st.sampled_from([1, 20, 1000])),
    }
    return labels, options, draw(st.lists(st.integers(-3, 3), min_size=len(labels), max_size=len(labels)))


def rounds_of(sampler, scores, epoch=0):
    """Return (pool, mined rows, batches) of each round of an epoch."""
    found, batch = [], 0
    while batch < len(sampler):
        assert sampler.starts_round(batch)
        pool = sampler.pool_rows(epoch, batch)
        sampler.mine(pool, torch.tensor(scores, dtype=torch.float32)[pool])
        sampler.set_position(epoch, batch)
        batches = list(sampler)
        found.append((pool.tolist(), sampler.mined.tolist(), batches))
        batch += len(batches)
    return found


@settings(max_examples=40)
@given(cases())
def test_a_round_draws_the_highest_scored_negatives_of_its_pool_equally_often(case):
    labels, options, scores = case
    sampler = MinedBatchSampler(labels, **options)
    found = rounds_of(sampler, scores, epoch=2)
    assert len(found) == min(options["rounds"], len(sampler))
    for pool, mined, batches in found:
        room = options["batch_size"] - options["num_pos"]
        negatives = int((labels == 0).sum())
        assert len(set(pool)) == len(pool) == min(negatives, max(options["pool"], room))
        assert not labels[pool].any()
        count = min(len(pool), max(room, int(np.ceil(options["hard"] * len(pool)))))
        assert mined == sorted(sorted(pool, key=lambda row: (-scores[row], row))[:count])
        drawn = Counter()
        for batch in batches:
            assert len(set(batch)) == len(batch) == options["num_pos"] + min(room, count)
            assert [int(labels[row]) for row in batch[: options["num_pos"]]] == [1] * options["num_pos"]
            drawn.update(batch[options["num_pos"] :])
        assert set(drawn) <= set(mined)
        assert max(drawn.values()) - min(drawn[row] for row in mined) <= 1


@settings(max_examples=40)
@given(cases())
def test_epochs_have_the_batches_and_the_positives_of_the_positive_sampler(case):
    labels, options, scores = case
    sampler = MinedBatchSampler(labels, **options)
    plain = PositiveBatchSampler(labels, options["batch_size"], num_pos=options["num_pos"])
    plain.set_epoch(1)
    batches = [batch for _, _, part in rounds_of(sampler, scores, epoch=1) for batch in part]
    positives = [batch[: options["num_pos"]] for batch in batches]
    assert positives == [batch[: options["num_pos"]] for batch in plain]


@settings(max_examples=40)
@given(cases(), st.data())
def test_a_round_can_be_entered_at_any_batch_with_its_mined_rows(case, data):
    labels, options, scores = case
    sampler, other = (MinedBatchSampler(labels, **options) for _ in range(2))
    found = rounds_of(sampler, scores)
    number = data.draw(st.integers(0, len(found) - 1))
    start = sum(len(batches) for _, _, batches in found[:number])
    skipped = data.draw(st.integers(0, len(found[number][2]) - 1))
    other.mined = torch.tensor(found[number][1])
    other.set_position(0, start + skipped)
    assert list(other) == found[number][2][skipped:]


def test_processes_share_the_same_joined_batches():
    labels, scores = [1] * 6 + [0] * 40, list(range(46))
    options = {"batch_size": 9, "num_pos": 3, "hard": 0.5, "rounds": 3}
    whole = rounds_of(MinedBatchSampler(labels, **options), scores)
    parts = [rounds_of(MinedBatchSampler(labels, **options, rank=rank, world_size=2), scores) for rank in range(2)]
    for (_, _, batches), (_, _, first), (_, _, second) in zip(whole, *parts, strict=True):
        assert [batch[0::2] for batch in batches] == first
        assert [batch[1::2] for batch in batches] == second


def test_pools_differ_between_rounds_and_epochs():
    sampler = MinedBatchSampler([1] * 4 + [0] * 500, 32, pool=50)
    pools = [sampler.pool_rows(epoch, batch).tolist() for epoch in (0, 1) for batch in (0, 4)]
    assert len({tuple(pool) for pool in pools}) == 4


def test_iterating_before_mining_and_scores_of_another_length_are_errors():
    sampler = MinedBatchSampler([1, 0, 0, 0], 2, num_pos=1)
    with pytest.raises(ValueError, match="call mine"):
        list(sampler)
    with pytest.raises(ValueError, match="one per row"):
        sampler.mine(sampler.pool_rows(0, 0), torch.zeros(2))
    assert sampler.mined is None


class Recorded(Dataset):
    """The training data, with the rows that were read."""

    labels = LABELS

    def __init__(self):
        self.read = []

    def __len__(self):
        return len(LABELS)

    def __getitem__(self, row):
        self.read.append(row)
        return TRAIN.tensors[0][row], LABELS[row]


def stage_of(**fields):
    sampler = Sampler(name="mined", batch_size=32, num_pos=4, **fields.pop("mining", {}))
    return Stage(loss="ce", sampler=sampler, optimizer=Optimizer(lr=0.05), **{"epochs": 1, **fields})


def test_training_reads_the_negatives_that_the_model_scores_highest():
    model, data = network(), Recorded()
    scores = predict(model, TRAIN)
    train(model, run_of(stage_of(mining={"rounds": 1, "hard": 0.2})), data=(data, VALID))
    negatives = [row for row in range(len(LABELS)) if LABELS[row] == 0]
    hardest = sorted(negatives, key=lambda row: -scores[row])[: int(np.ceil(0.2 * len(negatives)))]
    assert data.read[: len(negatives)] == negatives
    trained = data.read[len(negatives) :]
    assert {row for row in trained if LABELS[row] == 0} == set(hardest)


def test_negatives_are_scored_again_before_every_round_by_the_weights_in_training():
    data = Recorded()
    train(network(), run_of(stage_of(mining={"rounds": 3}, epochs=2)), data=(data, VALID))
    negatives = [row for row in range(len(LABELS)) if LABELS[row] == 0]
    passes = sum(data.read[start : start + len(negatives)] == negatives for start in range(len(data.read)))
    assert passes == 6


def test_scoring_negatives_leaves_the_layers_in_training_mode_and_frozen_ones_frozen():
    model = network(norm=True)
    modes = []
    model[1].register_forward_pre_hook(lambda module, _: modes.append(module.training))
    model[0].register_forward_pre_hook(lambda module, _: modes.append(module.training))
    train(model, run_of(stage_of(freeze=("0",))))
    assert set(modes[0::2]) == {False}
    assert set(modes[1::2]) == {False, True}


def test_the_loss_takes_the_batch_as_it_is():
    scores, labels = torch.tensor([0.3, -1.0, 2.0]), torch.tensor([1.0, 0.0, 0.0])
    loss = build_loss(stage_of(), LABELS)
    rows = torch.tensor([int(LABELS.argmax()), *(LABELS == 0).nonzero()[:2, 0].tolist()])
    expected = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)
    torch.testing.assert_close(loss(scores, labels, rows), expected)


def stages_to_resume():
    first = Stage(epochs=1, sampler=Sampler(batch_size=64), ema=0.9)
    return (first, stage_of(epochs=2, mining={"rounds": 3, "hard": 0.3, "pool": 100}))


def test_interrupted_at_any_step_a_run_with_mined_negatives_resumes_bit_for_bit(tmp_path):
    run = Run(stages=stages_to_resume(), accelerator="cpu", checkpoints=Checkpoints(every_steps=1))
    whole = StoppingNetwork()
    records = train(whole, run)
    assert records[-1].step == 4 + 2 * 7
    # Two epochs of seven steps, with rounds of two, two and three: every place in a round, and the end of an epoch.
    for step in (5, 6, 7, 8, 11, 12, 18):
        with pytest.raises(KeyboardInterrupt):
            train(StoppingNetwork(step, interrupt), run, directory=tmp_path / str(step))
        again = StoppingNetwork()
        train(again, run, directory=tmp_path / str(step), resume=True)
        assert same(weights(again), weights(whole)), step


def test_options_of_mining_belong_to_its_sampler():
    with pytest.raises(ValueError, match="belongs to the sampler 'mined'"):
        Sampler(name="positive", hard=0.1)
    with pytest.raises(ValueError, match=r"sampler\.hard"):
        Sampler(name="mined", hard=0.0)
    with pytest.raises(ValueError, match=r"sampler\.rounds"):
        Sampler(name="mined", rounds=0)
    run = run_from_toml("recipe = 'ce_mined'\nrecipe_options = { hard = 0.1, epochs = 2 }")
    assert (run.stages[1].sampler.hard, run.stages[1].sampler.rounds) == (0.1, 4)


def test_several_tasks_are_refused():
    with pytest.raises(ValueError, match="one task"):
        build_sampler(Sampler(name="mined"), torch.zeros(4, 2), seed=0, rank=0, world_size=1)


def table_of(*stages):
    return run_to_table(Run(stages=stages))


def test_the_command_lines_loss_ce_mined_replaces_loss_and_sampler_of_the_last_stage():
    joint = Stage(loss={"ap": 1.0, "ce": 1.0}, sampler=Sampler(name="positive", batch_size=32, num_pos=4), epochs=3)
    overrides = Overrides(loss="ce_mined", num_pos=2, settings={"stages.1.hard": 0.5})
    table = override_run(table_of(Stage(epochs=2), joint), overrides)
    stage = Stage(**{key: value for key, value in table["stage"][1].items() if key != "kind"})
    expected = mined_stage(Stage(sampler=Sampler(name="positive", batch_size=32, num_pos=2), epochs=3), hard=0.5)
    assert stage == expected


def test_ce_mined_is_no_part_of_a_sum():
    with pytest.raises(ValueError, match="part of a sum"):
        override_run(table_of(Stage(), Stage()), Overrides(loss="ap+ce_mined"))


def test_the_classifier_trains_with_ce_mined():
    inputs, labels = TRAIN.tensors[0].numpy(), LABELS.numpy()
    model = APClassifier(solver="adam", loss="ce_mined", hidden=(4,), epochs=3, random_state=0).fit(inputs, labels)
    assert [record.stage for record in model.records_][-1] == "ce_mined"
