"""Writer of the table of licences in docs/installation.md.

`make licences` runs it. The dependencies are those of pyproject.toml, and theirs in turn; versions and licences come
from the metadata of the packages that the environment has.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from apmax.reproduce.pages import replace_block

ROOT = Path(__file__).parent.parent
BLOCK = "licences"
"""The name of the generated part of docs/installation.md."""
INDIRECT, DEVELOPMENT, NOT_STATED = "others", "development", "not stated"
_LONGEST = 60  # a licence field longer than this is the text of a licence


def direct_requirements(project: dict[str, Any]) -> dict[str, list[Requirement]]:
    """Return the requirements of a parsed pyproject.toml by their use: "core", an extra, or "development"."""
    uses = {"core": project["project"]["dependencies"], **project["project"]["optional-dependencies"]}
    uses[DEVELOPMENT] = [text for group in project["dependency-groups"].values() for text in group]
    own = project["project"]["name"]
    parsed = {use: [Requirement(text) for text in texts] for use, texts in uses.items()}
    return {use: [requirement for requirement in found if requirement.name != own] for use, found in parsed.items()}


def uses_of_packages(direct: dict[str, list[Requirement]]) -> dict[str, list[str]]:
    """Return the canonical names of all packages needed, directly or through others, each with its uses."""
    uses: dict[str, list[str]] = {}
    for use, requirements in direct.items():
        for requirement in requirements:
            uses.setdefault(canonicalize_name(requirement.name), []).append(use)
    for use in sorted(direct, key=lambda use: use == DEVELOPMENT):  # last: what only development needs is marked
        indirect = f"{INDIRECT} ({DEVELOPMENT})" if use == DEVELOPMENT else INDIRECT
        queue, seen = list(direct[use]), set()
        while queue:
            for requirement in _requirements_of(queue.pop()):
                name = canonicalize_name(requirement.name)
                uses.setdefault(name, [indirect])
                if name not in seen:
                    seen.add(name)
                    queue.append(requirement)
    return uses


def licence_of(fields: metadata.PackageMetadata) -> str:
    """Return the licence that the metadata `fields` state: its expression, its classifiers, or a short text."""
    if expression := fields.get("License-Expression"):
        return str(expression)
    classifiers = [line.split(" :: ") for line in fields.get_all("Classifier") or []]
    names = [parts[-1] for parts in classifiers if parts[0] == "License" and parts[-1] != "OSI Approved"]
    if names:
        return ", ".join(sorted(names))
    text = str(fields.get("License") or "").strip()
    return text if 0 < len(text) <= _LONGEST and "\n" not in text else NOT_STATED


def licence_table(uses: dict[str, list[str]]) -> list[str]:
    """Return the lines of a Markdown table, direct dependencies first; those not installed have no version."""
    lines = ["| package | version | licence | needed by |", "|---|---|---|---|"]
    for name in sorted(uses, key=lambda name: (uses[name][0].startswith(INDIRECT), name)):
        try:
            fields = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            if not uses[name][0].startswith(INDIRECT):
                lines.append(f"| {name} | not installed | | {', '.join(uses[name])} |")
            continue
        licence = licence_of(fields).replace("|", "\\|")
        lines.append(f"| {fields['Name']} | {fields['Version']} | {licence} | {', '.join(uses[name])} |")
    return lines


def main() -> int:
    """Write the table, and name the packages that state no licence."""
    import tomllib

    with (ROOT / "pyproject.toml").open("rb") as file:
        lines = licence_table(uses_of_packages(direct_requirements(tomllib.load(file))))
    replace_block(ROOT / "docs" / "installation.md", BLOCK, "\n".join(lines))
    unstated = [line for line in lines if f"| {NOT_STATED} |" in line]
    sys.stderr.writelines(f"no licence in the metadata: {line}\n" for line in unstated)
    return 0


def _requirements_of(parent: Requirement) -> list[Requirement]:
    """Return what an installed package with its chosen extras needs here."""
    try:
        requirements = [Requirement(text) for text in metadata.requires(parent.name) or []]
    except metadata.PackageNotFoundError:
        return []
    extras = ["", *parent.extras]
    return [
        requirement
        for requirement in requirements
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
    ]


if __name__ == "__main__":
    sys.exit(main())
