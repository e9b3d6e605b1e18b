"""The number of runs that a comparison needs, and folds that are ranked as one list, against independent formulas."""

from __future__ import annotations

import gzip
from statistics import stdev

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import average_precision_score

from apmax.reproduce import Workspace, load_grid
from apmax.reproduce.pages import cell_powers, pooled_methods, pooled_table, power_table
from apmax.reproduce.pages.power import pool_folds, runs_needed
from apmax.reproduce.run import _write_scores, decode_scores, encode_scores, fold_scores
from small_experiments import CELL, every_fold, result_lines, summarise, table6, three_cells, trial, tuned_lines

FOLDS = [f"fold{k}" for k in range(10)]


def power_of_t_test(runs, spread, difference):
    """Return the probability that a two-sided paired t-test at 5 % finds the difference (noncentral t)."""
    limit, shift = stats.t.ppf(0.975, runs - 1), difference / spread * runs**0.5
    return stats.nct.sf(limit, runs - 1, shift) + stats.nct.cdf(-limit, runs - 1, shift)


@pytest.mark.parametrize(("spread", "difference"), [(0.01, 0.01), (0.02, 0.01), (0.05, 0.01), (0.1, 0.03)])
def test_power_is_four_in_five_at_the_number_of_runs(spread, difference):
    runs = runs_needed(spread, difference)
    assert power_of_t_test(runs + 1, spread, difference) > 0.8
    assert power_of_t_test(runs - 2, spread, difference) < 0.8


@settings(deadline=None, max_examples=25)
@given(st.floats(0, 0.2), st.floats(1e-3, 0.1))
def test_smaller_spread_never_needs_more_runs(spread, more):
    assert 2 <= runs_needed(spread) <= runs_needed(spread + more)


def test_spread_is_that_of_the_paired_differences():
    summary = summarise("table6", three_cells(), rows=["ce", "soap"])
    (power,) = cell_powers(summary.entries, "ce")
    assert power.cell == ("aicures", "gine"), "the other cells have fewer than three pairs"
    assert power.pairs == 10
    assert power.positives == (4, 4)
    assert power.spreads == {"soap": pytest.approx(stdev(0.001 * k for k in range(10)))}
    table = power_table(load_grid(), [power], "ce")
    fields = dict(zip(table.columns, (field.text for field in table.rows[0].fields), strict=False))
    assert fields["Cell"] == "AICURES, GINE"
    assert fields["spread of SOAP − CE"] == "0.0030"
    assert [field.text for field in table.rows[0].fields][4] == str(runs_needed(power.spreads["soap"]))


def fold_line(method, fold, scores, labels, *, location=0.0, scale=1.0, **more):
    number = FOLDS.index(fold)
    run = trial("aicures", "gine", method, fold, number)
    return {
        "key": run.key,
        **run.coordinates,
        "location": location,
        "scale": scale,
        "labels": "".join(str(int(label)) for label in labels),
        "scores": encode_scores(scores),
    } | more


def fold_lines(method, seed):
    """Return lines of ten folds on different scales, and the scores and labels on the common scale."""
    generator, lines, scores, labels = np.random.default_rng(seed), {}, [], []
    for number, fold in enumerate(FOLDS):
        own = generator.standard_normal(20).astype(np.float32).astype(np.float64)
        truth = np.random.default_rng(number).random(20) < 0.2
        line = fold_line(method, fold, own * (number + 1) - number, truth, location=-number, scale=number + 1)
        lines[line["key"]] = line
        scores.append(own)
        labels.append(truth)
    return lines, np.concatenate(scores), np.concatenate(labels)


def pooled(scores, lines=None):
    """Return the pooled methods of test scores, by default of runs with published settings in all folds."""
    published = {method: result_lines(*CELL, method, every_fold(0.4)) for method in ("ce", "soap")}
    summary = table6(published["ce"] | published["soap"] if lines is None else lines)
    return pooled_methods(load_grid(), summary.entries, scores, "ce")


