"""CIFAR: the published binary archives, packed or not; the paper's counts."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from apmax.data.images import cifar
from apmax.data.images.cifar import (
    AUTHORS_FILE,
    CIFAR10,
    CIFAR100,
    cifar10,
    cifar100,
    find_archive,
    imbalanced_rows,
    read_archive,
)

PER_BATCH = 100
PARTS = ("train", "valid", "test")
REAL = Path(os.environ.get("APMAX_DATA", "/nowhere"))


def binary_records(data, labels, coarse):
    columns = [np.full(len(labels), 255, np.uint8)] if coarse else []
    return np.column_stack([*columns, np.array(labels, np.uint8), data]).tobytes()


def contents(archive):
    """Return the files' contents by name, and their pixels and classes in order."""
    generator = np.random.default_rng(archive.num_classes)
    files, planes, classes = {}, [], []
    for name in (*archive.train, archive.test):
        data = generator.integers(0, 256, (PER_BATCH, 3072), dtype=np.uint8)
        labels = [number % archive.num_classes for number in range(PER_BATCH)]
        files[name] = binary_records(data, labels, coarse=archive.label_bytes == 2)
        planes.append(data)
        classes.append(labels)
    return files, planes, classes


def put(folder, archive, files, *, packed):
    if not packed:
        (folder / archive.folder).mkdir(parents=True)
        for name, content in files.items():
            (folder / archive.folder / name).write_bytes(content)
        return folder / archive.folder
    path = folder / archive.file
    with tarfile.open(path, "w:gz") as file:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{archive.folder}/{name}")
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return path


@pytest.mark.parametrize("archive", [CIFAR10, CIFAR100], ids=lambda archive: archive.name)
@pytest.mark.parametrize("packed", [False, True])
def test_published_layout_is_read_to_the_pixel(tmp_path, archive, packed):
    files, planes, classes = contents(archive)
    path = put(tmp_path, archive, files, packed=packed)
    assert find_archive(archive, [tmp_path / "elsewhere", tmp_path]) == path
    pixels, found, test_pixels, test_found = read_archive(archive, path)
    everything = np.concatenate(planes[:-1])
    assert pixels.shape == (len(everything), 32, 32, 3)
    # Red, green and blue planes one after the other, each row by row.
    for image, y, x, channel in [(0, 0, 0, 0), (3, 5, 7, 1), (99, 31, 30, 2)]:
        assert pixels[image, y, x, channel] == everything[image, channel * 1024 + y * 32 + x]
        assert test_pixels[image, y, x, channel] == planes[-1][image, channel * 1024 + y * 32 + x]
    assert found.tolist() == np.concatenate(classes[:-1]).tolist()
    assert test_found.tolist() == classes[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: files.pop("data_batch_3.bin"), "has no file data_batch_3.bin"),
        (lambda files: files.update({"data_batch_2.bin": b"1234"}), "data_batch_2.bin must hold records of 3073"),
        (lambda files: files.update({"test_batch.bin": bytes([77]) * 3073}), "classes below 10, got 77"),
    ],
)
def test_damaged_archive_is_named(tmp_path, change, message):
    files, _, _ = contents(CIFAR10)
    change(files)
    with pytest.raises(ValueError, match=message):
        read_archive(CIFAR10, put(tmp_path, CIFAR10, files, packed=False))


@pytest.mark.parametrize("packed", [False, True])
def test_file_larger_than_published_is_not_read(tmp_path, monkeypatch, packed):
    files, _, _ = contents(CIFAR10)
    monkeypatch.setattr(cifar, "_MOST_IMAGES", PER_BATCH - 1)
    with pytest.raises(ValueError, match=r"data_batch_1\.bin must have at most 304227 bytes, got 307300"):
        read_archive(CIFAR10, put(tmp_path, CIFAR10, files, packed=packed))


def test_pickled_archive_is_not_looked_for(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(FileNotFoundError, match=r"there is no cifar-10-binary\.tar\.gz or cifar-10-batches-bin"):
        cifar10(tmp_path)


def test_cut_off_download_is_named(tmp_path):
    files, _, _ = contents(CIFAR10)
    path = put(tmp_path, CIFAR10, files, packed=True)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match="damaged or no tar archive"):
        read_archive(CIFAR10, path)


