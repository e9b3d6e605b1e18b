"""Committees of molecules: members, folds by scaffold, several targets, saved folders and resumed trainings."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

pytest.importorskip("rdkit")

from apmax.committee import MOLECULE_MEMBERS, CommitteePlan, save_result
from apmax.committee.features import FingerprintColumns
from apmax.data.molecules import MoleculeDataset, build_chunk, molecule_dataset, scaffolds
from apmax.data.molecules.descriptors import DESCRIPTOR_COUNT
from apmax.data.molecules.fingerprints import MORGAN_SIZE, PROPERTY_NAMES
from apmax.folders import FolderError
from apmax.metrics import average_precision
from apmax.workflows import CommitteeJob, JobPlan, Overrides, load_model, load_scored_rows, plan_training, train_job
from apmax.workflows.committee_training import _shared_folds
from apmax.workflows.data_types import LabelledRows
from apmax.workflows.data_types.molecules import MoleculeData, MoleculeType
from apmax.workflows.job import job_from_table, job_to_table
from apmax.workflows.prepare import prepare_committee_rows
from commands import interrupted_after, run
from small_files import ARMS, CORES, read_csv

MEMBERS = ["gbdt", "trees"]
RINGS = [
    "C1CCC1",
    "C1CCCC1",
    "C1CCCCCC1",
    "C1CCOC1",
    "C1CCSC1",
    "c1ccoc1",
    "c1ccsc1",
    "C1CCOCC1",
    "C1CNCCN1",
    "c1cncnc1",
]
SMILES = [arm + core for core in (*CORES, *RINGS) for arm in ARMS]


def write_molecules(path, bad=0):
    """Write bromides as actives, and amines as toxic where that is measured."""
    lines = [
        f"{text},{int('Br' in text)},{'' if number % 3 == 0 else int('N' in text)}"
        for number, text in enumerate(SMILES)
    ]
    path.write_text("\n".join(["smiles,active,toxic", *lines, *["C(C,1,1"] * bad]) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("molecules")


@pytest.fixture(autouse=True, scope="module")
def _small_members(folder):
    """Ten trees are enough here, and the cache is one of its own."""
    few = replace(MOLECULE_MEMBERS["trees"], fit=partial(MOLECULE_MEMBERS["trees"].fit, trees=10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("APMAX_CACHE", str(folder / "cache"))
        patch.setitem(MOLECULE_MEMBERS, "trees", few)
        yield


@pytest.fixture(scope="module")
def committee(folder):
    """A folder with the committee of one target that was trained in it."""
    write_molecules(folder / "a.csv", bad=1)
    return folder, train_job(table(folder), out=folder / "run")


def table(folder, target="active", **committee):
    data = {"train": str(folder / "a.csv"), "target": target, "smiles": "smiles"}
    return {"data": data, "committee": {"members": MEMBERS, **committee}}


def test_a_committee_with_whole_scaffolds_is_the_default_of_molecules(tmp_path):
    data = {"train": str(write_molecules(tmp_path / "a.csv")), "target": "active", "smiles": "smiles"}
    job = plan_training({"data": data})
    assert isinstance(job, CommitteeJob)
    assert (job.data.split, job.data.fingerprints) == ("scaffold", True)
    assert job_from_table(job_to_table(job)) == job
    assert plan_training({"data": {**data, "split": "stratified"}}).data.split == "stratified"
    assert plan_training({"data": {**data, "group": "toxic"}}).data.split is None
    for overrides in ({"loss": "ce"}, {"epochs": 2}, {"ensemble": 2}, {"settings": {"model.name": "gine"}}):
        plan = plan_training({"data": data}, Overrides(**overrides))
        assert isinstance(plan, JobPlan)
        assert (plan.data.split, plan.data.fingerprints) == (None, False)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["linear"],
            "'linear' is a member for data of kind table; these .* which has gbdt, forest, trees, gine, gine_ce",
        ),
        (["svm"], "members must be one of gbdt"),
    ],
)
def test_members_of_tables_are_not_those_of_molecules(names, message, tmp_path):
    write_molecules(tmp_path / "a.csv")
    with pytest.raises(ValueError, match=message):
        plan_training({**table(tmp_path), "committee": {"members": names}})


def test_the_committee_ranks_and_names_unreadable_molecules(committee):
    folder, result = committee
    assert result.valid.each["active"].ap.estimate > 0.9
    assert "C(C" in (folder / "run" / "unreadable.csv").read_text()
    scores = result.model.score(["BrCC1CCCCC1", "C(C", "CCC1CCCCC1"])
    assert scores[0] > scores[2]
    assert np.isnan(scores[1])


def test_no_scaffold_is_in_two_folds(committee):
    folder, _ = committee
    job = plan_training(table(folder))
    plan = CommitteePlan.from_table(json.loads((folder / "run" / "plan.json").read_text())["plan"], kind="molecules")
    folds = _shared_folds(prepare_committee_rows(job.data, seed=0), job, plan)
    names = np.array(scaffolds(SMILES))
    assert len(folds) == 5
    for train, held_out in folds:
        assert not set(names[train]) & set(names[held_out])
    assert sorted(np.concatenate([held_out for _, held_out in folds]).tolist()) == list(range(len(SMILES)))


@pytest.mark.parametrize("fingerprints", [True, False])
def test_molecules_without_rings_are_groups_with_their_duplicates(fingerprints):
    pa = pytest.importorskip("pyarrow")
    smiles = ["CCO", "OCC", "CCN", "Cc1ccccc1", "Oc1ccccc1"]
    data_type = MoleculeType(MoleculeData("a.csv", "y", smiles="smiles", split="scaffold"))
    dataset, _ = molecule_dataset(smiles, fingerprints=fingerprints, workers=1)
    rows = LabelledRows(pa.table({"smiles": smiles}), np.zeros(len(smiles), np.float32), dataset)
    first, same, other, ring, methyl = data_type.groups(rows)
    assert first == same
    assert ring == methyl
    assert len({first, other, ring}) == 3


def test_a_loaded_committee_scores_as_the_trained_one(committee):
    folder, result = committee
    loaded = load_model(folder / "run")
    scores = loaded.score(folder / "a.csv")
    np.testing.assert_array_equal(scores, result.model.score(folder / "a.csv"))
    np.testing.assert_array_equal(scores, loaded.score([*SMILES, "C(C"]))
    probability = loaded.score(SMILES, probability=True)
    assert np.abs(probability.mean() - np.mean(["Br" in text for text in SMILES])) < 0.1
    assert np.corrcoef(loaded.with_member("gbdt").score(SMILES), scores[:-1])[0, 1] < 0.99999


def test_an_interrupted_training_continues_to_the_same_scores(committee, tmp_path, monkeypatch):
    from apmax.workflows import committee_training

    folder, result = committee
    monkeypatch.setattr(committee_training, "save_result", interrupted_after(4))
    with pytest.raises(KeyboardInterrupt):
        train_job(table(folder), out=tmp_path / "r")
    fitted = []
    monkeypatch.setattr(
        committee_training, "save_result", lambda *args: (fitted.append(args[1].task), save_result(*args))
    )
    again = train_job(table(folder), out=tmp_path / "r", resume=True)
    assert len(fitted) == 5 * len(MEMBERS) - 4
    np.testing.assert_array_equal(again.model.score(SMILES), result.model.score(SMILES))


def test_other_molecules_are_not_resumed(committee, tmp_path):
    """Labels, rows and settings are the same; one molecule is another."""
    folder, _ = committee
    shutil.copytree(folder / "run", tmp_path / "run")
    text = (folder / "a.csv").read_text()
    (tmp_path / "a.csv").write_text(text.replace(SMILES[7], SMILES[7] + "CCC", 1))
    with pytest.raises(ValueError, match="was of other rows"):
        train_job(table(tmp_path), out=tmp_path / "run", resume=True)


def test_a_committee_of_other_fingerprints_is_refused(committee, tmp_path, monkeypatch):
    from apmax.data.molecules import fingerprints

    folder, _ = committee
    monkeypatch.setattr(fingerprints, "FINGERPRINT_VERSION", 0)
    with pytest.raises(FolderError, match="fingerprints are of another version"):
        load_model(folder / "run")


def test_several_targets_have_a_committee_each_on_shared_folds(folder, tmp_path):
    write_molecules(folder / "a.csv")
    job = table(folder, target=["active", "toxic"], members=["trees"])
    result = train_job({**job, "data": {**job["data"], "test": str(folder / "a.csv")}}, out=tmp_path / "r")
    assert list(result.leaderboards) == ["active", "toxic"]
    loaded = load_model(tmp_path / "r")
    scores = loaded.score(SMILES)
    assert scores.shape == (len(SMILES), 2)
    np.testing.assert_array_equal(scores, result.model.score(SMILES))
    for number, kind in enumerate(("Br", "N")):
        assert average_precision(scores[:, number], np.array([kind in text for text in SMILES])) > 0.9
    stored = load_scored_rows(tmp_path / "r")["cross-fitted"]
    measured = np.arange(len(SMILES)) % 3 != 0
    assert (~np.isnan(stored.labels[:, 1])).tolist() == measured.tolist()
    assert not np.isnan(stored.scores[measured]).any()
    results = json.loads((tmp_path / "r" / "results.json").read_text())
    for number, name in enumerate(("active", "toxic")):
        known = ~np.isnan(stored.labels[:, number])
        expected = average_precision(stored.scores[known, number], stored.labels[known, number]).item()
        assert results["cross_fitted"]["targets"][name]["ap"]["estimate"] == pytest.approx(expected, abs=1e-6)
        blend = results["targets"][name]["leaderboard"][-1]
        assert blend["name"] == "blend"
        assert blend["ap"]["estimate"] == pytest.approx(expected, abs=1e-6)
    assert loaded.with_member("trees").score(SMILES).shape == (len(SMILES), 2)
    assert loaded.score(SMILES, probability=True).shape == (len(SMILES), 2)


def test_a_target_of_few_labels_has_a_split_of_its_own(folder, tmp_path):
    """Where the shared folds leave a target too few rows to fit, the others keep theirs."""
    lines = [f"{text},{int('Br' in text)},{int(k == 0) if k < 4 else ''}" for k, text in enumerate(SMILES)]
    (folder / "a.csv").write_text("\n".join(["smiles,active,rare", *lines]) + "\n")
    result = train_job(table(folder, target=["active", "rare"], members=["gbdt"]), out=tmp_path / "r")
    assert result.valid.each["active"].ap.estimate > 0.5
    assert "rare" not in result.valid.each
    assert np.isfinite(load_model(tmp_path / "r").score(SMILES)).all()
    write_molecules(folder / "a.csv", bad=1)


def test_quick_is_boosting_on_one_split(folder, tmp_path):
    write_molecules(folder / "a.csv", bad=1)
    job = {**table(folder), "committee": {"effort": "quick"}}
    result = train_job(job, out=tmp_path / "r")
    assert [row.name for row in result.leaderboards["active"].rows] == ["gbdt"]
    assert (tmp_path / "r" / "members" / "gbdt" / "final.txt").exists()


@pytest.mark.parametrize(
    ("committee", "levels", "graphs"),
    [
        ({}, False, True),
        ({"effort": "quick"}, False, False),
        ({"effort": "quick", "members": ["gine"]}, False, True),
        ({"members": ["gbdt", "forest"]}, False, False),
        ({"members": ["trees", "gine_ce"]}, False, True),
        ({"effort": "best"}, True, True),
        ({"effort": "best", "members": ["trees"]}, True, False),
    ],
)
def test_descriptors_are_for_best_only_and_graphs_for_networks(committee, levels, graphs, tmp_path):
    write_molecules(tmp_path / "a.csv")
    data = plan_training({**table(tmp_path), "committee": committee}).data
    assert (data.fingerprints, data.levels, data.graphs) == (True, levels, graphs)


def test_quick_reads_no_graphs_and_shares_the_cache_of_others(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("APMAX_CACHE", str(tmp_path / "cache"))
    write_molecules(folder / "a.csv", bad=1)
    alone = train_job(table(folder, members=(), effort="quick"), out=tmp_path / "alone")
    (cached,) = (tmp_path / "cache").iterdir()
    assert np.load(cached / "atoms.npy").size == 0
    monkeypatch.setenv("APMAX_CACHE", str(tmp_path / "shared"))
    job = plan_training(table(folder, members=("gine",), effort="quick"))
    prepare_committee_rows(job.data, seed=0)
    both = train_job(table(folder, ["active", "toxic"], members=(), effort="quick"), out=tmp_path / "both")
    again = train_job(table(folder, members=(), effort="quick"), out=tmp_path / "again")
    (cached,) = (tmp_path / "shared").iterdir()
    assert np.load(cached / "atoms.npy").size > 0
    np.testing.assert_array_equal(again.model.score(SMILES), alone.model.score(SMILES))
    assert both.model.score(SMILES).shape == (len(SMILES), 2)


def test_best_adds_the_descriptors(folder, tmp_path):
    write_molecules(folder / "a.csv")
    job = {**table(folder), "committee": {"effort": "best", "members": ["gbdt"]}}
    short = {"train": str(folder / "short.csv"), "target": "active", "smiles": "smiles"}
    (folder / "short.csv").write_text("\n".join((folder / "a.csv").read_text().splitlines()[:37]) + "\n")
    result = train_job({**job, "data": short}, out=tmp_path / "r")
    loaded = load_model(tmp_path / "r")
    features = loaded.committees[0].folds[0].features
    assert len(features.sizes) == MORGAN_SIZE + len(PROPERTY_NAMES) + DESCRIPTOR_COUNT
    np.testing.assert_array_equal(loaded.score(SMILES[:4]), result.model.score(SMILES[:4]))


def test_columns_are_counts_properties_and_descriptors():
    store = build_chunk(0, SMILES[:9], fingerprints=True, levels=True).store
    places = np.array([7, 2])
    matrix = FingerprintColumns(descriptors=True).matrix(MoleculeDataset(store, places=places)).toarray()
    for row, place in zip(matrix, places, strict=True):
        pairs = store.fingerprints.counts.take(np.array([place])).values
        expected = np.zeros(MORGAN_SIZE)
        expected[pairs[:, 0]] = pairs[:, 1]
        parts = [expected, store.fingerprints.properties[place], store.levels.descriptors[place]]
        np.testing.assert_array_equal(row, np.concatenate(parts).astype(np.float32))
    with pytest.raises(ValueError, match="without fingerprints"):
        FingerprintColumns().matrix(MoleculeDataset(build_chunk(0, SMILES[:2]).store))


def test_labels_do_not_leak_through_features(folder):
    """A fold's members see neither labels nor other columns of the held-out rows: random labels are not ranked."""
    random = np.random.default_rng(0).random(len(SMILES)) < 0.3
    path = folder / "random.csv"
    lines = [f"{text},{y:d},{y:d}" for text, y in zip(SMILES, random, strict=True)]
    path.write_text("\n".join(["smiles,y,copy", *lines]) + "\n")
    data = {"train": str(path), "target": "y", "smiles": "smiles"}
    result = train_job({"data": data, "committee": {"members": ["gbdt"]}}, out=folder / "random")
    assert result.valid.each["y"].ap.estimate < 0.45


