"""The reference pages document every public name with an example, and the generated parts come from the program."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from tools.site.figures import FIGURES, MARK
from tools.site.links import collect_outside, links_in_site
from tools.site.losses import COST, GRADIENT, cost_table, gradients
from tools.site.reference import BY_HAND, LISTING, command_line_page, fill_listings, public_modules, public_names
from tools.site.tables import numbers_in_one_line

from apmax.cli.main import COMMANDS
from apmax.losses import LOSSES

ROOT = Path(__file__).parent.parent
REFERENCE = sorted((ROOT / "docs" / "reference").rglob("*.md"))
LOSS_PAGES = {key: ROOT / "docs" / "reference" / "losses" / f"{key}.md" for key in LOSSES}


@cache
def documented() -> dict[str, Path]:
    """Return the page of each name that a page documents; names are unique over the package."""
    pages = {}
    for page in REFERENCE:
        text = page.read_text(encoding="utf-8")
        by_hand = [name.rpartition(".")[2] for name in BY_HAND.findall(text)]
        listed = [name for module in LISTING.findall(text) for name in public_names(module)]
        pages |= {name: page for name in listed if name not in pages}
        pages |= dict.fromkeys(by_hand, page)
    return pages


@cache
def words_of_examples(page: Path) -> set[str]:
    """Return the names in the Python blocks of a page."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block))]
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    return used | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def names() -> list[tuple[str, str]]:
    return [(module, name) for module in public_modules() for name in public_names(module)]


def test_there_are_public_names() -> None:
    assert len(names()) > 300
    assert {"apmax.losses", "apmax.functional", "apmax.models.images", "apmax.data.molecules"} <= set(public_modules())


def test_every_public_name_is_on_a_reference_page() -> None:
    assert not sorted({f"{module}.{name}" for module, name in names() if name not in documented()})


@cache
def docstrings() -> dict[str, str]:
    """Return the docstring of every function and class; names are unique over the package."""
    trees = [
        ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py") if "cli" not in path.parts
    ]
    found = [node for tree in trees for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return {node.name: ast.get_docstring(node) or "" for node in found}


def test_every_public_name_has_an_example() -> None:
    without = {
        f"{module}.{name}"
        for module, name in names()
        if ">>>" not in docstrings().get(name, "") and name not in words_of_examples(documented()[name])
    }
    assert not without


@pytest.mark.parametrize("page", [page for page in REFERENCE if page.name != "index.md"], ids=lambda page: page.stem)
def test_every_reference_page_has_an_example(page: Path) -> None:
    assert words_of_examples(page)


@pytest.mark.parametrize("key", LOSSES)
def test_every_loss_has_a_page_with_all_parts(key: str) -> None:
    text = LOSS_PAGES[key].read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Formula", "Example", "When to use it", "When not", "Gradient", "Cost", "Parameters"]
    assert COST.findall(text) == GRADIENT.findall(text) == [key]
    assert f"::: apmax.losses.{LOSSES[key].__name__}" in text
    assert "Source: " in text
    assert "$$" in text


@pytest.mark.parametrize("key", LOSSES)
def test_cost_of_every_loss_was_measured(key: str) -> None:
    assert cost_table(key).count(" positives in ") == 3


@pytest.mark.parametrize("key", LOSSES)
def test_gradient_pushes_positives_up_on_the_whole(key: str) -> None:
    _, labels, slope = gradients(key)
    assert slope[labels == 1].sum() < 0 < slope[labels == 0].sum()


def test_names_documented_by_hand_are_not_listed_again() -> None:
    text = fill_listings("<!-- reference: apmax.optim -->", {"apmax.optim.PaperAdam"})
    assert "::: apmax.optim.param_groups" in text
    assert "PaperAdam" not in text


def test_a_function_called_like_its_module_is_listed_without_the_module() -> None:
    """The module would bring its other functions, which are listed by themselves."""
    lines = fill_listings("<!-- reference: apmax.data.images -->", ()).splitlines()
    assert "::: apmax.data.images.contact_sheet.contact_sheet" in lines
    assert "::: apmax.data.images.contact_sheet" not in lines
    assert "::: apmax.data.images.contact_sheet_of_files" in lines


def test_command_line_page_has_every_command_and_option() -> None:
    page = command_line_page()
    assert re.findall(r"^## apmax (\w+)$", page, re.MULTILINE) == list(COMMANDS)
    train = page.split("## apmax train")[1].split("## apmax predict")[0]
    assert {"`--target NAME`", "`--resume`", "`--effort quick|standard|best`"} <= set(re.findall(r"`[^`\n]+`", train))
    assert "$ apmax train clients.csv --target churn --out runs/churn" in train


def test_links_outside_of_docs_become_links_in_the_site() -> None:
    outside = collect_outside(["docs/results/index.md"], ROOT)
    assert "results/results.jsonl" in outside
    assert not [path for path in outside if path.startswith("docs/")]
    text = links_in_site(
        "[a](../../results/a.png#b) [c](missing.md)", "docs/results/x.md", lambda uri: "missing" not in uri
    )
    assert text == "[a](a.png#b) [c](missing.md)"


def test_figures_of_pages_exist() -> None:
    used = [
        name for page in (ROOT / "docs").rglob("*.md") for name, _ in MARK.findall(page.read_text(encoding="utf-8"))
    ]
    assert sorted(used) == sorted(FIGURES)


@pytest.mark.parametrize(
    "number",
    ["3", ".690", "−0.0064", "0.31 ± 0.02", "+.096 (+.022 to +.227)", "7 of 8", "2026-01-01", "<strong>1.000</strong>"],
)
def test_numbers_of_a_table_stay_in_one_line(number: str) -> None:
    """Narrow windows broke an interval into three lines, and a date at its hyphens."""
    assert numbers_in_one_line(f"<td>{number}</td>") == f'<td class="number">{number}</td>'
    aligned = f'<td style="text-align: right;">{number}</td>'
    assert numbers_in_one_line(aligned) == aligned.replace("<td", '<td class="number"')


@pytest.mark.parametrize(
    "text", ["", "one", "4 folds", "0.992 (24% none)", "1.7 (one member has all the weight)", "32×32"]
)
def test_sentences_of_a_table_wrap(text: str) -> None:
    """Cells with words would push the other columns out of the window."""
    assert numbers_in_one_line(f"<td>{text}</td>") == f"<td>{text}</td>"
