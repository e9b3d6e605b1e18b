"""The figures that `apmax evaluate` reports, and how they are written."""

from __future__ import annotations

import numpy as np
import pytest

from apmax.workflows.evaluation import evaluate


def sample(rows=300, shift=1.0, seed=0):
    generator = np.random.default_rng(seed)
    labels = (generator.random(rows) < 0.2).astype(int)
    return np.round(generator.normal(size=rows) + shift * labels, 1), labels


@pytest.mark.parametrize("scores", [[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
def test_a_perfect_or_reversed_ranking_of_few_rows_has_a_wide_interval(scores):
    result = evaluate(np.array(scores), np.array([1, 1, 0, 0]))
    assert result.auroc.estimate in (result.auroc.low, result.auroc.high)
    assert result.auroc.high - result.auroc.low > 0.5


def test_precision_is_reported_at_the_number_of_positives_and_at_no_k_beyond_the_rows():
    scores, labels = sample(60)
    assert list(evaluate(scores, labels).precision_at) == sorted({10, 50, int(labels.sum())})


def test_figures_without_negatives_are_null_in_json():
    table = evaluate(np.array([0.1, 0.2]), np.array([1, 1])).to_table()
    assert table["auroc"]["estimate"] is None
    assert table["ap"]["estimate"] == 1.0
