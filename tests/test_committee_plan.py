"""Plans of committees: effort, folds, time limit."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("lightgbm")

from apmax.committee import EFFORTS, MEMBERS, MOLECULE_MEMBERS, CommitteePlan, find_members, plan_committee

SIZE = {"rows": 7000, "positives": 150, "columns": 20}
STANDARD = ("gbdt", "forest", "trees", "linear", "mlp", "linear_ce", "mlp_ce")


def test_efforts_differ_in_members_and_folds():
    plans = {effort: plan_committee(**SIZE, possible_folds=12, effort=effort) for effort in EFFORTS}
    assert (plans["quick"].members, plans["quick"].folds) == (("gbdt",), 1)
    assert (plans["standard"].members, plans["standard"].folds) == (STANDARD, 5)
    assert (plans["best"].members, plans["best"].folds) == (tuple(MEMBERS), 10)
    assert plans["quick"].seconds < plans["standard"].seconds < plans["best"].seconds
    assert not any(plan.notes for plan in plans.values())


@pytest.mark.parametrize(("possible", "effort", "folds"), [(1, "quick", 1), (0, "quick", 1), (2, "standard", 2)])
def test_without_two_folds_the_plan_is_quick_and_says_so(possible, effort, folds):
    plan = plan_committee(rows=100, positives=2, columns=3, possible_folds=possible)
    assert (plan.effort, plan.folds) == (effort, folds)
    assert bool(plan.notes) == (effort == "quick")


def test_named_members_are_kept_in_every_effort():
    for effort in EFFORTS:
        assert plan_committee(**SIZE, possible_folds=5, effort=effort, members=["linear", "trees"]).members == (
            "linear",
            "trees",
        )


def test_a_time_limit_cuts_folds_first_then_twins_then_the_dearest():
    full = plan_committee(**SIZE, possible_folds=5)
    seen = []
    for step in range(1, 400):
        plan = plan_committee(**SIZE, possible_folds=5, time_limit=full.seconds * (1 - step / 400))
        if not seen or seen[-1] != (plan.effort, plan.members, plan.folds):
            seen.append((plan.effort, plan.members, plan.folds))
    sizes = [len(members) for _, members, _ in seen]
    assert sizes == sorted(sizes, reverse=True)
    assert seen[0] == ("standard", STANDARD, 4)
    assert seen[-1] == ("quick", ("gbdt",), 1)
    dropped = [set(STANDARD) - set(members) for _, members, _ in seen]
    first = next(names for names in dropped if names)
    assert first <= {"mlp_ce", "linear_ce"}
    assert all("mlp_ce" in names for names in dropped if "mlp" in names)


def test_best_is_cut_to_standard_before_members_are_dropped():
    best = plan_committee(**SIZE, possible_folds=10, effort="best")
    cut = plan_committee(**SIZE, possible_folds=10, effort="best", time_limit=best.seconds / 4)
    assert (cut.effort, cut.members) == ("standard", STANDARD)
    assert cut.notes[0].endswith("standard instead of best")
    assert cut.notes[-1].endswith("without mlp_mined")


def test_a_time_limit_cuts_mined_twins_before_folds():
    best = plan_committee(**SIZE, possible_folds=10, effort="best")
    cut = plan_committee(**SIZE, possible_folds=10, effort="best", time_limit=best.seconds - 0.2)
    assert (cut.effort, cut.members, cut.folds) == ("best", STANDARD, 10)
    named = {"possible_folds": 5, "members": ["linear", "mlp", "mlp_mined"]}
    full = plan_committee(**SIZE, **named)
    assert full.members == ("linear", "mlp", "mlp_mined")
    cut = plan_committee(**SIZE, **named, time_limit=full.seconds - 0.2)
    assert (cut.members, cut.folds) == (("linear", "mlp"), 5)
    alone = plan_committee(**SIZE, possible_folds=5, members=["mlp_mined"], time_limit=full.seconds / 3)
    assert alone.members == ("mlp_mined",)
    assert alone.folds < 5


def test_a_limit_that_nothing_meets_is_said():
    plan = plan_committee(**SIZE, possible_folds=5, time_limit=1e-3)
    assert plan.effort == "quick"
    assert "even the smallest plan" in plan.notes[-1]


@given(
    rows=st.integers(10, 10**6),
    share=st.floats(0.001, 0.5),
    columns=st.integers(1, 500),
    possible=st.integers(0, 20),
    effort=st.sampled_from(EFFORTS),
    limit=st.none() | st.floats(0.1, 1e5),
    jobs=st.integers(1, 8),
)
def test_a_plan_keeps_its_limits_and_survives_json(rows, share, columns, possible, effort, limit, jobs):
    plan = plan_committee(
        rows=rows,
        positives=max(1, int(share * rows)),
        columns=columns,
        possible_folds=possible,
        effort=effort,
        time_limit=limit,
        n_jobs=jobs,
    )
    assert plan.members
    assert 1 <= plan.folds <= max(1, possible)
    assert (plan.folds == 1) == (plan.effort == "quick")
    # Estimates are kept to a tenth of a second.
    assert limit is None or plan.seconds <= limit + 0.1 or "even the smallest plan" in plan.notes[-1]
    assert CommitteePlan.from_table(json.loads(json.dumps(plan.to_table()))) == plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"effort": "fast"}, "effort must be one of"),
        ({"members": ["gbtd"]}, "did you mean 'gbdt'"),
        ({"members": "gbdt"}, "members must be a list"),
        ({"folds": 0}, "folds must be at least 1"),
        ({"seconds": float("nan")}, "seconds must lie"),
        ({"seed": "0"}, "seed must be a whole number"),
        ({"more": 1}, "it must have"),
    ],
)
def test_a_table_that_is_no_plan_is_refused(change, message):
    table = plan_committee(**SIZE, possible_folds=5).to_table()
    with pytest.raises(ValueError, match=message):
        CommitteePlan.from_table({**table, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positives": 7000}, "positives must be fewer"),
        ({"positives": 0}, "positives must be at least 1"),
        ({"effort": "fast"}, "effort must be one of"),
        ({"time_limit": 0}, "time_limit must lie"),
        ({"n_jobs": 0}, "n_jobs must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        plan_committee(**{**SIZE, "possible_folds": 5, **change})


def test_best_members_cost_more():
    for name, member in find_members(None, effort="best").items():
        least = 1 if name.startswith("linear") else 2
        assert member.cost.seconds(1000, 10) >= least * MEMBERS[name].cost.seconds(1000, 10)


class TestMolecules:
    size: ClassVar = {"rows": 33_000, "positives": 1200, "columns": 2066, "possible_folds": 5, "kind": "molecules"}

    def test_the_plan_has_the_members_of_molecules(self):
        plan = plan_committee(**self.size)
        assert plan.members == ("gbdt", "forest", "trees", "gine", "gine_ce")
        assert CommitteePlan.from_table(plan.to_table(), kind="molecules") == plan
        with pytest.raises(ValueError, match="not the plan of a committee"):
            CommitteePlan.from_table(plan.to_table())
        assert plan_committee(**self.size, effort="quick").members == ("gbdt",)
        assert plan_committee(**self.size, effort="best").members == tuple(MOLECULE_MEMBERS)

    def test_a_time_limit_leaves_the_networks_out_in_the_end(self):
        full = plan_committee(**self.size)
        seen = [plan_committee(**self.size, time_limit=full.seconds / part).members for part in (1, 4, 20)]
        assert seen[0] == full.members
        assert "gine_ce" not in seen[1]
        assert not {"gine", "gine_ce"} & set(seen[2])

    def test_targets_multiply_the_time(self):
        one, three = (plan_committee(**self.size, targets=count).seconds for count in (1, 3))
        assert three == pytest.approx(3 * one, rel=0.01)

    def test_networks_of_two_jobs_take_turns(self):
        """The estimate of two jobs is at least the time of all networks, which one job fits."""
        folds, members = 5, find_members(["gine", "gine_ce"], kind="molecules")
        networks = folds * sum(member.cost.seconds(33_000 * 0.8, 2066) for member in members.values())
        assert plan_committee(**self.size, n_jobs=2).seconds > networks
