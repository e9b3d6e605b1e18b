"""The page of results and the README's summary have the numbers of `results/results.jsonl`, recomputed by loops."""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import pytest
from scipy import stats
from tools.write_results import (
    EPOCHS,
    LIBAUC,
    PAGE,
    README,
    RESULTS,
    outcome_parts,
    read_peer_runs,
    readme_block,
    results_page,
    summarise_results,
)

from apmax.reproduce import Results, load_grid
from apmax.reproduce.grid import candidate_settings
from apmax.reproduce.pages import replace_block
from apmax.reproduce.results import read_lines
from small_experiments import CELL, partial_table6, result_lines, three_cells, tuned_lines

ROOT = Path(__file__).parent.parent
NUMBER = r"[+−]?\d\.\d{4}"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
COUNT = int(re.search(r"\(([\d,]+) results?\)", TEXT).group(1).replace(",", ""))
"""The number of results on the page: while experiments run, the file has more."""


@pytest.fixture(scope="module")
def results():
    return Results(ROOT / "results")


@pytest.fixture(scope="module")
def metrics_of_runs(results):
    """Return for each budget {(data label, network label, method label): {(split, seed): test metrics}}.

    Of the configurations of a budget validation AP chooses one for each split, at its first seed.
    """
    grid, runs = load_grid(), defaultdict(dict)
    for line in list(results.lines.values())[:COUNT]:
        # The members of an ensemble have other seeds; a line with tuned settings has the number of its configuration.
        if line["seed"] < 1000 and (line["candidate"] > 0 or not line["settings"]):
            place = (line["data"], line["model"], line["method"], line["split"])
            runs[place][line["candidate"], line["seed"]] = line
    found = {}
    for budget, count in grid.budgets.items():
        found[budget] = defaultdict(dict)
        for (data, model, method, split), lines in runs.items():
            number = len(candidate_settings(grid, data, model, method, count))
            first = min(seed for _, seed in lines)
            tried = {
                candidate: line for (candidate, seed), line in lines.items() if seed == first and candidate < number
            }
            if len(tried) < number:
                continue
            # Of equal ones the first configuration, whatever the order in which they were run.
            best = max(
                sorted(tried), key=lambda candidate, tried=tried: (tried[candidate]["valid"] or {"ap": -1})["ap"]
            )
            labels = (grid.data[data].label, grid.models[model].label, grid.methods[method].label)
            found[budget][labels] |= {
                (split, seed): line["test"]
                for (candidate, seed), line in lines.items()
                if candidate == best and line["test"] is not None
            }
    return found


def tables_of_cells():
    """Return {(item, data label, network label): rows}, a row being {column: text}, of the tables of one cell."""
    grid, found = load_grid(), defaultdict(list)
    cells = {
        f"{data.label}, {model.label}": (data.label, model.label)
        for data in grid.data.values()
        for model in grid.models.values()
    }
    item = cell = columns = None
    for line in TEXT.splitlines():
        if line.startswith("## "):
            item, cell = line[3:], None
        for label, both in cells.items():
            if f"<summary>{label}: " in line or line == f"**{label}**":
                cell, columns = both, None
        if not line:
            columns = None  # a table ends at an empty line
        elif cell and line.startswith("| Method | Runs |"):
            columns = [each.strip() for each in line.strip("|").split("|")]
        elif cell and columns and line.startswith("| ") and not line.startswith(("|---", "| *ours*")):
            fields = [each.strip() for each in line.strip("|").split("|")]
            found[(item, *cell)].append(dict(zip(columns, fields, strict=True)))
    return found


TABLES = tables_of_cells()


def numbers(text):
    return [float(each.replace("−", "-")) for each in re.findall(NUMBER, text)]


def test_the_page_has_tables_to_check():
    assert len(TABLES) > 20
    assert sum(map(len, TABLES.values())) > 150


@pytest.mark.parametrize("cell", TABLES, ids=lambda cell: f"{cell[0].split(':')[0]}-{cell[1]}-{cell[2]}")
def test_rows_of_a_table_are_those_of_the_results(cell, metrics_of_runs):
    budget = next((name for name in metrics_of_runs if cell[0].endswith(f"({name} budget)")), "published")
    for row in TABLES[cell]:
        check_row(row, cell, metrics_of_runs[budget])


def check_row(row, cell, metrics_of_runs):
    own = metrics_of_runs.get((*cell[1:], row["Method"]), {})
    # An item with one row has no base.
    base = next((re.search(r"− (.+) \(95 %\)", name).group(1) for name in row if "95 %" in name), None)
    other = metrics_of_runs.get((*cell[1:], base), {})
    for metric, name in (("auprc", "AUPRC"), ("ap", "AP")):
        values = [test[metric] for test in own.values()]
        expected = [] if not values else [mean(values)] if len(values) == 1 else [mean(values), stdev(values)]
        assert numbers(row[name]) == pytest.approx(expected, abs=6e-5), row
        if base is None:
            continue
        pairs = [(own[replicate][metric], other[replicate][metric]) for replicate in own if replicate in other]
        text = row[f"{name} − {base} (95 %)"]
        if row["Method"] == base or not pairs:
            assert text == "", row
            continue
        differences = [a - b for a, b in pairs]
        expected = [mean(differences)]
        if len(pairs) > 1:
            expected += stats.t.interval(0.95, len(pairs) - 1, mean(differences), stats.sem(differences))
        assert numbers(text) == pytest.approx(expected, abs=6e-5), row
        if metric == "auprc":
            equal = sum(d == 0 for d in differences)
            won = f"{sum(d > 0 for d in differences)} of {len(pairs)}"
            assert row["Won"] == (f"{won}, equal in {equal}" if equal else won), row


