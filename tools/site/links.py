"""Links from pages to files of the repository outside of docs/.

Pages link relative to their place in the repository, so that they also work in an editor and on a code host. In the
site a target outside of docs/ (CONTRIBUTING.md, results/table1/table1.png) has the same path below the root.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable
from pathlib import Path

LINK = re.compile(r"\]\((?!\w+:)([^)\s#]+)((?:#[^)\s]*)?)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def outside_targets(markdown: str, page: str, root: Path) -> set[str]:
    """Return the files outside of docs/ to which a page links.

    Args:
        markdown: The page.
        page: Its path in the repository.
        root: The repository.
    """
    targets = {_target(link, page) for link, _ in LINK.findall(CODE.sub("", markdown))}
    return {target for target in targets if not target.startswith("docs/") and (root / target).is_file()}


def collect_outside(pages: Iterable[str], root: Path) -> set[str]:
    """Return the files outside of docs/ to which `pages` link, and to which these link in turn."""
    found: set[str] = set()
    queue = list(pages)
    while queue:
        page = queue.pop()
        new = outside_targets((root / page).read_text(encoding="utf-8"), page, root) - found
        found |= new
        queue += [target for target in new if target.endswith(".md")]
    return found


def links_in_site(markdown: str, page: str, exists: Callable[[str], bool]) -> str:
    """Return a page with its links within the repository turned into links within the site.

    Args:
        markdown: The page.
        page: Its path in the repository.
        exists: Whether the site has a file; the generator reports links to others.

    >>> links_in_site("[all](../../results/a.md)", "docs/results/index.md", lambda uri: True)
    '[all](a.md)'
    """
    here = posixpath.dirname(page.removeprefix("docs/"))

    def in_site(match: re.Match[str]) -> str:
        uri = _target(match[1], page).removeprefix("docs/")
        return f"]({posixpath.relpath(uri, here or '.')}{match[2]})" if exists(uri) else match[0]

    return LINK.sub(in_site, markdown)


def _target(link: str, page: str) -> str:
    """Return the path in the repository to which a link of a page leads."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