@pytest.mark.parametrize("num_classes", [10, 100])
def test_counts_are_the_papers(num_classes):
    classes = np.random.default_rng(0).permutation(np.arange(50_000) % num_classes)
    train, valid = imbalanced_rows(classes, num_classes)
    positive = classes >= num_classes // 2
    assert (len(train), len(valid)) == (20_400, 5_100)
    assert (positive[train].sum(), positive[valid].sum()) == (400, 100)
    assert not set(train) & set(valid)
    # Each class gives its share.
    counts = np.bincount(classes[train], minlength=num_classes)
    assert counts[: num_classes // 2].std() == 0
    assert counts[num_classes // 2 :].std() == 0


@pytest.mark.parametrize("keep", [0.003, 0.05, 0.5, 1.0])
def test_any_share_of_positives_can_be_kept(keep):
    classes = np.arange(50_000) % 100
    train, valid = imbalanced_rows(classes, 100, keep=keep)
    kept = (classes[train] >= 50).sum(), (classes[valid] >= 50).sum()
    assert sum(kept) == round(keep * 25_000)
    assert kept[1] == round(0.2 * sum(kept))
    per_class = np.bincount(np.concatenate([classes[train], classes[valid]]), minlength=100)[50:]
    assert per_class.max() - per_class.min() <= 1


def test_choice_depends_on_the_seed_alone():
    classes = np.arange(5000) % 10
    first, again, other = (imbalanced_rows(classes, 10, keep=0.1, seed=seed)[0] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_share_that_leaves_no_positive_is_refused():
    with pytest.raises(ValueError, match="leaves no positive"):
        imbalanced_rows(np.arange(1000) % 10, 10, keep=0.001)


def test_seeded_set_is_made_from_the_archive(tmp_path):
    files, planes, _ = contents(CIFAR10)
    put(tmp_path / "cifar10", CIFAR10, files, packed=False)
    parts = cifar10(tmp_path, keep=0.2, seed=4)
    # 500 training images: 250 negatives and 50 of 250 positives, cut 80/20.
    assert [len(part) for part in (parts.train, parts.valid, parts.test)] == [240, 60, 100]
    assert [int(part.labels.sum()) for part in (parts.train, parts.valid, parts.test)] == [40, 10, 50]
    assert parts.train.augment.pad == 4
    assert parts.train.seed == 4
    assert parts.valid.augment is parts.test.augment is None
    assert np.array_equal(parts.test.store.pixels[1, 0, 0], planes[-1][1].reshape(3, 1024)[:, 0])


def test_authors_selection_is_taken_where_it_is_found(tmp_path):
    (tmp_path / "cifar10").mkdir()
    arrays = {f"x_{part}": np.full((2, 32, 32, 3), number, np.uint8) for number, part in enumerate(PARTS)}
    arrays |= {f"y_{part}": np.array([0, 1], np.uint8) for part in PARTS}
    np.savez(tmp_path / AUTHORS_FILE, **arrays)
    parts = cifar10(tmp_path)
    assert [part.store.pixels[0, 0, 0, 0] for part in (parts.train, parts.valid, parts.test)] == [0, 1, 2]
    assert parts.train.labels.tolist() == [0, 1]
    with pytest.raises(FileNotFoundError, match="download=True fetches https"):
        cifar10(tmp_path, keep=0.1)
    with pytest.raises(FileNotFoundError, match="cifar-10"):
        cifar10(tmp_path, selection="seeded")


def test_environment_names_the_folder(tmp_path, monkeypatch):
    files, _, _ = contents(CIFAR100)
    put(tmp_path, CIFAR100, files, packed=True)
    monkeypatch.setenv("APMAX_DATA", str(tmp_path))
    assert len(cifar100(keep=1.0).test) == PER_BATCH
    monkeypatch.delenv("APMAX_DATA")
    with pytest.raises(FileNotFoundError, match="set APMAX_DATA"):
        cifar100()
    with pytest.raises(ValueError, match="keeps a share of"):
        cifar10(tmp_path, selection="authors", keep=0.5)


def test_download_is_verified(tmp_path, monkeypatch):
    files, _, _ = contents(CIFAR100)
    source = put(tmp_path, CIFAR100, files, packed=True)
    (tmp_path / "data").mkdir()

    class Nearby(type(CIFAR100)):
        url = source.as_uri()

    wrong = Nearby(**vars(CIFAR100))
    monkeypatch.setattr(cifar, "CIFAR100", wrong)
    with pytest.raises(ValueError, match="not the published archive"):
        cifar100(tmp_path / "data", download=True)
    assert not list((tmp_path / "data").rglob("*.tar.gz"))
    monkeypatch.setattr(cifar, "CIFAR100", replace(wrong, sha256=hashlib.sha256(source.read_bytes()).hexdigest()))
    assert len(cifar100(tmp_path / "data", keep=1.0, download=True).test) == PER_BATCH


@pytest.mark.data
@pytest.mark.skipif(not (REAL / AUTHORS_FILE).exists(), reason="APMAX_DATA has no CIFAR-10")
def test_real_selection_has_the_papers_counts():
    parts = cifar10()
    assert [len(part) for part in (parts.train, parts.valid, parts.test)] == [20_400, 5_100, 10_000]
    assert [int(part.labels.sum()) for part in (parts.train, parts.valid, parts.test)] == [400, 100, 5_000]
    # The paper's means and deviations are about those of the whole training set.
    images = parts.valid.read(range(0, 5000, 10))
    assert images.mean((0, 2, 3)).abs().max() < 0.3
    assert torch.allclose(images.std((0, 2, 3)), torch.ones(3), atol=0.2)
