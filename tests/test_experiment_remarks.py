"""What is said of results in words, against sentences worked out by hand."""

from __future__ import annotations

from apmax.reproduce import grid
from apmax.reproduce.notes import part_notes
from apmax.reproduce.remarks import chose_first_stage, overall_comparisons, sentences
from apmax.reproduce.summary import summarise
from small_results import history, runs
from test_experiment_summary import CELL, table6, three_cells


def test_sentence_says_what_the_score_counts():
    summary = summarise(grid(), grid().items["table6"], three_cells())
    assert sentences(summary, {})[0] == (
        "SOAP: above CE in 2 of 3 cells (2 unfinished); the 95 % interval is above zero in 1, below in 0. "
        "In the paper: above in 3 of 3 of them."
    )


def test_variant_is_compared_with_what_it_varies():
    lines = {
        **runs(*CELL, "apmax", {"fold0": 0.2, "fold1": 0.4, "fold2": 0.6}),
        **runs(*CELL, "apmax_batch", {"fold0": 0.3, "fold1": 0.5, "fold2": 0.7}),
    }
    summary = summarise(grid(), grid().items["prevalence"], lines)
    assert any(
        "against apmax (default recipe) +0.1000 (+0.1000 to +0.1000), above in 3 of 3" in s
        for s in sentences(summary, {})
    )


def test_the_recipe_is_compared_with_its_control_not_with_ce_alone():
    lines = {
        **runs(*CELL, "ce", {"fold0": 0.1, "fold1": 0.2}),
        **runs(*CELL, "apmax", {"fold0": 0.5, "fold1": 0.6}),
        **runs(*CELL, "ce_averaged", {"fold0": 0.6, "fold1": 0.7}),
    }
    wanted = "apmax (default recipe) against CE, recipe's optimiser and averaging −0.1000 (−0.1000 to −0.1000), above"
    assert any(wanted in said for said in sentences(table6(lines), {}))


def test_the_recipe_without_its_loss_is_a_control_too_and_equal_runs_are_not_lost_ones():
    lines = {
        **runs(*CELL, "apmax", {"fold0": 0.5, "fold1": 0.6, "fold2": 0.7, "fold3": 0.1}),
        **runs(*CELL, "ce_joint", {"fold0": 0.5, "fold1": 0.6, "fold2": 0.5, "fold3": 0.2}),
    }
    (said,) = (each for each in sentences(table6(lines), {}) if "against apmax without its AP loss" in each)
    assert said.endswith("above in 1 of 4, equal in 2.")


def test_runs_of_the_recipe_that_kept_cross_entropy_are_counted():
    lines = runs(*CELL, "apmax", {"fold0": 0.5, "fold1": 0.6, "fold2": 0.7})
    for line, stage in zip(lines.values(), (1, 2, 1), strict=True):
        line["chosen"] = {"stage": stage, "epoch": 3}
    assert any(
        "in 2 of 3 runs validation chose an epoch of its first stage" in each for each in sentences(table6(lines), {})
    )


def test_an_item_of_variants_says_nothing_of_methods_that_are_none():
    lines = {
        **runs(*CELL, "soap", {"fold0": 0.1}),
        **runs(*CELL, "soap_corrected", {"fold0": 0.2}),
        **runs(*CELL, "apmax", {"fold0": 0.5}),
    }
    said = sentences(summarise(grid(), grid().items["prevalence"], lines, cells=[CELL]), {})
    assert any(each.startswith("SOAP, prevalence-corrected: above SOAP in 1 of 1 cell") for each in said)
    assert not any(each.startswith("apmax") for each in said)


def test_nothing_is_said_of_a_control_that_was_not_run():
    lines = {**runs(*CELL, "ce", {"fold0": 0.1}), **runs(*CELL, "apmax", {"fold0": 0.5})}
    assert not any("against" in said for said in sentences(table6(lines), {}))


def test_variant_of_another_method_is_not_set_against_the_base():
    lines = {
        **runs(*CELL, "soap", {"fold0": 0.1}),
        **runs(*CELL, "apmax", {"fold0": 0.5}),
        **runs(*CELL, "apmax_batch", {"fold0": 0.6}),
    }
    said = sentences(summarise(grid(), grid().items["prevalence"], lines, cells=[CELL]), {})
    assert not any("above SOAP" in each for each in said)
    assert any("apmax, batch taken as it is against apmax (default recipe)" in each for each in said)


def test_pairs_of_different_commits_are_counted():
    lines = {
        **runs(*CELL, "apmax", {"fold0": 0.5, "fold1": 0.6, "fold2": 0.7}),
        **runs(*CELL, "ce_joint", {"fold0": 0.5, "fold1": 0.6}, commit="def5678"),
        **runs(*CELL, "ce_joint", {"fold2": 0.6}),
    }
    (said,) = (each for each in sentences(table6(lines), {}) if "against apmax without its AP loss" in each)
    assert said.endswith("above in 1 of 3, equal in 2 (2 of 3 pairs from different commits).")


