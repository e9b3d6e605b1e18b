"""Builder of the documentation site.

Writes the pages of docs/, files of the repository to which they link and generated parts into build/docs, has MkDocs
build them into site/, turns formulas into MathML and keeps numbers of tables in one line. Any warning is an error.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.site.figures import fill_figures
from tools.site.formulas import formulas_to_mathml
from tools.site.links import collect_outside, links_in_site
from tools.site.losses import fill_costs, fill_gradients
from tools.site.reference import command_line_page, fill_listings, names_by_hand
from tools.site.tables import numbers_in_one_line
from tools.site.tutorials import fill_tutorials

ROOT = Path(__file__).parents[2]
PAGES, SITE = ROOT / "build" / "docs", ROOT / "site"
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md")


def write_pages(folder: Path) -> None:
    """Write everything that the generator needs into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    fill_tutorials(folder / "tutorials")
    own = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")]
    outside = collect_outside([*own, *ALWAYS], ROOT).union(ALWAYS)
    for path in outside:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)
    (folder / "reference" / "command-line.md").write_text(command_line_page(), encoding="utf-8")
    pages = {page: folder / page.removeprefix("docs/") for page in [*own, *outside] if page.endswith(".md")}
    by_hand = names_by_hand(file.read_text(encoding="utf-8") for file in pages.values())
    for page, file in pages.items():
        text = links_in_site(file.read_text(encoding="utf-8"), page, lambda uri: (folder / uri).is_file())
        text = fill_costs(fill_listings(text, by_hand))
        text = fill_figures(fill_gradients(text, file.parent), file.parent)
        file.write_text(text, encoding="utf-8")


def build_site() -> int:
    """Build the site from the pages and return the exit code of the generator."""
    # Material prints an advertisement of its successor otherwise.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"], cwd=ROOT, env=environment)
    for path in SITE.rglob("*.html") if done.returncode == 0 else ():
        page = formulas_to_mathml(path.read_text(encoding="utf-8"))
        path.write_text(numbers_in_one_line(page), encoding="utf-8")
    return done.returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the documentation site into site/.")
    parser.add_argument("--pages-only", action="store_true", help="write build/docs and build no site")
    arguments = parser.parse_args()
    write_pages(PAGES)
    sys.exit(0 if arguments.pages_only else build_site())
