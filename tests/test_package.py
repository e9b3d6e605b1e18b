"""The package as a whole: its layers, its public names, and what its documentation calls them."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import apmax

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "apmax"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# From the bottom up: a module imports only from its own entry and from those before it.
CORE = [
    "lazy",
    "validation",
    "extras",
    "folders",
    "surrogates",
    "exact",
    "functional",
    "metrics",
    "samplers",
    "losses",
    "optim",
    "distributed",
]
LAYERS = [
    *CORE,
    "data",
    "models",
    "train",
    "integrations",
    "blend",
    "committee",
    "estimator",
    "workflows",
    "decide",
    "plot",
    "report",
    "reproduce",
    "cli",
    "__main__",
]
TORCH_AND_NUMPY_ONLY = [*CORE, "data/indexed", "decide/thresholds"]


def source_files() -> dict[str, Path]:
    """Return the modules by their path below the package, without suffix."""
    paths = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
    return {str(path.relative_to(SOURCE).with_suffix("")): path for path in paths}


def imported_modules(path: Path) -> set[str]:
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


def upward_imports(module: str, imports: set[str]) -> list[str]:
    """Return the imports of `module` that no lower layer offers."""
    own = module.split("/")[0]
    below = {"__version__", *LAYERS[: LAYERS.index(own) + 1]}
    return [name for name in imports if name.startswith("apmax.") and name.split(".")[1] not in below]


def test_modules_import_only_from_lower_layers() -> None:
    unknown = {name.split("/")[0] for name in source_files()} - set(LAYERS)
    assert not unknown, f"without a place in the table of layers: {unknown}"
    wrong = {name: upward_imports(name, imported_modules(path)) for name, path in source_files().items()}
    assert not {name: imports for name, imports in wrong.items() if imports}


def test_an_upward_import_is_found() -> None:
    assert upward_imports("losses/base", {"apmax.train.loop", "apmax.metrics", "torch"}) == ["apmax.train.loop"]


def test_core_needs_torch_and_numpy_only() -> None:
    for name, path in source_files().items():
        if any(name == core or name.startswith(f"{core}/") for core in TORCH_AND_NUMPY_ONLY):
            outside = {imported.split(".")[0] for imported in imported_modules(path)} - set(sys.stdlib_module_names)
            assert outside <= {"apmax", "torch", "numpy"}, name


def test_no_module_is_a_collection_of_helpers() -> None:
    assert not {path.stem for path in source_files().values()} & {"utils", "helpers", "common", "misc"}


def public_definitions(path: Path) -> set[str]:
    """Return the public functions, classes and constants of a module, without optional modules under short names."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign) and "extras.load(" not in ast.unparse(node.value):
            targets = [part for target in node.targets for part in getattr(target, "elts", [target])]
            names |= {part.id for part in targets if isinstance(part, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_a_public_name_has_one_home() -> None:
    homes = defaultdict(set)
    for name, path in source_files().items():
        # A command of the command line is called like the function that does its work.
        for defined in set() if name.startswith("cli/") else public_definitions(path):
            homes[defined].add(name)
    assert len(homes) > 100
    assert not {name: sorted(places) for name, places in homes.items() if len(places) > 1}


def documented_names() -> list[str]:
    text = "\n".join(page.read_text() for page in PAGES)
    return sorted(set(re.findall(r"(?<![\w/.-])apmax(?:\.[A-Za-z_]\w*)+", text)))


PUBLIC_NAMES = [f"apmax.{name}" for name in apmax.__all__]
PLANTED = ["apmax.losses.APLoss", "apmax.losses.SOAP", "apmax.validation.rows"]


@pytest.fixture(scope="module")
def unresolved() -> set[str]:
    """Return the names that a fresh interpreter does not find after `import apmax`."""
    code = (
        "import apmax, json, operator, sys\n"
        "unresolved = []\n"
        "for name in json.loads(sys.stdin.read()):\n"
        "    try:\n"
        "        assert name.split('.')[1] in dir(apmax)  # even if another name has imported it\n"
        "        operator.attrgetter(name.partition('.')[2])(apmax)\n"
        "    except (AssertionError, AttributeError): unresolved.append(name)\n"
        "print(json.dumps(unresolved))"
    )
    names = json.dumps([*PUBLIC_NAMES, *documented_names(), *PLANTED])
    result = subprocess.run([sys.executable, "-c", code], input=names, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout))


def test_import_does_not_import_torch() -> None:
    code = "import apmax, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_dir_shows_public_names_only() -> None:
    assert dir(apmax) == sorted(apmax.__all__)
    assert not [name for name in apmax.__all__ if name.startswith("_")]


def test_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'apmax' has no attribute 'SOAP'"):
        _ = apmax.SOAP


@pytest.mark.slow
def test_public_names_resolve_after_the_bare_import(unresolved: set[str]) -> None:
    assert not set(PUBLIC_NAMES) & unresolved


@pytest.mark.slow
def test_names_in_the_documentation_resolve_after_the_bare_import(unresolved: set[str]) -> None:
    assert len(documented_names()) > 10
    assert not set(documented_names()) & unresolved


@pytest.mark.slow
def test_a_name_that_does_not_resolve_is_found(unresolved: set[str]) -> None:
    assert set(PLANTED) & unresolved == set(PLANTED[1:])