def without_resampled_intervals(page):
    """Return the page without the intervals of the pooled folds: other versions of NumPy draw other resamples."""
    before, title, rest = page.partition("## AICURES: the test rows of all folds as one list")
    section, mark, after = rest.partition("\n## ")
    return before + title + re.sub(r"\([+−]?[\d.]+ to [+−]?[\d.]+\)", "(…)", section) + mark + after


@pytest.mark.slow
def test_pages_are_made_from_the_results_alone(results):
    lines = dict(list(results.lines.items())[:COUNT])
    found, histories = summarise_results(lines), results.histories()
    readme = (ROOT / README).read_text(encoding="utf-8")
    peer_runs, checks = read_peer_runs(ROOT / RESULTS / LIBAUC), read_lines(ROOT / RESULTS / EPOCHS)
    page = results_page(found, len(lines), histories, results.test_scores(), peer_runs, checks)
    assert without_resampled_intervals(page) == without_resampled_intervals(TEXT), "run: make results"
    assert f"<!-- results -->\n\n{readme_block(found, len(lines))}\n\n<!-- /results -->" in readme, "run: make results"


def test_pages_have_all_committed_results():
    output = subprocess.run(
        ["git", "-C", str(ROOT), "show", "HEAD:results/results.jsonl"], capture_output=True, text=True, check=False
    )
    if output.returncode != 0:
        pytest.skip("no commit with results")
    keys = {json.loads(line)["key"] for line in output.stdout.splitlines()}
    assert len(keys) <= COUNT, "run: make results"


def test_links_of_the_pages_lead_to_files():
    links = re.findall(r"\]\((\.\./[^)#]+)\)", TEXT)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / "docs" / "results" / link).exists()] == []


def test_page_names_unfinished_rows_and_items_without_a_run():
    text = results_page(summarise_results(partial_table6()), 21, {})
    assert "* AICURES, GINE: 10 of 10" not in text
    assert "1 of 10 runs of apmax" in text
    assert "no run at all: AICURES, MPNN; AICURES, ML-MPNN" in text
    assert "* Table 1: CIFAR-10 and CIFAR-100, test AUPRC" in text.split("## Not run yet")[1]


def test_larger_budget_has_a_section_once_a_configuration_is_chosen():
    assert "quick budget" not in results_page(summarise_results(tuned_lines([0.1, 0.3, 0.2]), ["table6"]), 3, {})
    text = results_page(summarise_results(tuned_lines([0.1, 0.3, 0.2, 0.0]), ["table6"]), 4, {})
    assert "## Table 6: AICURES, all networks, test AUPRC (quick budget)" in text
    assert "(paper budget)" not in text


def test_cell_with_a_larger_budget_is_shown_in_one_item():
    found = summarise_results(tuned_lines([0.1, 0.3, 0.2, 0.0]))
    assert len([summary for summary in found if summary.has_default_budget]) > 1
    assert len([summary for summary in found if not summary.has_default_budget]) == 1


def test_pages_without_results_say_so():
    assert "Nothing has been run yet." in results_page([], 0, {})
    assert "Nothing has been run yet." in readme_block([], 0)


