"""Committees: cross-fitting without leakage, alignment, members, storage."""

from __future__ import annotations

import json
import pickle
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from references import average_precision as reference_ap

pytest.importorskip("lightgbm")

from apmax.committee import (
    MEMBERS_BY_KIND,
    ArrayFeatures,
    FitResult,
    LossVerdict,
    Member,
    TableFeatures,
    TrainingRows,
    find_members,
    fit_committee,
)
from apmax.committee.crossfit import make_folds, number_of_folds, stopping_split
from apmax.committee.members import Cost, FoldData
from apmax.committee.storage import load_committee, load_results, save_committee, save_result
from apmax.committee.table_members import EstimatorMember
from apmax.committee.trees import STOPPING_RULES, Forest, fit_boosting, fit_forest, running_average_precision
from apmax.data.archives import npz_content
from apmax.folders import FolderError, read_manifest, write_manifest
from apmax.metrics import Difference, average_precision
from small_committees import training_rows

COST = Cost(1.0, 0.0, 0.0)
CHEAP = ["gbdt", "trees", "linear", "linear_ce"]
NETWORKS = ["mlp", "mlp_ce", "mlp_mined"]


def table(seed: int = 0, rows: int = 400, share: float = 0.15, signal: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = (rng.random(rows) < share).astype(float)
    X = rng.normal(size=(rows, 4))
    X[:, 0] += signal * y
    return X, y


@pytest.fixture(scope="module")
def committee():
    X, y = table()
    return fit_committee(training_rows(X, y), find_members(CHEAP), folds=3)


class TestLeakage:
    def test_scores_of_labels_without_signal_are_no_better_than_chance(self):
        X, y = table(1, 1500, share=0.1, signal=0.0)
        board = fit_committee(training_rows(X, y), find_members(CHEAP), folds=3).leaderboard
        for row in board.rows:
            assert row.ap.estimate < 0.16, row.name

    def test_an_encoding_that_has_seen_the_fold_would_be_found(self):
        X, y = table(1, 1500, share=0.1, signal=0.0)

        class Leaking(ArrayFeatures):
            def fit(self, rows, sample_weight):
                """Encode each row's own label, held-out rows included."""
                inner, own = (
                    ArrayFeatures(self.array).fit(rows, sample_weight),
                    dict(zip(map(tuple, X), y, strict=True)),
                )

                class Encoding:
                    kind = "table"
                    sizes = (*inner.sizes, 0)

                    def matrix(self, given):
                        labels = [own[tuple(row)] for row in given]
                        return np.column_stack([inner.matrix(given), labels]).astype(np.float32)

                    def to_table(self):
                        return inner.to_table()

                return Encoding()

        rows = TrainingRows(Leaking(X), y, np.ones(len(y)))
        assert fit_committee(rows, find_members(["linear"]), folds=2).leaderboard.blend.ap.estimate > 0.9

    def test_members_see_training_rows_only(self):
        from sklearn.linear_model import LogisticRegression

        X, y = table(2)
        X[:, 3] = np.arange(len(X))
        held_out = [set(test.tolist()) for _, test in make_folds(training_rows(X, y), 5, seed=0)]
        seen: list[set[int]] = []

        def fit(data: FoldData):
            seen.append(set(data.rows[:, 3].astype(int).tolist()))
            assert len(data.matrix) == len(data.labels) == len(seen[-1])
            train, stop = data.stopping
            assert not set(train.tolist()) & set(stop.tolist())
            assert len(train) + len(stop) == len(data.labels)
            return EstimatorMember(LogisticRegression().fit(data.rows, data.labels))

        fit_committee(training_rows(X, y), {"spy": Member(fit, None, "", COST, raw=True)}, seed=0)
        assert seen
        for rows, out in zip(seen, held_out, strict=True):
            assert not rows & out

    def test_encoder_of_a_table_is_fitted_to_training_rows_only(self):
        import pyarrow as pa

        X, _ = table(3, 200)
        code = [f"c{row}" if row % 5 == 0 else "common" for row in range(200)]
        source = TableFeatures(pa.table({"x": X[:, 0], "code": code}))
        train = np.arange(100)
        encoder = source.fit(train, np.ones(200)).encoder
        assert "c195" not in json.dumps(encoder.to_table())
        assert "common" in json.dumps(encoder.to_table())


class TestFolds:
    @pytest.mark.parametrize(("positives", "expected"), [(3, 3), (5, 5), (10, 5), (20, 5)])
    def test_number_of_folds_follows_the_positives(self, positives, expected):
        labels = np.array([1.0] * positives + [0.0] * 100)
        folds = make_folds(training_rows(np.zeros((len(labels), 1)), labels), 5, seed=0)
        assert len(folds) == number_of_folds(labels, None, 5) == expected
        assert all(labels[test].sum() >= 1 for _, test in folds)

    def test_one_positive_is_refused(self):
        labels = np.array([1.0] + [0.0] * 100)
        with pytest.raises(ValueError, match="two rows of each class"):
            make_folds(training_rows(np.zeros((101, 1)), labels), 5, seed=0)

    def test_groups_stay_together_in_folds_and_inner_splits(self):
        X, y = table(4, 300)
        groups = np.arange(300) // 6
        rows = training_rows(X, y, groups=groups)
        for train, test in make_folds(rows, 5, seed=0):
            assert not set(groups[train]) & set(groups[test])
            inner, stop = stopping_split(rows, train, seed=0)
            assert not set(groups[train][inner]) & set(groups[train][stop])

    def test_with_times_models_are_scored_on_later_rows_only(self):
        X, y = table(5, 300)
        times = np.random.default_rng(0).permutation(300).astype(float)
        rows = training_rows(X, y, times=times)
        folds = make_folds(rows, 4, seed=0)
        assert len(folds) == 4
        for train, test in folds:
            assert times[train].max() < times[test].min()
            inner, stop = stopping_split(rows, train, seed=0)
            assert times[train][inner].max() < times[train][stop].min()
        first = set(range(300)) - {row for _, test in folds for row in test.tolist()}
        assert times[list(first)].max() < min(times[test].min() for _, test in folds)

    def test_committee_with_times_leaves_the_first_block_out_of_the_blend(self):
        X, y = table(5, 300)
        fitted = fit_committee(training_rows(X, y, times=np.arange(300.0)), find_members(["linear", "trees"]))
        assert np.isfinite(fitted.score(X)).all()


class TestCommittee:
    @pytest.mark.slow
    def test_blend_is_not_below_the_best_member_on_new_rows(self):
        gains = []
        for seed in range(3):
            X, y = table(seed, 1200)
            fitted = fit_committee(training_rows(X[:600], y[:600]), find_members(CHEAP), seed=seed)
            best = fitted.leaderboard.rows[0].name
            alone = average_precision(fitted.score(X[600:], member=best), y[600:]).item()
            gains.append(average_precision(fitted.score(X[600:]), y[600:]).item() - alone)
        assert np.mean(gains) > -0.01

    @pytest.mark.slow
    def test_scores_do_not_depend_on_the_number_of_processes(self, committee):
        X, y = table()
        parallel = fit_committee(training_rows(X, y), find_members(CHEAP), folds=3, n_jobs=2)
        assert np.array_equal(parallel.score(X), committee.score(X))

    def test_fold_models_of_a_member_share_one_scale(self, committee):
        X, y = table()
        folds = make_folds(training_rows(X, y), 3, seed=0)
        for (_, held_out), fold in zip(folds, committee.folds, strict=True):
            matrix = fold.features.matrix(X[held_out])
            for name, member in committee.table.items():
                aligned = fold.score(name, member, X[held_out], matrix)
                assert aligned.mean() == pytest.approx(0, abs=1e-9)
                assert aligned.std() == pytest.approx(1)

    def test_score_is_the_blend_of_averaged_aligned_scores(self, committee):
        X, _ = table()
        each = [
            np.mean([fold.score(name, member, X, fold.features.matrix(X)) for fold in committee.folds], axis=0)
            for name, member in committee.table.items()
        ]
        assert committee.score(X) == pytest.approx(committee.blend.score(np.stack(each, 1)))
        assert committee.score(X, member="trees") == pytest.approx(each[1])

    def test_unknown_member_is_refused(self, committee):
        with pytest.raises(ValueError, match="member"):
            committee.score(table()[0], member="gbtd")

    def test_leaderboard_is_sorted_and_has_weights_and_times(self, committee):
        estimates = [row.ap.estimate for row in committee.leaderboard.rows]
        assert estimates == sorted(estimates, reverse=True)
        assert sum(row.weight for row in committee.leaderboard.rows) == pytest.approx(1)
        assert all(row.seconds > 0 for row in committee.leaderboard.rows)

    def test_verdict_compares_the_losses_of_the_same_model(self, committee):
        (verdict,) = committee.leaderboard.verdicts
        assert (verdict.ap_member, verdict.ce_member) == ("linear", "linear_ce")
        assert verdict.sentence.startswith("linear trained by AP against cross-entropy: ")

    def test_a_row_of_weight_two_counts_as_two_rows(self):
        X, y = table(6, 200)
        members = find_members(["linear"])
        fold = np.arange(200) % 2
        folds = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(2)]
        double = np.arange(200) % 7 == 0
        repeated = np.concatenate([np.arange(200), np.flatnonzero(double)])
        again = [(np.flatnonzero(fold[repeated] != k), np.flatnonzero(fold[repeated] == k)) for k in range(2)]
        weighted = fit_committee(TrainingRows(ArrayFeatures(X), y, 1.0 + double), members, folds=folds)
        plain = fit_committee(training_rows(X[repeated], y[repeated]), members, folds=again)
        assert weighted.leaderboard.blend.ap.estimate == pytest.approx(plain.leaderboard.blend.ap.estimate, abs=0.01)
        assert weighted.log_odds(weighted.score(X)) == pytest.approx(plain.log_odds(plain.score(X)), abs=0.1)

    def test_a_score_that_is_not_finite_is_an_error(self):
        class Broken:
            def score(self, matrix):
                return np.full(len(matrix), np.nan)

        X, y = table()
        with pytest.raises(ValueError, match="member 'broken' gave a score that is not finite"):
            fit_committee(training_rows(X, y), {"broken": Member(lambda data: Broken(), None, "", COST)})

    def test_categories_reach_all_members(self):
        import pyarrow as pa

        rng = np.random.default_rng(0)
        color = rng.choice(["red", "green", "blue"], size=400)
        y = ((color == "blue") & (rng.random(400) < 0.6)).astype(float)
        features = TableFeatures(pa.table({"color": color, "x": rng.normal(size=400)}))
        fitted = fit_committee(
            TrainingRows(features, y, np.ones(400)), find_members(["gbdt", "trees", "linear"]), folds=3
        )
        for row in fitted.leaderboard.rows:
            assert row.ap.estimate > 0.35, row.name

    def test_the_losses_of_a_network_share_the_first_stage_and_differ_in_the_second(self):
        X, y = table(7, 200)
        data = FoldData(X.astype(np.float32), X, y, np.ones(200), [0] * 4, None, seed=0, rounds=(1, 2))
        scores = [member.fit(data).score(data.matrix) for member in find_members(NETWORKS).values()]
        assert len(data.shared) == 1
        for first, second in combinations(scores, 2):
            assert np.ptp(first - second) > 1e-4

    @pytest.mark.slow
    def test_mined_negatives_enter_the_verdict_and_change_no_other_member(self, tmp_path):
        X, y = table(7, 500)
        rows = training_rows(X, y)
        with_mined = fit_committee(rows, find_members(NETWORKS), folds=2)
        without = fit_committee(rows, find_members(["mlp", "mlp_ce"]), folds=2)
        for name in ("mlp", "mlp_ce"):
            np.testing.assert_array_equal(with_mined.score(X, member=name), without.score(X, member=name))
        verdicts = {verdict.ce_member: verdict for verdict in with_mined.leaderboard.verdicts}
        assert list(verdicts) == ["mlp_ce", "mlp_mined"]
        save_committee(tmp_path / "saved", with_mined)
        loaded = load_committee(tmp_path / "saved")
        np.testing.assert_array_equal(loaded.score(X, member="mlp_mined"), with_mined.score(X, member="mlp_mined"))
        assert loaded.leaderboard == with_mined.leaderboard

    @pytest.mark.parametrize(("low", "high", "end"), [(0.01, 0.3, "the gain is more"), (-0.1, 0.1, "may do as much")])
    def test_the_sentence_on_mined_negatives_says_what_it_compares_with(self, low, high, end):
        difference = Difference(0.1, low, high, 0.95, 0.5)
        sentence = LossVerdict("mlp", "mlp_mined", difference).sentence
        assert sentence.startswith("mlp trained by AP against cross-entropy on mined negatives: +0.100 (")
        assert end in sentence
        assert "mined" not in LossVerdict("mlp", "mlp_ce", difference).sentence

    def test_mined_twins_are_members_of_effort_best_alone(self):
        for kind, members in MEMBERS_BY_KIND.items():
            mined = {name for name in members if name.endswith("_mined")}
            assert len(mined) == 1
            assert set(find_members(None, effort="best", kind=kind)) == set(members)
            for effort in ("quick", "standard"):
                assert set(find_members(None, effort=effort, kind=kind)) == set(members) - mined

    @pytest.mark.slow
    def test_networks_are_members_and_enter_the_verdict(self):
        X, y = table(7, 500)
        fitted = fit_committee(training_rows(X, y), find_members(["mlp", "mlp_ce"]), folds=2)
        assert [verdict.ap_member for verdict in fitted.leaderboard.verdicts] == ["mlp"]
        assert fitted.leaderboard.blend.ap.estimate > 0.3


