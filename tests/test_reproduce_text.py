"""Sentences about results, against sentences worked out by hand."""

from __future__ import annotations

from apmax.reproduce import load_grid
from apmax.reproduce.pages.text import (
    findings,
    first_stage_findings,
    item_notes,
    overall_variant_findings,
    partial_cell_notes,
)
from small_experiments import CELL, epoch_values, result_lines, summarise, table6, three_cells


def test_finding_has_the_counts_of_the_comparison():
    summary = summarise("table6", three_cells())
    assert findings(summary, {})[0] == (
        "SOAP: above CE in 2 of 3 cells (2 unfinished); the 95 % interval is above zero in 1, below in 0; 1 cell with "
        "one pair has none. In the paper: above in 3 of 3 of them."
    )


def test_variant_is_compared_with_the_method_that_it_varies():
    lines = {
        **result_lines(*CELL, "apmax", {"fold0": 0.2, "fold1": 0.4, "fold2": 0.6}),
        **result_lines(*CELL, "apmax_batch", {"fold0": 0.3, "fold1": 0.5, "fold2": 0.7}),
    }
    summary = summarise("prevalence", lines)
    assert any(
        "against apmax (default recipe) +0.1000 (+0.1000 to +0.1000), above in 3 of 3" in s
        for s in findings(summary, {})
    )


def test_the_recipe_is_compared_with_its_control_not_with_ce_alone():
    lines = {
        **result_lines(*CELL, "ce", {"fold0": 0.1, "fold1": 0.2}),
        **result_lines(*CELL, "apmax", {"fold0": 0.5, "fold1": 0.6}),
        **result_lines(*CELL, "ce_averaged", {"fold0": 0.6, "fold1": 0.7}),
    }
    wanted = "apmax (default recipe) against CE, recipe's optimiser and averaging −0.1000 (−0.1000 to −0.1000), above"
    assert any(wanted in text for text in findings(table6(lines), {}))


def test_the_recipe_without_its_loss_is_a_control_too_and_equal_runs_are_not_lost_ones():
    lines = {
        **result_lines(*CELL, "apmax", {"fold0": 0.5, "fold1": 0.6, "fold2": 0.7, "fold3": 0.1}),
        **result_lines(*CELL, "ce_joint", {"fold0": 0.5, "fold1": 0.6, "fold2": 0.5, "fold3": 0.2}),
    }
    (text,) = (each for each in findings(table6(lines), {}) if "against apmax without its AP loss" in each)
    assert text.endswith("above in 1 of 4, equal in 2.")


def test_runs_of_the_recipe_that_kept_cross_entropy_are_counted():
    lines = result_lines(*CELL, "apmax", {"fold0": 0.5, "fold1": 0.6, "fold2": 0.7})
    for line, stage in zip(lines.values(), (1, 2, 1), strict=True):
        line["chosen"] = {"stage": stage, "epoch": 3}
    assert any(
        "in 2 of 3 runs validation chose an epoch of its first stage" in each for each in findings(table6(lines), {})
    )


def test_an_item_of_variants_says_nothing_of_methods_that_are_none():
    lines = {
        **result_lines(*CELL, "soap", {"fold0": 0.1}),
        **result_lines(*CELL, "soap_corrected", {"fold0": 0.2}),
        **result_lines(*CELL, "apmax", {"fold0": 0.5}),
    }
    texts = findings(summarise("prevalence", lines, cells=[CELL]), {})
    assert any(each.startswith("SOAP, prevalence-corrected: above SOAP in 1 of 1 cell") for each in texts)
    assert not any(each.startswith("apmax") for each in texts)


def test_control_without_runs_is_not_mentioned():
    lines = {**result_lines(*CELL, "ce", {"fold0": 0.1}), **result_lines(*CELL, "apmax", {"fold0": 0.5})}
    assert not any("against" in text for text in findings(table6(lines), {}))


def test_variant_of_another_method_is_not_set_against_the_base():
    lines = {
        **result_lines(*CELL, "soap", {"fold0": 0.1}),
        **result_lines(*CELL, "apmax", {"fold0": 0.5}),
        **result_lines(*CELL, "apmax_batch", {"fold0": 0.6}),
    }
    texts = findings(summarise("prevalence", lines, cells=[CELL]), {})
    assert not any("above SOAP" in each for each in texts)
    assert any("apmax, batch taken as it is against apmax (default recipe)" in each for each in texts)


