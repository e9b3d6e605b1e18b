"""Folders: the manifest of their files and the lock of a training."""

from __future__ import annotations

import json

import pytest

from apmax.folders import FolderError, check_free, lock_folder, read_manifest, write_atomic, write_manifest


@pytest.fixture
def folder(tmp_path):
    """A folder of two files, one of them in a sub-folder, with a manifest."""
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b.bin").write_bytes(bytes(range(100)))
    write_manifest(tmp_path, ["a.json", "inner/b.bin"], kind="model")
    return tmp_path


def read(folder):
    manifest = read_manifest(folder, kind="model")
    manifest.verify()
    return {name: manifest.read(name) for name in manifest.files}


def change(folder, **fields):
    """Change fields of the manifest, with a fitting checksum of its own."""
    from apmax.folders import _render

    table = {**json.loads((folder / "manifest.json").read_text()), **fields}
    table.pop("checksum")
    (folder / "manifest.json").write_bytes(_render(table))


def test_intact_files_are_read(folder):
    assert read(folder) == {"a.json": b"{}", "inner/b.bin": bytes(range(100))}
    assert read_manifest(folder, kind="model").complete


def test_files_that_are_not_listed_do_not_matter(folder):
    (folder / "notes.txt").write_text("mine")
    assert len(read(folder)) == 2


def test_changed_byte_and_truncation_anywhere_are_errors(folder):
    for name in ("a.json", "inner/b.bin", "manifest.json"):
        content = (folder / name).read_bytes()
        for place in {*range(0, len(content), 7), len(content) - 1}:
            for value in (content[place] ^ 1, content[place] ^ 0x80, 32, 10):
                if value != content[place]:
                    (folder / name).write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
                    with pytest.raises(FolderError):
                        read(folder)
            (folder / name).write_bytes(content[:place])
            with pytest.raises(FolderError):
                read(folder)
        (folder / name).write_bytes(content + b" ")
        with pytest.raises(FolderError):
            read(folder)
        (folder / name).write_bytes(content)
    assert len(read(folder)) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"version": 2, "apmax": "9.1"}, r"written by apmax 9\.1 \(format 2\), which is newer"),
        ({"format": "other"}, "was not written by apmax"),
        ({"version": "1"}, "was not written by apmax"),
        ({"version": True}, "was not written by apmax"),
        ({"kind": "committee"}, "holds no model: its manifest.json says 'committee'"),
        ({"files": []}, "lists no files"),
        ({"complete": 1}, "lists no files"),
        ({"files": {"a.json": 3}}, "no checksum of a.json"),
        ({"files": {"a.json": {"size": -1, "sha256": ""}}}, "no checksum of a.json"),
        ({"files": {"../a": {"size": 1, "sha256": ""}}}, "lists '../a'"),
        ({"files": {"/etc/passwd": {"size": 1, "sha256": ""}}}, "lists '/etc/passwd'"),
        ({"files": {"C:a": {"size": 1, "sha256": ""}}}, "lists 'C:a'"),
        ({"files": {"": {"size": 1, "sha256": ""}}}, "lists ''"),
    ],
)
def test_foreign_and_newer_manifests_are_errors(folder, fields, message):
    change(folder, **fields)
    with pytest.raises(FolderError, match=message):
        read(folder)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b"[]", b"5", b"null"])
def test_manifest_of_another_form_is_an_error(folder, content):
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(FolderError, match=r"manifest\.json"):
        read(folder)


def test_missing_files_are_named(folder):
    (folder / "inner" / "b.bin").unlink()
    with pytest.raises(FolderError, match=r"inner/b\.bin is missing"):
        read(folder)
    (folder / "inner" / "b.bin").mkdir()
    with pytest.raises(FolderError, match=r"inner/b\.bin is missing"):
        read(folder)
    with pytest.raises(FolderError, match=r"does not list c\.txt"):
        read_manifest(folder, kind="model").read("c.txt")
    (folder / "manifest.json").unlink()
    with pytest.raises(FileNotFoundError, match="holds no model of apmax"):
        read(folder)
    with pytest.raises(FileNotFoundError, match="nowhere does not exist: name the folder of a model"):
        read(folder / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"a\.json is a file and no folder"):
        read(folder / "a.json")


def test_second_lock_is_refused_and_the_folder_can_be_locked_again(tmp_path):
    with lock_folder(tmp_path / "r"):
        (tmp_path / "r" / "file").touch()
        with pytest.raises(FileExistsError, match="another training is running in"), lock_folder(tmp_path / "r"):
            pytest.fail("locked twice")
        assert sorted(each.name for each in (tmp_path / "r").iterdir()) == [".lock", "file"]
    with lock_folder(tmp_path / "r"):
        pass
    assert (tmp_path / "r" / "file").exists()


def test_folders_that_stay_empty_are_removed_and_those_that_were_there_kept(tmp_path):
    (tmp_path / "known").mkdir()
    for name in ("known", "new/inner"):
        with pytest.raises(RuntimeError), lock_folder(tmp_path / name):
            raise RuntimeError
    assert list(tmp_path.rglob("*")) == [tmp_path / "known"]


def test_folder_with_a_file_is_not_free(tmp_path):
    check_free(tmp_path / "missing")
    check_free(tmp_path)
    (tmp_path / ".lock").touch()
    check_free(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="is not empty"):
        check_free(tmp_path)


@pytest.mark.parametrize("name", ["file", "file/inner"])
def test_file_in_the_place_of_a_folder_is_called_that(tmp_path, name):
    (tmp_path / "file").touch()
    for refused in (lambda path: check_free(path), lambda path: lock_folder(path).__enter__()):
        with pytest.raises(FileExistsError, match=r"file is a file and no folder: choose another$"):
            refused(tmp_path / name)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_file_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    (tmp_path / "a.txt").write_bytes(b"before")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.txt'$"):
        write_atomic(tmp_path / "a.txt", b"after")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.txt", b"before")]