class TestForest:
    @pytest.mark.parametrize("kind", ["forest", "trees"])
    def test_arrays_give_the_probabilities_of_scikit_learn(self, kind):
        from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

        X, y = table(8, 300)
        X = X.astype(np.float32)
        classes = {"forest": RandomForestClassifier, "trees": ExtraTreesClassifier}
        expected = classes[kind](n_estimators=20, random_state=3).fit(X, y).predict_proba(X)[:, 1]
        scores = fit_forest(X, y, np.ones(300), kind=kind, trees=20, seed=3).score(X)
        smoothed = (20 * expected + 0.5) / 21
        assert scores == pytest.approx(np.log(smoothed / (1 - smoothed)))

    def test_compiled_trees_are_kept_for_small_calls_only(self):
        X, y = table(8, 300)
        forest = fit_forest(X.astype(np.float32), y, np.ones(300), kind="trees", trees=20, seed=3)
        scores = forest.score(X)
        assert "_trees" not in vars(forest)
        assert (forest.score(X[:2]) == scores[:2]).all()
        assert len(vars(forest)["_trees"]) == 20

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"left": np.array([0, -1, -1])}, "child is not in its tree"),
            ({"left": np.array([1, -2, -1])}, "child is not in its tree"),
            ({"threshold": np.array([np.nan, 0.0, 0.0])}, "threshold is not finite"),
            ({"threshold": np.zeros((3, 1))}, "other shapes"),
            ({"feature": np.array(["0", "0", "0"])}, "not numbers"),
            ({"right": np.array([9, -1, -1])}, "child is not in its tree"),
            ({"feature": np.array([7, 0, 0])}, "column that does not exist"),
            ({"starts": np.array([0, 2])}, "do not fill its nodes"),
            ({"probability": np.array([0.1, np.nan, 0.2])}, "between 0 and 1"),
            ({"threshold": np.array([0.0])}, "differ in length"),
        ],
    )
    def test_arrays_that_are_no_forest_are_refused(self, change, message):
        arrays = {
            "starts": np.array([0, 3]),
            "left": np.array([1, -1, -1]),
            "right": np.array([2, -1, -1]),
            "feature": np.array([0, -2, -2]),
            "threshold": np.zeros(3),
            "probability": np.array([0.5, 0.0, 1.0]),
            "features": np.array(2),
        }
        scores = Forest.from_bytes(npz_content(**arrays)).score(np.array([[-1.0, 0], [1.0, 0]], np.float32))
        assert scores.round(3).tolist() == [-1.099, 1.099]
        with pytest.raises(ValueError, match=message):
            Forest.from_bytes(npz_content(**{**arrays, **change}))


