"""Summaries of results, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from apmax.reproduce import load_grid
from apmax.reproduce.pages import compare_with_base
from apmax.reproduce.pages.text import missing_runs, paper_findings
from small_experiments import CELL, every_fold, result_lines, summarise, table6, three_cells, tuned_lines


def entry(lines, method, **part):
    return table6(lines, **part).entries[(*CELL, method)]


def test_mean_and_deviation_are_those_of_the_sample():
    found = entry(result_lines(*CELL, "ce", {"fold0": 0.2, "fold1": 0.4, "fold2": 0.6}), "ce")
    assert found.mean_std() == pytest.approx((0.4, 0.2, 3))
    assert found.mean_std("ap") == pytest.approx((0.7, 0.1, 3))


def test_one_run_has_no_deviation():
    assert entry(result_lines(*CELL, "ce", {"fold3": 0.2}), "ce").mean_std() == (0.2, None, 1)


def test_a_method_without_runs_has_no_mean():
    assert entry(result_lines(*CELL, "ce", {"fold3": 0.2}), "soap").mean_std() is None


def test_difference_is_over_the_runs_that_both_have():
    lines = {
        **result_lines(*CELL, "ce", {"fold0": 0.2, "fold1": 0.4, "fold2": 0.6}),
        **result_lines(*CELL, "soap", {"fold1": 0.5, "fold2": 0.9, "fold3": 0.1}),
    }
    paired = entry(lines, "soap").paired["auprc"]
    # Differences 0.1 and 0.3: mean 0.2, deviation 0.2 / √2; t(0.975, 1) = 12.7062.
    assert (paired.difference, paired.low, paired.high) == pytest.approx((0.2, 0.2 - 1.27062, 0.2 + 1.27062), abs=1e-5)
    assert (paired.won, paired.cells) == (2, 2)
    assert entry(lines, "soap").paired["ap"].difference == pytest.approx(0.1)


def test_base_has_no_difference_to_itself():
    assert entry(result_lines(*CELL, "ce", {"fold0": 0.2}), "ce").paired == {}


def test_difference_is_to_cross_entropy_also_where_that_is_not_shown():
    lines = {**result_lines(*CELL, "ce", {"fold0": 0.2}), **result_lines(*CELL, "soap", {"fold0": 0.5})}
    summary = table6(lines, rows=["soap"])
    assert set(summary.entries) == {(*CELL, "soap")}
    assert summary.entries[(*CELL, "soap")].paired["auprc"].difference == pytest.approx(0.3)


def test_item_that_varies_soap_is_compared_with_soap_whatever_the_order_of_its_rows():
    lines = {
        **result_lines("cifar10", "narrow", "soap", {0: 0.7}),
        **result_lines("cifar10", "narrow", "soap_16", {0: 0.6}),
    }
    summary = summarise("batch-size", lines)
    assert summary.base == "soap"
    assert summary.entries["cifar10", "narrow", "soap_16"].paired["auprc"].difference == pytest.approx(-0.1)


def test_diverged_run_is_counted_and_has_no_part_in_the_mean():
    lines = {
        **result_lines(*CELL, "ce", {"fold0": 0.2, "fold1": 0.4}),
        **result_lines(*CELL, "soap", {"fold0": 0.5, "fold1": None}),
    }
    found = entry(lines, "soap")
    assert (found.done, found.diverged, found.total) == (2, 1, 10)
    assert found.mean_std() == (0.5, None, 1)
    assert found.paired["auprc"].cells == 1


# Printed: 0.5037 ± 0.0718, so that two deviations reach from 0.3601 to 0.6473.
@pytest.mark.parametrize(
    ("value", "position"),
    [(0.5037, "within"), (0.6473, "within"), (0.6474, "above"), (0.3601, "within"), (0.36004, "below")],
)
def test_mean_is_set_against_the_paper_by_two_of_its_deviations(value, position):
    assert entry(result_lines(*CELL, "ce", every_fold(value)), "ce").against_paper == position


def test_mean_of_a_part_of_the_runs_is_not_set_against_the_paper():
    assert entry(result_lines(*CELL, "ce", {"fold0": 0.5, "fold1": 0.5}), "ce").against_paper is None


def test_number_equal_to_one_printed_without_deviation_is_within():
    lines = result_lines("tox21-t2", "gine", "fast_ap", dict.fromkeys(range(3), 0.560512))
    summary = summarise("table5", lines)
    assert summary.entries["tox21-t2", "gine", "fast_ap"].printed == (0.5605, 0.0)
    assert summary.entries["tox21-t2", "gine", "fast_ap"].against_paper == "within"


def test_row_that_the_paper_lacks_is_not_set_against_the_paper():
    assert entry(result_lines(*CELL, "apmax", every_fold(0.5)), "apmax").against_paper is None


def test_no_run_stands_in_the_table_until_all_configurations_are_tried():
    found = entry(tuned_lines([0.1, 0.3, 0.2]), "soap", budget="quick")
    assert (found.done, found.tuning) == (0, (3, 40))


def test_the_configuration_of_the_best_validation_stands_in_the_table():
    found = entry(tuned_lines([0.1, 0.3, 0.2, 0.0]), "soap", budget="quick", splits=["fold0"])
    assert found.tuning is None
    assert found.mean_std().mean == pytest.approx(0.8)


def test_smaller_budget_does_not_see_the_other_configurations():
    assert entry(tuned_lines([0.1, 0.3, 0.2, 0.0]), "soap").mean_std().mean == pytest.approx(0.6)


def test_only_the_selected_splits_and_seeds_count():
    lines = result_lines(*CELL, "ce", {"fold0": 0.2, "fold1": 0.4, "fold2": 0.6})
    assert entry(lines, "ce", splits=["fold1", "fold4"]).mean_std().mean == 0.4
    assert entry(lines, "ce", splits=["fold1", "fold4"]).total == 2
    assert entry(lines, "ce", seeds=2).total == 20


def test_unknown_split_raises():
    with pytest.raises(ValueError, match="split must be one of those of aicures"):
        table6({}, splits=["fold10"])


def test_score_counts_cells_and_intervals():
    summary = summarise("table6", three_cells())
    (score,) = compare_with_base(summary.entries, "ce")
    assert (score.method, score.cells, score.unfinished) == ("soap", 3, 2)
    assert (score.above, score.surely_above, score.surely_below) == (2, 1, 0)
    assert (score.printed, score.printed_above) == (3, 3)


def test_cell_with_a_diverged_run_is_finished():
    lines = {
        **result_lines(*CELL, "ce", {f"fold{k}": 0.1 for k in range(10)}),
        **result_lines(*CELL, "soap", {f"fold{k}": 0.2 if k else None for k in range(10)}),
    }
    (score,) = compare_with_base(table6(lines).entries, "ce")
    assert (score.cells, score.unfinished) == (1, 0)


def test_paper_findings_count_finished_rows():
    lines = {
        **result_lines(*CELL, "ce", every_fold(0.5)),
        **result_lines(*CELL, "soap", every_fold(0.9)),
        **result_lines(*CELL, "minmax", every_fold(0.1)),
        **result_lines(*CELL, "ldam", every_fold(0.1)),
        **result_lines(*CELL, "apmax", every_fold(0.1)),
        **result_lines(*CELL, "focal", {"fold0": 0.5}),
    }
    assert paper_findings(load_grid(), table6(lines).entries.values()) == [
        "Means of finished rows that the paper has too: 4; within two of its standard deviations 1 (AICURES: 1), "
        "above 1 (AICURES: 1), below 2 (AICURES: 2)."
    ]


def test_a_printed_number_beside_two_data_sets_is_counted_once():
    lines = {}
    for data, prefix in (("aicures", "fold"), ("aicures-random", "random")):
        for method, value in (("ce", 0.4), ("soap", 0.5)):
            lines |= result_lines(data, "gine", method, {f"{prefix}{k}": value for k in range(10)})
    cells = [("aicures", "gine"), ("aicures-random", "gine")]
    summary = summarise("table6", lines, cells=cells)
    (soap,) = (score for score in compare_with_base(summary.entries, "ce") if score.method == "soap")
    assert (soap.cells, soap.printed, soap.printed_above) == (2, 1, 1)
    assert paper_findings(load_grid(), summary.entries.values())[0].startswith(
        "Means of finished rows that the paper has too: 2;"
    )
    assert all(summary.entries[data, "gine", "ce"].printed for data in ("aicures", "aicures-random"))


def test_missing_runs_are_named():
    summary = table6(result_lines(*CELL, "ce", {"fold0": 0.2}), rows=["ce", "soap", "apmax"])
    assert missing_runs(summary) == [
        "AICURES, GINE: 1 of 10 runs of CE — no run of SOAP; apmax (default recipe)",
    ]


def test_results_of_data_that_the_grid_no_longer_has_are_left_alone():
    line = next(iter(result_lines(*CELL, "ce", {"fold0": 0.2}).values()))
    summary = table6({"gone": {**line, "key": "gone", "data": "no-such-data"}})
    assert summary.counts[0] == 0
