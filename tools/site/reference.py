"""The reference of the Python package and of the command line, from the program itself.

A page under docs/reference has the line `<!-- reference: apmax.metrics -->`: every public name of the module that no
other page documents by hand (`::: apmax.losses.APLoss`) is put there, from its docstring. The page of the command line
is made from the parser of `apmax`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
LISTING = re.compile(r"^<!-- reference: (apmax[\w.]*) -->$", re.MULTILINE)
BY_HAND = re.compile(r"^::: (apmax[\w.]+)$", re.MULTILINE)
INTERNAL = {"apmax.cli", "apmax.extras", "apmax.folders", "apmax.lazy", "apmax.validation", "apmax.__main__"}


def public_modules() -> list[str]:
    """Return the modules whose names are public: packages with `__all__`, and modules that these offer whole."""
    packages = [path for path in sorted((SOURCE / "apmax").rglob("__init__.py")) if _exports(path) is not None]
    found = {_module_of(path) for path in packages}
    for path in packages:
        name = _module_of(path)
        found |= {f"{name}.{part}" for part in _exports(path) or () if _is_module(name, part)}
    return sorted(module for module in found if module not in INTERNAL)


def public_names(module: str) -> list[str]:
    """Return the public functions, classes and constants of a module, without its sub-modules."""
    path = _path_of(module)
    if path is None:
        raise ValueError(f"{module} is no module of {SOURCE}")
    names = _exports(path)
    if names is None:
        names = list(_definitions(path))
    return [name for name in names if not _is_module(module, name)]


def _module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def _path_of(module: str) -> Path | None:
    """Return the file of a module, or None where there is none."""
    place = SOURCE.joinpath(*module.split("."))
    candidates = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((path for path in candidates if path.is_file()), None)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _is_module(package: str, name: str) -> bool:
    """Return whether a public name of a package is a module, and not a function that is called like its module."""
    path = _path_of(package)
    if path is None or _path_of(f"{package}.{name}") is None:
        return False
    imports = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.ImportFrom)]
    return not any(alias.name == name for node in imports if node.module == f"{package}.{name}" for alias in node.names)


def _exports(path: Path) -> list[str] | None:
    """Return the `__all__` of a file, or None where it has none."""
    for node in _tree(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def _definitions(path: Path) -> Iterator[str]:
    """Yield the public names that a file defines: functions, classes, and constants in capitals."""
    for node in _tree(path).body:
        name = ""
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            name = ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])
            name = name if name.isidentifier() and name.isupper() else ""
        if name and not name.startswith("_"):
            yield name


def names_by_hand(pages: Iterable[str]) -> set[str]:
    """Return the names that pages document by a line of their own, such as `::: apmax.losses.APLoss`."""
    return {name for page in pages for name in BY_HAND.findall(page)}


def fill_listings(markdown: str, by_hand: Container[str]) -> str:
    """Return a page with the mark of a listing replaced by the public names of its module, but those `by_hand`."""

    def listing(match: re.Match[str]) -> str:
        names = [f"{match[1]}.{name}" for name in public_names(match[1])]
        return "\n\n".join(f"::: {_where_defined(name)}" for name in names if name not in by_hand)

    return LISTING.sub(listing, markdown)


def _where_defined(name: str) -> str:
    """Return the path of a public function: one that is called like its module would be taken for the module."""
    return name if _path_of(name) is None else f"{name}.{name.rpartition('.')[2]}"


def command_line_page() -> str:
    """Return the reference of the command line in Markdown."""
    import typer.main

    from apmax.cli.main import app

    group: Any = typer.main.get_command(app)
    parts = [
        "# Commands and options",
        "What `apmax COMMAND --help` prints. The [guide](../guide/command-line.md) explains the commands.",
    ]
    for name, command in group.commands.items():
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        words = [param.metavar or param.name.upper() for param in arguments]
        usage = " ".join(["apmax", name, *words, "[OPTIONS]"])
        parts += [f"## apmax {name}", f"```text\n{usage}\n```", _escape(command.help)]
        panels: dict[str, list[Any]] = {}
        for param in command.params:
            if not param.hidden:
                default = "Arguments" if param in arguments else "Options"
                panels.setdefault(param.rich_help_panel or default, []).append(param)
        for panel, params in panels.items():
            parts.append(f"| {panel} | |\n|---|---|\n" + "\n".join(map(_option_row, params)))
        lines = [line for line in re.split(r"\n+", re.sub(r"\[/?[a-z ]*\]", "", command.epilog or "")) if line.strip()]
        examples = [line.replace("\\[", "[") for line in lines if line.startswith("apmax ")]
        parts.append("```console\n" + "\n".join(f"$ {line}" for line in examples) + "\n```")
    return "\n\n".join(parts) + "\n"


def _option_row(param: Any) -> str:
    """Return the row of a table about an argument or option."""
    if param.param_type_name == "argument":
        flags = f"`{param.metavar or param.name.upper()}`"
    else:
        value = "" if param.is_flag else f" {param.metavar or 'VALUE'}"
        flags = " ".join(f"`{flag}{value}`" for flag in [*param.opts, *param.secondary_opts])
    notes = [_escape(param.help or "")]
    if param.required and param.param_type_name == "option":
        notes.append("Required.")
    if param.default not in (None, False, [], ()) and not callable(param.default):
        notes.append(f"Default: `{param.opts[0] if param.default is True else param.default}`.")
    if param.envvar:
        notes.append(f"Environment variable: `{param.envvar}`.")
    return f"| {flags} | {' '.join(notes)} |"  # within code, Python-Markdown takes a bar as it is


def _escape(text: str) -> str:
    """Return a text of the help with the marks of rich removed and those of Markdown escaped."""
    plain = re.sub(r"\[/?(?:bold|italic|dim|cyan)?\]", "", text).replace("\\[", "[")
    return re.sub(r"([*_<>|])", r"\\\1", plain)
