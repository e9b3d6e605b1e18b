"""Test AUPRC by choice of the epoch, beside the paper's numbers."""

from __future__ import annotations

import pytest

from apmax.reproduce import load_grid, load_paper_tables
from apmax.reproduce.pages import epoch_choice_findings, epoch_choice_table, epoch_choices

GRID, PAPER = load_grid(), load_paper_tables()


def check(data, model, seed, **values):
    epochs = {name: {"epoch": 1, "auprc": value} for name, value in values.items()}
    return {"data": data, "model": model, "method": "ce", "seed": seed, **epochs}


def released(seed, test, best):
    return {
        "data": "hiv",
        "model": "mpnn",
        "method": "soap_released",
        "seed": seed,
        "test": {"auprc": test},
        "best_test": {"epoch": 3, "auprc": best},
    }


def table_rows(checks, results=()):
    table = epoch_choice_table(GRID, epoch_choices(GRID, checks, results, PAPER))
    return [tuple(field.text for field in row.fields) for row in table.rows]


def test_each_cell_has_the_means_over_its_runs():
    checks = [check("hiv", "gine", 0, chosen=0.25, best=0.5, last=0.125)]
    checks += [check("hiv", "gine", 1, chosen=0.75, best=1.0, last=0.375)]
    assert table_rows(checks) == [("HIV, GINE", "CE", "2", "0.5000", "0.2500", "0.7500", "0.2774 ± 0.0101")]


def test_a_choice_that_a_run_lacks_has_no_mean():
    checks = [
        check("hiv", "gine", 0, chosen=0.25, best=0.5, last=0.125),
        check("hiv", "gine", 1, chosen=0.75, best=1.0),
        check("hiv", "mpnn", 0, chosen=0.25, best=0.5, last=0.125),
    ]
    assert [row[3:6] for row in table_rows(checks)] == [("0.5000", "—", "0.7500"), ("0.2500", "0.1250", "0.5000")]


def test_a_choice_that_no_cell_has_is_not_in_the_table():
    checks = [check("hiv", "gine", 0, chosen=0.25, best=0.5)]
    table = epoch_choice_table(GRID, epoch_choices(GRID, checks, [], PAPER))
    assert table.columns[3:] == ("epoch by validation", "best epoch by the test part", "Paper")


def test_released_code_stands_beside_the_papers_soap():
    label = GRID.methods["soap_released"].label
    rows = table_rows([], [released(0, 0.2, 0.3), released(1, 0.3, 0.5), {**released(2, 1.0, 1.0), "method": "soap"}])
    assert rows == [("HIV, MPNN", label, "2", "0.2500", "0.4000", "0.3401 ± 0.0045")]


def test_of_two_numbers_in_the_paper_the_table_of_methods_counts():
    (choice,) = epoch_choices(GRID, [], [{**released(0, 0.1, 0.2), "model": "gine"}], PAPER)
    assert choice.printed.mean == 0.3385
    assert PAPER["surrogates"].values["hiv", "gine", "soap"].mean == 0.3485


def test_cells_that_the_paper_lacks_have_no_number_and_are_not_counted():
    checks = [check("ham10000-df", "narrow", 0, chosen=0.25, best=0.5)]
    assert table_rows(checks)[0][-1] == "—"
    assert epoch_choice_findings(GRID, epoch_choices(GRID, checks, [], PAPER)) == []


@pytest.mark.parametrize(
    ("chosen", "best", "counts"),
    [
        # The paper has 0.2774 ± 0.0101.
        (0.2571, 0.2977, ("0", "above in 0, below in 1", "0", "above in 1, below in 0")),
        (0.2572, 0.2976, ("1", "above in 0, below in 0", "1", "above in 0, below in 0")),
    ],
)
def test_findings_count_the_cells_beside_the_papers(chosen, best, counts):
    checks = [check("hiv", "gine", 0, chosen=chosen, best=best)]
    assert epoch_choice_findings(GRID, epoch_choices(GRID, checks, [], PAPER)) == [
        "CE: of 1 cell that the paper has, the mean is within two of its standard deviations in {} at the epoch by "
        "validation ({}), and in {} at the best epoch by the test part ({}).".format(*counts)
    ]