def test_pairs_of_different_commits_are_counted():
    lines = {
        **result_lines(*CELL, "apmax", {"fold0": 0.5, "fold1": 0.6, "fold2": 0.7}),
        **result_lines(*CELL, "ce_joint", {"fold0": 0.5, "fold1": 0.6}, commit="def5678"),
        **result_lines(*CELL, "ce_joint", {"fold2": 0.6}),
    }
    (text,) = (each for each in findings(table6(lines), {}) if "against apmax without its AP loss" in each)
    assert text.endswith("above in 1 of 3, equal in 2 (2 of 3 pairs from different commits).")


def test_controls_are_counted_over_all_cells():
    lines = {
        **result_lines("aicures", "gine", "apmax", {"fold0": 0.51, "fold1": 0.62, "fold2": 0.73}),
        **result_lines("aicures", "gine", "ce_joint", {"fold0": 0.5, "fold1": 0.6, "fold2": 0.7}),
        **result_lines("aicures", "mpnn", "apmax", {"fold0": 0.4, "fold1": 0.5}),
        **result_lines("aicures", "mpnn", "ce_joint", {"fold0": 0.5, "fold1": 0.601}),
        **result_lines("aicures", "ml-mpnn", "apmax", {"fold0": 0.4}),
    }
    entries = summarise("table6", lines).entries
    # Differences 0.01, 0.02, 0.03: 0.02 ± 4.303 · 0.01 / √3, about zero; −0.1 and −0.101: −0.1005 ± 12.7 · 0.0005.
    assert overall_variant_findings(load_grid(), entries, "ce") == [
        "apmax (default recipe) against apmax without its AP loss: above in 1 of 2 cells, interval above 0 in 0, "
        "below in 1."
    ]


def test_cells_with_one_pair_are_said_to_have_no_interval():
    cells = [("aicures", model) for model in ("gine", "mpnn", "ml-mpnn")]
    lines = {
        key: line
        for cell, splits in zip(cells, (2, 1, 1), strict=True)
        for method, gain in (("apmax", 0.1), ("ce_joint", 0.0))
        for key, line in result_lines(*cell, method, {f"fold{k}": 0.5 + 0.1 * k + gain for k in range(splits)}).items()
    }
    (text,) = overall_variant_findings(load_grid(), summarise("table6", lines).entries, "ce")
    assert text.endswith("in 1, below in 0; 2 cells with one pair have none.")


def test_seeds_on_one_test_part_are_said_to_leave_out_the_chance_in_its_rows():
    lines = result_lines("tox21-t0", "gine", "ce", {0: 0.5})
    notes = item_notes(summarise("table5", lines))
    assert any("runs are seeds on one split, with 4 positives in the test part" in note for note in notes)
    lines = result_lines(*CELL, "ce", {"fold0": 0.5})
    assert not any("one split" in note for note in item_notes(table6(lines)))


def ranked_at(auroc, method="ce", folds=2):
    """Return results of AICURES, GINE whose test AUROC is this one."""
    lines = result_lines(*CELL, method, {f"fold{k}": 0.5 for k in range(folds)})
    return {key: line | {"test": line["test"] | {"auroc": auroc}} for key, line in lines.items()}


def test_cell_in_which_all_methods_rank_at_random_is_named():
    lines = ranked_at(0.44) | ranked_at(0.548, "soap")
    (text,) = [text for text in findings(summarise("table6", lines), {}) if "at random" in text]
    assert text == (
        "AICURES, GINE: no method ranks the test rows better than at random (mean AUROC 0.44 to 0.55 by method): "
        "differences between methods say nothing here."
    )


def test_cell_with_one_method_above_random_is_not_called_random():
    lines = ranked_at(0.44) | ranked_at(0.551, "soap")
    assert not any("at random" in text for text in findings(summarise("table6", lines), {}))


def test_chosen_first_stages_are_counted_over_all_cells():
    lines = {
        **result_lines("aicures", "gine", "apmax", {"fold0": 0.5}),
        **result_lines("aicures", "mpnn", "apmax", {"fold0": 0.5}),
    }
    for line, stage in zip(lines.values(), (1, 2), strict=True):
        line["chosen"] = {"stage": stage, "epoch": 3}
    (text,) = first_stage_findings(load_grid(), summarise("table6", lines).entries.values())
    assert text.startswith("apmax (default recipe): in 1 of 2 runs validation chose an epoch of its first stage")