def test_page_without_marks_is_refused_and_left_unchanged(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("# no marks")
    with pytest.raises(ValueError, match=r"README.md must have one <!-- results -->"):
        replace_block(page, "results", "block")
    assert page.read_text() == "# no marks"


def test_only_the_text_between_the_marks_is_replaced(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("a\n<!-- results -->old<!-- /results -->\nb")
    replace_block(page, "results", "new \\1")
    assert page.read_text() == "a\n<!-- results -->\n\nnew \\1\n\n<!-- /results -->\nb"


def test_outcome_counts_the_cases_of_soap_and_of_the_recipe_against_its_control():
    lines = three_cells()
    text, table = outcome_parts(summarise_results(lines), "rule.md")
    assert text.startswith(
        "SOAP with the published settings has a higher mean test AUPRC than cross-entropy in 2 of 3 cases (a data set "
        "with a network), in the paper in 3 of the 3 that it prints of these; where it is higher, test parts have at "
        "most 4 positives. In a study on generated data AP training paid in [linear models that are too "
        "simple](rule.md) "
    )
    (row,) = table.splitlines()[2:]
    assert row.startswith("| SOAP against cross-entropy, published settings ")
    assert row.endswith(" | 3 (1 of one pair, without interval) | 2 | 1 | 0 |")
    lines |= result_lines(*CELL, "apmax", {"fold0": 0.5, "fold1": 0.6, "fold2": 0.6})
    lines |= result_lines(*CELL, "ce_joint", {"fold0": 0.4, "fold1": 0.5, "fold2": 0.5})
    _, table = outcome_parts(summarise_results(lines), "rule.md")
    assert table.endswith("| our default recipe against the same training without its AP loss | 1 | 1 | 1 | 0 |")


def with_test(lines, cell, **values):
    """Return the results with some test metrics of a cell changed."""
    return {
        key: line | {"test": line["test"] | values} if (line["data"], line["model"]) == cell else line
        for key, line in lines.items()
    }


def test_outcome_names_small_test_parts_only_where_all_cases_above_have_them():
    text, _ = outcome_parts(summarise_results(with_test(three_cells(), ("aicures", "mpnn"), positives=6)), "rule.md")
    assert "it prints of these. In a study" in text
    text, _ = outcome_parts(summarise_results(with_test(three_cells(), ("aicures", "ml-mpnn"), positives=6)), "rule.md")
    assert "where it is higher, test parts have at most 4 positives. In a study" in text, "SOAP is below there"


def test_cells_ranked_at_random_have_no_number_of_runs():
    lines = three_cells()
    assert "| AICURES, GINE | 10 | 4 |" in results_page(summarise_results(lines), 1, {})
    lines |= result_lines("hiv", "gine", "ce", dict.fromkeys(range(3), 0.5))
    lines |= result_lines("hiv", "gine", "soap", dict.fromkeys(range(3), 0.6))
    text = results_page(summarise_results(with_test(lines, CELL, auroc=0.5)), 1, {})
    assert "| AICURES, GINE | 10 | 4 |" not in text
    assert "Left out, because no method ranks better than at random there: AICURES, GINE." in text


def test_methods_that_were_tuned_alike_have_a_table_and_a_part_of_the_outcome():
    folds, lines = ["fold0", "fold1", "fold2"], three_cells()
    assert "Tuned alike" not in results_page(summarise_results(lines), 1, {})
    lines |= tuned_lines([0.1, 0.3, 0.2, 0.0], "ce", folds) | tuned_lines([0.1, 0.2, 0.1, 0.0], "soap", folds)
    text = results_page(summarise_results(lines), 1, {})
    tuned = text.split("**Tuned alike**: 4 configurations of each method")[1].split("How to read")[0]
    assert "| Method | AICURES, GINE, published settings | tuned alike |" in tuned
    assert "| CE | 0.6000 ± 0.1764 | 0.8000 ± 0.0000 |" in tuned
    assert "| SOAP | +0.0112 (+0.0055 to +0.0169) | −0.1000 (−0.1000 to −0.1000) |" in tuned
    _, table = outcome_parts(summarise_results(lines), "rule.md")
    assert "| both tuned alike (4 configurations each) | 1 | 0 | 0 | 1 |" in table


def test_outcome_says_how_the_released_code_ended():
    lines = three_cells() | result_lines("hiv", "gine", "soap_released", {0: 0.2, 1: 0.3, 2: 0.1})
    assert "released code" not in outcome_parts(summarise_results(lines), "rule.md")[1]
    lines |= result_lines("hiv", "gine", "ce_authors", dict.fromkeys(range(3), 0.29))
    lines |= result_lines("hiv", "mpnn", "soap_released", {0: 0.4})
    lines |= result_lines("hiv", "mpnn", "ce_authors", {0: 0.3})
    (row,) = (line for line in outcome_parts(summarise_results(lines), "rule.md")[1].splitlines() if "released" in line)
    assert row.endswith("on HIV | 2 (1 of one pair, without interval) | 1 | 0 | 0 |")


def test_no_outcome_without_soap_and_cross_entropy():
    assert outcome_parts(summarise_results(result_lines(*CELL, "soap", {"fold0": 0.5})), "rule.md") == []


def test_runs_of_libauc_stand_beside_those_of_the_released_code(tmp_path):
    for network, seed, test in (("gine", 0, 0.2), ("gine", 1, 0.4), ("ml-mpnn", 0, 0.1)):
        epoch = {"epoch": 1, "valid": 0.9, "test": 0.9}
        last = {"best_epoch": 1, "best_valid": 0.3, "test": test, "best_test": 0.5, "best_test_epoch": 1}
        (tmp_path / f"{network}-{seed}.jsonl").write_text(f"{json.dumps(epoch)}\n{json.dumps(last)}\n")
    runs = read_peer_runs(tmp_path)
    lines = result_lines("hiv", "gine", "soap_released", {0: 0.2})
    text = results_page(summarise_results(lines), 1, {}, None, runs)
    assert "| GINE | 2 | 0.3000 | 0.3000 | 0.5000 |\n| ML-MPNN | 1 | 0.3000 | 0.1000 | 0.5000 |" in text
    assert "LibAUC 2.0.1" not in results_page(summarise_results(partial_table6()), 1, {}, None, runs)
