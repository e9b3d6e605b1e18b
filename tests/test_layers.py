"""The picture of the architecture stays true: a module imports only what stands before it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "apmax"

# From the bottom up; inside a layer, too, a module imports only from those before it.
LAYERS = {
    "L0": ["validation", "extras"],
    "L1": ["surrogates", "exact", "functional", "metrics"],
    "L2": ["losses", "samplers", "optim", "distributed"],
    "L3": ["data", "models"],
    "L4": ["train", "integrations", "estimator"],
    "L5": ["workflows", "reproduce"],
    "L6": ["cli", "__main__"],
}
ORDER = [module for layer in LAYERS.values() for module in layer]
NEEDS_TORCH_AND_NUMPY_ONLY = [*LAYERS["L0"], *LAYERS["L1"], *LAYERS["L2"], "data/indexed"]


def files() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def top(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "apmax":
                found |= {f"apmax.{alias.name}" for alias in node.names}
            else:
                found.add(str(node.module))
    return found


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_module_imports_only_from_below(path: Path) -> None:
    assert top(path) in ORDER, f"{top(path)} has no place in the table of layers"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "apmax" and len(parts) > 1 and parts[1] not in (top(path), "__version__"):
            assert parts[1] in ORDER, f"{name} has no place in the table of layers"
            assert ORDER.index(parts[1]) < ORDER.index(top(path)), f"{path.name} reaches up for {name}"


def core_files() -> list[Path]:
    names = [str(path.relative_to(SOURCE).with_suffix("")) for path in files()]
    return [
        path
        for path, name in zip(files(), names, strict=True)
        if any(name == core or name.startswith(f"{core}/") for core in NEEDS_TORCH_AND_NUMPY_ONLY)
    ]


@pytest.mark.parametrize("path", core_files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_core_needs_torch_and_numpy_only(path: Path) -> None:
    outside = {name.split(".")[0] for name in imports(path)} - set(sys.stdlib_module_names)
    assert outside <= {"apmax", "torch", "numpy"}


def test_no_module_is_a_junk_drawer() -> None:
    assert not {path.stem for path in files()} & {"utils", "helpers", "common", "misc"}