@pytest.mark.slow
def test_graph_networks_are_members_with_a_verdict(folder, tmp_path, monkeypatch):
    from apmax.committee import network_members

    monkeypatch.setattr(network_members, "_GRAPH_STEPS", 60)
    monkeypatch.setattr(network_members, "_GRAPH_JOINT_STEPS", 12)
    write_molecules(folder / "a.csv", bad=1)
    job = table(folder, members=["gbdt", "gine", "gine_ce", "gine_mined"])
    result = train_job(job, out=tmp_path / "r")
    pairs = [(verdict.ap_member, verdict.ce_member) for verdict in result.leaderboards["active"].verdicts]
    assert pairs == [("gine", "gine_ce"), ("gine", "gine_mined")]
    loaded = load_model(tmp_path / "r")
    np.testing.assert_array_equal(loaded.score(SMILES), result.model.score(SMILES))
    own = loaded.with_member("gine").score(SMILES)
    assert average_precision(own, np.array(["Br" in text for text in SMILES])) > 0.3
    again = train_job(job, out=tmp_path / "again")
    np.testing.assert_array_equal(again.model.score(SMILES), result.model.score(SMILES))


@pytest.mark.slow
def test_the_command_line_trains_ranks_evaluates_and_decides(committee, tmp_path, capsys):
    folder, _ = committee
    write_molecules(folder / "a.csv", bad=1)
    arguments = [folder / "a.csv", "--smiles", "smiles", "--target", "active", "--member", "gbdt"]
    assert run("train", *arguments, "--out", tmp_path / "r", "--no-report") == 0
    shown = capsys.readouterr().out
    for text in ("plan (standard): gbdt on 5 folds", "cross-fitted"):
        assert text in shown
    assert "blend" not in shown, "there is one member"
    assert run("predict", tmp_path / "r", folder / "a.csv", "--sort", "--out", tmp_path / "s.csv") == 0
    assert "Br" in read_csv(tmp_path / "s.csv")[0]["smiles"]
    assert run("evaluate", tmp_path / "r", folder / "a.csv", "--member", "gbdt") == 0
    assert run("decide", tmp_path / "r", "--recall", "0.7") == 0
    assert run("report", tmp_path / "r", "--out", tmp_path / "r.html") == 0


