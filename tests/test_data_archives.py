"""Archives: members are read within bounds, whatever they say of themselves."""

from __future__ import annotations

import io
import tarfile
import zipfile

import numpy as np
import pytest

from apmax.data.archives import read_npz, read_tar_members


def write_member(path, header_shape, content, compression=zipfile.ZIP_DEFLATED):
    """Write an .npz file whose array `a` claims a shape of int64."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<i8", "fortran_order": False, "shape": header_shape})
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("a.npy", stream.getvalue() + content)


def test_arrays_are_those_of_numpy(tmp_path):
    arrays = {"a": np.arange(6).reshape(2, 3), "b": np.array(["x", "yz"])}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        found = read_npz(tmp_path / "a.npz", ["a", "b"])
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
        found["a"] += 1  # writable, as torch needs it


def test_array_larger_than_allowed_is_not_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(1_000_000))
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    with pytest.raises(ValueError, match=r"a\.npz: the array 'a' must have at most 1,000 bytes, got 8,000,128"):
        read_npz(tmp_path / "a.npz", ["a"], most=1000)


def test_header_that_claims_more_than_there_is_allocates_nothing(tmp_path):
    write_member(tmp_path / "a.npz", (10**12,), b"\0" * 80)
    with pytest.raises(ValueError, match="its header says 8,000,000,000,000 bytes, it has 80"):
        read_npz(tmp_path / "a.npz", ["a"])


def test_pickled_objects_are_not_read(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="'a' cannot be read"):
        read_npz(tmp_path / "a.npz", ["a"])


def test_file_that_is_no_archive_is_named(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"a\.npz is damaged or no \.npz file"):
        read_npz(tmp_path / "a.npz", ["a"])


def write_tar(path, entries):
    with tarfile.open(path, "w:gz") as archive:
        for entry, content in entries:
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def test_members_are_read_by_name(tmp_path):
    write_tar(tmp_path / "a.tar.gz", [(tarfile.TarInfo("x/one"), b"1"), (tarfile.TarInfo("../two"), b"22")])
    assert read_tar_members(tmp_path / "a.tar.gz", {"two": 2}, total=2) == {"two": b"22"}


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_archive_that_grows_when_unpacked_is_read_to_the_limit_only(tmp_path, monkeypatch, kind):
    # Extended headers are read into memory by tarfile whatever their size.
    monkeypatch.setattr("apmax.data.archives._OTHER_BYTES", 100_000)
    entry = tarfile.TarInfo("other")
    entry.type = kind
    write_tar(tmp_path / "a.tar.gz", [(entry, bytes(2_000_000)), (tarfile.TarInfo("one"), b"1")])
    with pytest.raises(ValueError, match=r"a\.tar\.gz must have at most 100,001 bytes, unpacked"):
        read_tar_members(tmp_path / "a.tar.gz", {"one": 1}, total=1)
