"""Declared lowest versions, and those that `make test-lowest` installs."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent


def declared() -> dict[str, Version]:
    project = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    requirements = [Requirement(text) for text in texts if not text.startswith("apmax")]
    return {item.name: Version(next(s.version for s in item.specifier if s.operator == ">=")) for item in requirements}


def pinned() -> dict[str, Version]:
    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints-lowest.txt").read_text().splitlines()]
    return {name: Version(version) for name, version in (line.split("==") for line in lines if line)}


def test_lowest_declared_versions_are_those_of_test_lowest() -> None:
    lowest, not_installed = declared(), {"timm", "tomli", "descriptastorus", "pandas-flavor", "six"}
    assert {name: pinned().get(name) for name in lowest.keys() - not_installed} == {
        name: version for name, version in lowest.items() if name not in not_installed
    }