def test_controls_are_counted_over_all_cells():
    lines = {
        **runs("aicures", "gine", "apmax", {"fold0": 0.51, "fold1": 0.62, "fold2": 0.73}),
        **runs("aicures", "gine", "ce_joint", {"fold0": 0.5, "fold1": 0.6, "fold2": 0.7}),
        **runs("aicures", "mpnn", "apmax", {"fold0": 0.4, "fold1": 0.5}),
        **runs("aicures", "mpnn", "ce_joint", {"fold0": 0.5, "fold1": 0.601}),
        **runs("aicures", "ml-mpnn", "apmax", {"fold0": 0.4}),
    }
    entries = summarise(grid(), grid().items["table6"], lines).entries
    # Differences 0.01, 0.02, 0.03: 0.02 ± 4.303 · 0.01 / √3, about zero; −0.1 and −0.101: −0.1005 ± 12.7 · 0.0005.
    assert overall_comparisons(grid(), entries, "ce") == [
        "apmax (default recipe) against apmax without its AP loss: above in 1 of 2 cells, interval above 0 in 0, "
        "below in 1."
    ]


def test_chosen_first_stages_are_counted_over_all_cells():
    lines = {**runs("aicures", "gine", "apmax", {"fold0": 0.5}), **runs("aicures", "mpnn", "apmax", {"fold0": 0.5})}
    for line, stage in zip(lines.values(), (1, 2), strict=True):
        line["chosen"] = {"stage": stage, "epoch": 3}
    (said,) = chose_first_stage(grid(), summarise(grid(), grid().items["table6"], lines).entries.values())
    assert said.startswith("apmax (default recipe): in 1 of 2 runs validation chose an epoch of its first stage")


def test_runs_of_ldam_without_its_class_weights_are_counted():
    lines = runs(*CELL, "ldam", {"fold0": 0.5, "fold1": 0.6, "fold2": 0.7})
    # On molecules the weights set in after epoch 50.
    for line, epoch in zip(lines.values(), (50, 51, 3), strict=True):
        line["chosen"] = {"stage": 1, "epoch": epoch}
    (said,) = (each for each in sentences(table6(lines), {}) if each.startswith("LDAM"))
    assert said.startswith("LDAM: in 2 of 3 runs validation chose an epoch before its class weights set in")


def test_convergence_is_read_early_at_the_choice_and_at_the_best_epoch_of_the_test_part():
    lines = runs(*CELL, "soap", {"fold0": 0.3, "fold1": 0.5})
    curves = ([0.1, 0.1, 0.1, 0.1, 0.2, 0.8], [0.1, 0.1, 0.1, 0.1, 0.4, 0.5, 0.6])
    histories = {
        key: history(line, test_auprc=list(run)) for (key, line), run in zip(lines.items(), curves, strict=True)
    }
    (said,) = sentences(summarise(grid(), grid().items["convergence"], lines, cells=[CELL]), histories)
    assert "after 5 epochs SOAP 0.300;" in said
    assert "validation chose SOAP 0.400;" in said
    assert said.endswith("SOAP 0.700.")


def test_consistency_says_the_rank_correlation():
    lines = runs("cifar10", "narrow", "soap_consistency", {0: 0.3})
    (line,) = lines.values()
    # AP has the ranks 1, 2, 3, 4 and −P(w) 1, 3, 2, 4: 1 − 6 · 2 / (4 · 15) = 0.8.
    kept = history(line, train_ap=[0.1, 0.2, 0.3, 0.4], train_objective=[-0.1, -0.3, -0.2, -0.4])
    said = sentences(summarise(grid(), grid().items["consistency"], lines), {line["key"]: kept})
    assert any(each.endswith("over the epochs 0.800 (1 run).") for each in said)


def test_batch_sizes_have_the_range_of_their_means():
    lines = {
        **runs("cifar10", "narrow", "soap", {0: 0.7}),
        **runs("cifar10", "narrow", "soap_16", {0: 0.6}),
        **runs("cifar10", "narrow", "soap_1024", {0: 0.65}),
    }
    said = sentences(summarise(grid(), grid().items["batch-size"], lines), {})
    wanted = "over 3 sizes the mean test AUPRC lies between 0.6000 (batches of 16) and 0.7000 (of 64)."
    assert any(wanted in each for each in said)


def test_a_network_that_was_run_on_a_part_of_the_splits_is_said_not_to_compare():
    lines = {
        **runs("aicures", "gine", "ce", {"fold0": 0.6, "fold1": 0.4, "fold2": 0.1}),
        **runs("aicures", "mpnn", "ce", {"fold0": 0.7, "fold1": 0.5}),
    }
    assert part_notes(summarise(grid(), grid().items["table6"], lines)) == [
        "AICURES, MPNN: fold0, fold1 only. On these CE has 0.5000 with GINE: the column is not to be compared with "
        "those of all runs."
    ]