@pytest.mark.slow
def test_the_command_line_takes_several_targets(folder, tmp_path, capsys):
    write_molecules(folder / "a.csv", bad=1)
    targets = ["--target", "active", "--target", "toxic"]
    out = tmp_path / "r"
    assert run("train", folder / "a.csv", "--smiles", "smiles", *targets, "--member", "trees", "--out", out) == 0
    shown = capsys.readouterr().out
    for text in ("active, cross-fitted", "toxic, cross-fitted", "mean", "Report: "):
        assert text in shown
    assert (out / "report.html").exists()
    assert run("decide", out, "--recall", "0.7", "--target", "toxic") == 0
    assert run("predict", out, folder / "a.csv", "--by", "toxic", "--sort", "--out", tmp_path / "s.csv") == 0
    first = read_csv(tmp_path / "s.csv")[0]
    assert "N" in first["smiles"]
    assert first["decision toxic"] == "1"


def chain_molecules(path, rare):
    """Write 80 chains with a group and two targets; `rare` are the positives of the second."""
    lines = ["smiles,group,common,rare"]
    for k in range(80):
        text = "C" * (1 + k % 9) + "N" * (k % 2) + "O" + "C" * (k // 9)
        lines.append(f"{text},{k // 8},{int(k % 3 == 0)},{int(k in rare)}")
    path.write_text("\n".join(lines) + "\n")
    return {"train": str(path), "smiles": "smiles", "target": ["common", "rare"]}


def test_a_target_whose_positives_are_all_held_out_is_refused_before_anything_is_written(tmp_path):
    data = chain_molecules(tmp_path / "a.csv", [5]) | {"group": "group", "test_share": 0.2}
    config = MoleculeData(data["train"], ("common",), smiles="smiles", group="group", test_share=0.2)
    held_out = prepare_committee_rows(config, seed=0).test.row_numbers
    chain_molecules(tmp_path / "a.csv", held_out[:4])
    with pytest.raises(ValueError, match="'rare' has no positive row for training: hold out another share"):
        train_job({"data": data, "committee": {"members": ["gbdt"]}}, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_target_that_was_never_calibrated_has_no_probabilities(tmp_path):
    data = chain_molecules(tmp_path / "a.csv", [5]) | {"split": "stratified"}
    train_job({"data": data, "committee": {"members": ["gbdt"]}}, out=tmp_path / "r")
    model = load_model(tmp_path / "r")
    assert model.calibration[0] is not None
    assert model.calibration[1] is None
    assert model.score(tmp_path / "a.csv").shape == (80, 2)
    with pytest.raises(ValueError, match="probability: there is none of 'rare'"):
        model.score(tmp_path / "a.csv", probability=True)