class TestStorage:
    @pytest.fixture
    def folder(self, committee, tmp_path):
        save_committee(tmp_path / "c", committee)
        return tmp_path / "c"

    def test_loaded_committee_gives_the_same_bits(self, committee, folder):
        X, _ = table(9)
        loaded = load_committee(folder)
        assert np.array_equal(loaded.score(X), committee.score(X))
        assert np.array_equal(loaded.log_odds(loaded.score(X)), committee.log_odds(committee.score(X)))
        assert loaded.leaderboard == committee.leaderboard
        assert loaded.blend.method == committee.blend.method

    def test_a_leaderboard_without_the_name_of_its_rows_is_of_cross_fitted_ones(self, committee, folder):
        content = json.loads((folder / "committee.json").read_text())
        assert content["leaderboard"].pop("part") == "cross-fitted"
        (folder / "committee.json").write_text(json.dumps(content))
        write_manifest(folder, read_manifest(folder, kind="committee").files, kind="committee")
        assert load_committee(folder).leaderboard == committee.leaderboard

    def test_every_damaged_file_is_refused(self, folder):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
                with pytest.raises(FolderError):
                    load_committee(folder)
                path.write_bytes(content)
        load_committee(folder)

    @pytest.mark.parametrize("name", ["gbdt/fold-0.txt", "trees/fold-0.npz", "linear/fold-0.npz"])
    def test_malicious_members_with_a_valid_manifest_execute_nothing(self, folder, name, tmp_path):
        mark = tmp_path / "executed"

        class Payload:
            def __reduce__(self):
                return (open, (str(mark), "w"))

        (folder / "members" / name).write_bytes(pickle.dumps(Payload()))
        write_manifest(folder, read_manifest(folder, kind="committee").files, kind="committee")
        with pytest.raises(FolderError):
            load_committee(folder)
        assert not mark.exists()

    def test_arrays_of_objects_execute_nothing(self, folder, tmp_path):
        mark = tmp_path / "executed"

        class Payload:
            def __reduce__(self):
                return (open, (str(mark), "w"))

        np.savez(folder / "members/linear/fold-0.npz", sizes=np.array([Payload()], dtype=object), weight=1, intercept=0)
        write_manifest(folder, read_manifest(folder, kind="committee").files, kind="committee")
        with pytest.raises(FolderError, match="committee"):
            load_committee(folder)
        assert not mark.exists()

    def test_own_estimators_cannot_be_saved(self, tmp_path):
        from sklearn.linear_model import LogisticRegression

        X, y = table()
        fitted = fit_committee(training_rows(X, y), find_members([("own", LogisticRegression())]), folds=2)
        with pytest.raises(ValueError, match="LogisticRegression is an estimator of your own"):
            save_committee(tmp_path / "c", fitted)
        assert not (tmp_path / "c").exists()

    def test_an_interrupted_fit_continues_to_the_same_bits(self, committee, tmp_path):
        X, y = table()
        members = find_members(CHEAP)
        kept: list[FitResult] = []

        def stop(result: FitResult) -> None:
            save_result(tmp_path, result, members[result.task.name])
            kept.append(result)
            if len(kept) == 5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fit_committee(training_rows(X, y), members, folds=3, on_result=stop)
        last = kept[-1].task
        suffix = members[last.name].suffix
        (tmp_path / "members" / last.name / f"fold-{last.fold}{suffix}").write_bytes(b"damaged")
        finished = load_results(tmp_path, members, 3)
        assert set(finished) == {(result.task.fold, result.task.name) for result in kept[:-1]}
        resumed = fit_committee(training_rows(X, y), members, folds=3, finished=finished)
        assert np.array_equal(resumed.score(X), committee.score(X))