def test_folds_are_ranked_on_the_scale_of_their_validation_scores():
    ce, ce_scores, labels = fold_lines("ce", 1)
    soap, soap_scores, _ = fold_lines("soap", 2)
    first, second = pooled(ce | soap)
    assert (first.method, first.difference, first.rows, first.positives) == ("ce", {}, 200, labels.sum())
    base, other = (average_precision_score(labels, scores) for scores in (ce_scores, soap_scores))
    assert first.ap["validation"].estimate == pytest.approx(base, abs=1e-6)
    assert second.difference["validation"].estimate == pytest.approx(other - base, abs=1e-6)
    table = pooled_table(load_grid(), [first, second], "ce")
    assert [row.fields[0].text for row in table.rows] == ["CE", "SOAP"]
    assert table.rows[1].fields[5].text.startswith(f"{other - base:+.4f}".replace("-", "−"))


def test_folds_can_be_aligned_by_their_test_rows():
    ce, scores, labels = fold_lines("ce", 1)
    (found,) = pooled(ce)
    folds = scores.reshape(10, 20)
    aligned = (folds - folds.mean(1, keepdims=True)) / folds.std(1, keepdims=True)
    assert found.ap["test"].estimate == pytest.approx(average_precision_score(labels, aligned.ravel()), abs=1e-6)
    with pytest.raises(ValueError, match="align must be one of"):
        pool_folds(list(ce.values()), "train")


def test_methods_with_missing_folds_scores_or_other_runs_are_not_pooled():
    scores, *_ = fold_lines("ce", 1)
    assert len(pooled(scores)) == 1
    assert pooled(dict(list(scores.items())[1:])) == []
    runs = result_lines(*CELL, "ce", every_fold(0.4))
    assert len(pooled(scores, runs)) == 1
    assert pooled(scores, dict(list(runs.items())[1:])) == []


def test_the_chosen_configurations_of_tuned_methods_are_pooled():
    lines = {}
    for method in ("ce", "soap"):
        lines |= tuned_lines([0.1, 0.3, 0.2, 0.0], method, FOLDS)
    scores = {}
    for key, line in lines.items():
        # Only the second configuration ranks its positives first.
        truth = np.arange(20) < 2
        own = truth.astype(float) if line["candidate"] == 1 else np.arange(20.0)
        scores[key] = fold_line(line["method"], line["split"], own, truth) | {"key": key}
    tuned = table6(lines, budget="quick").entries
    found = pooled_methods(load_grid(), tuned, scores, "ce")
    assert [(each.method, each.ap["validation"].estimate) for each in found] == [("ce", 1.0), ("soap", 1.0)]


def test_constant_validation_scores_are_only_shifted():
    line = fold_line("ce", "fold0", np.array([3.0, 4.0]), [0, 1], location=3.0, scale=0.0)
    assert pool_folds([line])[0].tolist() == [0.0, 1.0]


def test_scores_are_stored_with_32_bits():
    scores = np.random.default_rng(0).standard_normal(1000)
    assert np.array_equal(decode_scores(encode_scores(scores)), scores.astype(np.float32))


def test_runs_of_folds_keep_their_test_scores(tmp_path):
    pytest.importorskip("rdkit")
    folder = tmp_path / "data" / "aicures"
    folder.mkdir(parents=True)
    with gzip.open(folder / "pseudomonas.csv.gz", "wt") as file:
        file.write("smiles,activity\n" + "".join(f"{'C' * (k + 1)}O,{int(k % 3 == 0)}\n" for k in range(12)))
    np.savez(folder / "split_official_cv_fold0.npz", train=np.arange(6), valid=np.arange(6, 9), test=np.arange(9, 12))
    run, workspace = trial(split="fold0"), Workspace(tmp_path / "work", tmp_path / "data", {"commit": "abc"})
    _write_scores(workspace.run_folder(run), {"valid": torch.tensor([1.0, 2.0, 6.0]), "test": torch.arange(3.0)})
    line = fold_scores(run, workspace)
    assert line["labels"] == "100"
    assert decode_scores(line["scores"]).tolist() == [0.0, 1.0, 2.0]
    assert line["location"] == 3.0
    assert line["scale"] == pytest.approx(np.std([1, 2, 6]), abs=1e-6)
    assert line["key"] == run.key
    assert line["commit"] == "abc"


def test_runs_without_folds_keep_no_test_scores(tmp_path):
    assert fold_scores(trial("hiv", split="scaffold122"), Workspace(tmp_path, None, {})) is None
