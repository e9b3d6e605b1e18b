"""Rendering of a report: one HTML page that needs no other file and no network."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from apmax import __version__, extras
from apmax.folders import write_atomic
from apmax.report.content import ReportData
from apmax.validation import plural

LIBRARIES = {
    "d3.min.js": "912111098ea99503a6f4967361d2bbdc9dbf58cf9c678c8e27e5b02d1a07f0c1",
    "plot.min.js": "4358086467740777dd788d6b27a95cebdbaefdd50c730a3060117073bd7134cb",
}
"""SHA-256 of the drawing library's files: d3 7.9.2 and Observable Plot 0.6.17, as they are on npm."""
PLOT_CLASS = "plot"
_PLOT_STYLE = f""":where(.{PLOT_CLASS}) {{
  --plot-background: white;
  display: block;
  height: auto;
  height: intrinsic;
  max-width: 100%;
}}
:where(.{PLOT_CLASS} text),
:where(.{PLOT_CLASS} tspan) {{
  white-space: pre;
}}"""
"""The style that Observable Plot puts into every chart; the policy of the page names its hash."""
_PICTURE = re.compile(r"data:image/(?:jpeg|png|svg\+xml);base64,[A-Za-z0-9+/=]*\Z")


def render_report(data: ReportData) -> str:
    """Return the page.

    All texts are escaped. The page's content-security policy allows the scripts and styles that are in it, by their
    hashes, pictures that are in it, and nothing else: no request leaves it, and no other script runs.
    """
    style, script = _asset("report.css"), _asset("report.js")
    scripts = [*(_asset(name) for name in LIBRARIES), script]
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(map(_source_hash, scripts))}",
            f"style-src {_source_hash(style)} {_source_hash(_PLOT_STYLE)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    page: str = _template().render(
        data=data,
        policy=policy,
        style=_markup(style),
        scripts=[_markup(each) for each in scripts],
        content=_markup(script_json(_chart_data(data))),
        version=__version__,
    )
    return page


def write_report(data: ReportData, path: str | os.PathLike[str]) -> None:
    """Write the page to a file, completely or not at all.

    Raises:
        FileNotFoundError: There is no such folder.
    """
    write_atomic(Path(path), render_report(data).encode("utf-8", "replace"))


def script_json(value: Any) -> str:
    r"""Return JSON that ends no script element and begins no comment, whatever texts are in it.

    >>> print(script_json({"name": "</script><!--"}))
    {"name":"\u003c/script\u003e\u003c!--"}
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _chart_data(data: ReportData) -> dict[str, Any]:
    """Return what the charts need: numbers and names, without the pictures and the texts of the page."""
    table = data.to_table()
    targets = [
        {name: target[name] for name in ("name", "parts", "leaderboard", "importance", "subgroups")}
        for target in table["targets"]
    ]
    return {"targets": targets, "learning": table["learning"]}


def _source_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> str:
    """Return a file of the package; those of the drawing library are compared with their checksums.

    Raises:
        ValueError: A checksum differs.
    """
    content = (resources.files("apmax.report") / "assets" / name).read_bytes()
    if name in LIBRARIES and hashlib.sha256(content).hexdigest() != LIBRARIES[name]:
        raise ValueError(f"apmax/report/assets/{name} has changed (its checksum differs): install apmax again")
    return content.decode()


def _markup(text: str) -> Any:
    return extras.load("markupsafe", "report").Markup(text)


@cache
def _template() -> Any:
    jinja = extras.load("jinja2", "report")
    environment = jinja.Environment(
        autoescape=True, undefined=jinja.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "number": _number,
        "interval": lambda item: f"{_number(item.low)} to {_number(item.high)}",
        "share": lambda value: "–" if value != value else f"{value:.2%}",
        "count": lambda value: f"{value:,}",
        "plural": plural,
        "picture": lambda text: text if _PICTURE.match(text) else "",
        "duration": _duration,
    }
    return environment.from_string(_asset("report.html"))


def _number(value: float) -> str:
    return "–" if value != value else f"{value:.3f}"


def _duration(seconds: float) -> str:
    """Return a time in words.

    >>> _duration(3.21), _duration(75)
    ('3.2 s', '1 min 15 s')
    """
    if seconds != seconds:
        return "–"
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"