class TestMembers:
    def test_unknown_and_repeated_names_are_refused(self):
        with pytest.raises(ValueError, match="members"):
            find_members(["gbtd"])
        with pytest.raises(ValueError, match="'gbdt' twice"):
            find_members(["gbdt", "gbdt"])
        with pytest.raises(ValueError, match="at least one"):
            find_members([])

    def test_own_estimator_without_weights_is_refused_with_weights(self):
        from sklearn.neighbors import KNeighborsClassifier

        X, y = table()
        rows = TrainingRows(ArrayFeatures(X), y, np.linspace(1, 2, len(y)))
        with pytest.raises(ValueError, match="KNeighborsClassifier takes no sample_weight"):
            fit_committee(rows, find_members([("knn", KNeighborsClassifier())]), folds=2)


def trees(boosting):
    return boosting.booster.num_trees()


class TestBoosting:
    def fit(self, **options):
        X, y = table(3, 600, share=0.1, signal=1.0)
        stopping = (np.arange(0, 450), np.arange(450, 600))
        return fit_boosting(X, y, np.ones(len(y)), sizes=[0] * 4, stopping=stopping, seed=0, **options)

    @pytest.mark.parametrize("rule", STOPPING_RULES)
    def test_held_out_rows_stop_it_and_all_rows_are_fitted_again(self, rule):
        stopped = self.fit(stop_by=rule, least_rounds=1, refit=False)
        again = self.fit(stop_by=rule, least_rounds=1)
        assert again.rounds == stopped.rounds
        assert stopped.rounds[0] < 1000
        assert again.text != stopped.text
        assert again.text == self.fit(rounds=stopped.rounds[0]).text

    def test_it_has_the_least_number_of_rounds(self):
        (found,) = self.fit(least_rounds=1).rounds
        assert self.fit(least_rounds=found + 7).rounds == (found + 7,)
        assert self.fit(least_rounds=found - 1).rounds == (found,)

    def test_smoothed_average_precision_is_the_mean_of_the_last_rounds(self):
        rng = np.random.default_rng(0)
        labels, scores = (rng.random(50) < 0.3).astype(float), rng.normal(size=(6, 50))
        evaluate = running_average_precision(3)
        data = SimpleNamespace(get_label=lambda: labels, get_weight=lambda: None)
        values = [evaluate(row, data)[1] for row in scores]
        single = [reference_ap(row, labels) for row in scores]
        expected = [np.mean(single[max(0, end - 3) : end]) for end in range(1, 7)]
        np.testing.assert_allclose(values, expected)

    def test_an_unknown_rule_is_refused(self):
        with pytest.raises(ValueError, match="stop_by must be one of"):
            self.fit(stop_by="auc")