def test_runs_of_ldam_without_its_class_weights_are_counted():
    lines = result_lines(*CELL, "ldam", {"fold0": 0.5, "fold1": 0.6, "fold2": 0.7})
    # On molecules the weights set in after epoch 50.
    for line, epoch in zip(lines.values(), (50, 51, 3), strict=True):
        line["chosen"] = {"stage": 1, "epoch": epoch}
    (text,) = (each for each in findings(table6(lines), {}) if each.startswith("LDAM"))
    assert text.startswith("LDAM: in 2 of 3 runs validation chose an epoch before its class weights set in")


def test_convergence_is_read_early_at_the_choice_and_at_the_best_epoch_of_the_test_part():
    lines = result_lines(*CELL, "soap", {"fold0": 0.3, "fold1": 0.5})
    curves = ([0.1, 0.1, 0.1, 0.1, 0.2, 0.8], [0.1, 0.1, 0.1, 0.1, 0.4, 0.5, 0.6])
    histories = {
        key: epoch_values(line, test_auprc=list(run)) for (key, line), run in zip(lines.items(), curves, strict=True)
    }
    (text,) = findings(summarise("convergence", lines, cells=[CELL]), histories)
    assert "after 5 epochs SOAP 0.300;" in text
    assert "validation chose SOAP 0.400;" in text
    assert text.endswith("SOAP 0.700.")


def test_consistency_says_the_rank_correlation():
    lines = result_lines("cifar10", "narrow", "soap_consistency", {0: 0.3})
    (line,) = lines.values()
    # AP has the ranks 1, 2, 3, 4 and −P(w) 1, 3, 2, 4: 1 − 6 · 2 / (4 · 15) = 0.8.
    kept = epoch_values(line, train_ap=[0.1, 0.2, 0.3, 0.4], train_objective=[-0.1, -0.3, -0.2, -0.4])
    texts = findings(summarise("consistency", lines), {line["key"]: kept})
    assert any(each.endswith("over the epochs 0.800 (1 run).") for each in texts)


def test_batch_sizes_have_the_range_of_their_means_over_the_runs_that_all_have():
    lines = {
        **result_lines("cifar10", "narrow", "soap", {0: 0.7, 1: 0.1}),
        **result_lines("cifar10", "narrow", "soap_16", {0: 0.6}),
        **result_lines("cifar10", "narrow", "soap_1024", {0: 0.65}),
    }
    texts = findings(summarise("batch-size", lines), {})
    wanted = (
        "the mean test AUPRC lies between 0.6000 (batches of 16) and 0.7000 (of 64), each over the 1 run that all have."
    )
    assert any(each.endswith(f"over 3 sizes {wanted}") for each in texts)


def test_a_network_that_was_run_on_a_part_of_the_splits_has_a_note():
    lines = {
        **result_lines("aicures", "gine", "ce", {"fold0": 0.6, "fold1": 0.4, "fold2": 0.1}),
        **result_lines("aicures", "mpnn", "ce", {"fold0": 0.7, "fold1": 0.5}),
    }
    assert partial_cell_notes(summarise("table6", lines)) == [
        "AICURES, MPNN: fold0, fold1 only. On these CE has 0.5000 with GINE: do not compare this column with those "
        "of all runs."
    ]


def test_released_code_is_shown_with_validation_and_the_best_test_epoch():
    lines = {
        **result_lines("hiv", "gine", "ce_authors", {0: 0.29, 1: 0.29, 2: 0.29}),
        **result_lines("hiv", "gine", "soap_released", {0: 0.1, 1: 0.2, 2: None}),
    }
    for line in lines.values():
        if line["test"]:
            line["valid"] = {"ap": 0.4, "auprc": 0.25}
            if line["method"] == "soap_released":
                line["best_test"] = {"epoch": 3, "auprc": line["test"]["auprc"] + 0.05}
    (text,) = (each for each in findings(summarise("released", lines), {}) if "on validation and test" in each)
    assert text == (
        "HIV, GINE, mean AUPRC on validation and test at the epoch that validation chose: CE, the authors' weights "
        "0.250 and 0.290; SOAP, the authors' released code 0.250 and 0.150 (0.200 at the best epoch by the test part). "
        "The authors' weights are one network, the same for all seeds."
    )
