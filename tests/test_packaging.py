"""Versions, extras and claims of pyproject.toml, and the files that repeat them."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tools.check_distribution import CORE, SMOKE

from apmax import __version__

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
    lowest, not_installed = declared(), {"tomli", "descriptastorus", "pandas-flavor", "six"}
    assert {name: pinned().get(name) for name in lowest.keys() - not_installed} == {
        name: version for name, version in lowest.items() if name not in not_installed
    }


def project() -> dict[str, Any]:
    found: dict[str, Any] = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_every_extra_has_a_smoke_test() -> None:
    assert set(SMOKE) == set(project()["optional-dependencies"])


def packages_of(extra: str) -> set[str]:
    """Return the names of the packages that an extra declares, through other extras too."""
    packages: set[str] = set()
    for requirement in map(Requirement, project()["optional-dependencies"][extra]):
        packages |= set().union(*map(packages_of, requirement.extras)) or {canonicalize_name(requirement.name)}
    return packages


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["train", "sklearn", "boosting", "tables", "molecules", "images"])
def test_smoke_test_of_an_extra_needs_no_package_of_others(extra: str, tmp_path: Path) -> None:
    others = set().union(*map(packages_of, SMOKE)) - packages_of(extra)
    installed = metadata.packages_distributions()
    blocked = [name for name, sources in installed.items() if others.issuperset(map(canonicalize_name, sources))]
    assert {"typer", "jinja2"} <= set(blocked)
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked})); sys.path.insert(0, {str(ROOT / 'src')!r})"
    subprocess.run([sys.executable, "-W", "ignore", "-c", f"{code}\n{SMOKE[extra]}"], check=True, cwd=tmp_path)


def test_code_of_smoke_tests_compiles() -> None:
    for name, code in {"core": CORE, **SMOKE}.items():
        compile(code, name, "exec")


def test_version_is_that_of_changelog_and_citation() -> None:
    released = re.findall(r"^## \[(\d.+?)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert released[0] == cited[1] == __version__


def test_claimed_pythons_are_those_of_the_workflow() -> None:
    claimed = re.findall(r":: (3\.\d+)", "\n".join(project()["classifiers"]))
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    tested = re.search(r"python: \[(.+)\]", workflow)
    assert tested is not None
    assert re.findall(r"3\.\d+", tested[1]) == claimed
