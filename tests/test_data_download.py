"""Published data sets: found in a folder, or downloaded and verified."""

from __future__ import annotations

import pytest

from apmax.data import download


def test_file_that_is_not_there_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delenv("APMAX_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="set APMAX_DATA"):
        download.locate("a/b.csv")
    with pytest.raises(FileNotFoundError, match="download=True fetches it from file:"):
        download.locate("a/b.csv", tmp_path, url="file:///nowhere")


def test_download_is_verified_and_a_wrong_one_discarded(tmp_path):
    home = tmp_path / "home.csv"
    home.write_text("smiles\nC\n")

    def refuse(path):
        raise ValueError(f"wrong content in {path.name}")

    with pytest.raises(ValueError, match=r"wrong content in b.csv"):
        download.locate("a/b.csv", tmp_path, url=home.as_uri(), verify=refuse, download=True)
    assert list((tmp_path / "a").iterdir()) == []
    found = download.locate("a/b.csv", tmp_path, url=home.as_uri(), verify=lambda path: None, download=True)
    assert found.read_text() == "smiles\nC\n"
    assert list((tmp_path / "a").iterdir()) == [found]


def test_failed_download_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="could not be fetched"):
        download.locate("a/b.csv", tmp_path, url=(tmp_path / "none").as_uri(), download=True)
