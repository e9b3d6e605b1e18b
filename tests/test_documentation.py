"""What the README and the documentation show runs as shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
# Tutorials are notebooks with tests of their own.
PAGES = [
    ROOT / "README.md",
    *sorted(set((ROOT / "docs").rglob("*.md")) - set((ROOT / "docs" / "tutorials").rglob("*.md"))),
]
SLOW = {"explanation/committee.md", "guide/boosting.md", "guide/images.md", "guide/sklearn.md", "how-to/blend.md"} | {
    f"reference/{name}.md"
    for name in ("blend", "committee", "decide", "estimator", "integrations", "report", "train", "workflows")
}


def name_of(page: Path) -> str:
    return page.name if page.parent == ROOT else str(page.relative_to(ROOT / "docs"))


def blocks(page: Path) -> list[str]:
    return [code for code, _ in blocks_with_output(page)]


def blocks_with_output(page: Path) -> list[tuple[str, str]]:
    """Return every block of Python and the block of text right after it, which is what it prints; "" for none."""
    pattern = r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?"
    return re.findall(pattern, page.read_text(), re.DOTALL | re.MULTILINE)


NUMBER = re.compile(r"[-+−]?\d+(?:\.\d+)?(?:e[-+]\d+)?")


def same_output(printed: str, shown: str) -> bool:
    """Return whether texts agree, numbers up to what other versions of the libraries may change."""
    words = [NUMBER.sub("#", text).split() for text in (printed, shown)]
    values = [[float(each.replace("−", "-")) for each in NUMBER.findall(text)] for text in (printed, shown)]
    return words[0] == words[1] and values[0] == pytest.approx(values[1], rel=0.02, abs=0.01)


def pages_with_code() -> list[Any]:
    """Return the pages to execute; tutorials are executed as notebooks (test_tutorials.py)."""
    slow = [pytest.mark.slow]
    return [
        pytest.param(page, marks=slow if name_of(page) in SLOW else [], id=name_of(page))
        for page in PAGES
        if blocks(page) and page.parent.name != "tutorials"
    ]


@pytest.mark.parametrize("page", pages_with_code())
@pytest.mark.filterwarnings("ignore:.*(LeafSpec|does not have many workers|logging interval):")
def test_python_of_the_page_runs_and_prints_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": page.stem}
    for code, shown in blocks_with_output(page):
        capsys.readouterr()
        exec(compile(code, page.name, "exec"), names)
        assert not shown or same_output(capsys.readouterr().out, shown)


@pytest.mark.parametrize(
    ("printed", "same"), [("AP 0.231, won 3", True), ("AP 0.30, won 3", False), ("AUC 0.23, won 3", False)]
)
def test_other_output_is_found(printed: str, same: bool) -> None:
    assert same_output(printed, "AP 0.230, won 3") == same


def headings(page: Path) -> set[str]:
    """Return the addresses of a page's headings, as GitHub and the site write them."""
    titles = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_within_the_repository_lead_to_a_file_and_a_heading(page: Path) -> None:
    generated = {"command-line.md"} if page.parent.name == "reference" else set()
    for link, heading in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
        target = page.parent / link if link else page
        assert link in generated or target.exists(), f"{page.name} links to {link}"
        if heading and target.suffix == ".md":
            assert heading in headings(target), f"{page.name} links to {link}#{heading}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_nested_lists_and_tables_are_read_by_the_site_as_by_github(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^ {1,3}(?:[-*]|\d+\.) .*", text, re.MULTILINE) == [], "indent nested lists by four spaces"
    beginnings = re.findall(r"(?:^|\n)\n\|.*\n(.*)", text)
    assert [line for line in beginnings if not re.fullmatch(r"\|[-:| ]+\|", line)] == [], "a row apart from its table"


def test_commands_of_the_documentation_have_these_options() -> None:
    typer = pytest.importorskip("typer")
    from apmax.cli.main import app

    commands = typer.main.get_command(app).commands
    checked = 0
    for page in [*PAGES, *(ROOT / "docs" / "tutorials").glob("*.md")]:
        for block in re.findall(r"^```(?:console|bash)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            for name, words in re.findall(r"^(?:\$ )?apmax (\w+)(.*)", block.replace("\\\n", " "), re.MULTILINE):
                commands[name].make_context(name, shlex.split(words, comments=True))  # parses, runs nothing
                checked += 1
    assert checked > 60


def own_loop() -> str:
    return next(block for block in blocks(ROOT / "README.md") if "PositiveBatchSampler" in block)


def test_own_loop_of_the_readme_learns(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(own_loop(), "README.md", "exec"), {})
    reached = float(re.search(r"AP ([\d.]+)", capsys.readouterr().out).group(1))
    assert reached > 0.2


def test_own_loop_of_the_readme_is_short() -> None:
    loop = own_loop().split("model, data")[1]
    assert len(loop.strip().splitlines()) <= 13


def replacements() -> list[str]:
    """Return the right-hand cells of the tables that say what to replace by what."""
    pages = sorted((ROOT / "docs" / "how-to").glob("from-*.md"))
    lines = [line for page in pages for line in page.read_text().splitlines() if line.startswith("| ")]
    return [line.split(" | ")[1] for line in lines if re.search(r"\| `[^|]* = ", line)]


def test_every_page_of_migration_has_replacements() -> None:
    assert len(replacements()) > 25


@pytest.mark.parametrize("cell", replacements())
@pytest.mark.filterwarnings("ignore:surrogate .* measures average precision")
def test_replacement_runs(cell: str) -> None:
    import torch
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline

    import apmax
    from apmax import decide, losses, metrics, optim, samplers
    from apmax.integrations import lightgbm, xgboost

    y = (torch.arange(200) % 5 == 0).float()
    modules = (losses, metrics, optim, samplers, lightgbm, xgboost, apmax)
    names = {name: getattr(module, name) for module in modules for name in module.__all__}
    names |= {"choose_threshold": decide.choose_threshold, "make_pipeline": make_pipeline}
    names |= {"SimpleImputer": SimpleImputer, "X": torch.randn(200, 3).numpy(), "weight": (1 + y).numpy()}
    names |= {"torch": torch, "y": y, "table": torch.stack([y, torch.full_like(y, float("nan"))], 1)}
    names |= {"dataset": torch.utils.data.TensorDataset(y, y), "model": torch.nn.Linear(3, 1)}
    names |= {"scores": torch.linspace(1, -1, 10), "labels": y[:10], "index": torch.arange(10)}
    statements = [code for code in re.findall(r"`([^`]+)`", cell) if "= " in code]
    assert statements
    for statement in statements:
        exec(statement, names)
