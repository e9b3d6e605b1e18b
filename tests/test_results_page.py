"""The page of results holds the numbers of `results/results.jsonl`, worked out again here by plain loops."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import pytest
from scipy import stats

from apmax.reproduce import grid

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results.md"
NUMBER = r"[+−]?\d\.\d{4}"


def committed_lines():
    # Runs may go on while the tests do: the page tells how many results it was written from.
    count = int(re.search(r"\((\d+) results?\)", PAGE.read_text(encoding="utf-8")).group(1))
    return [json.loads(line) for line in (ROOT / "results" / "results.jsonl").read_text().splitlines()[:count]]


def known():
    """Return {(data label, network label, method label): {(split, seed): test part}} of the published settings."""
    found = defaultdict(dict)
    names = grid()
    for line in committed_lines():
        if line["candidate"] == 0 and line["test"] is not None and not line["settings"] and line["seed"] < 1000:
            labels = (names.data[line["data"]].label, names.models[line["model"]].label)
            found[(*labels, names.methods[line["method"]].label)][line["split"], line["seed"]] = line["test"]
    return found


def numbers(text):
    return [float(each.replace("−", "-")) for each in re.findall(NUMBER, text)]


def details():
    """Yield (item, data label, network label, {column: text}) of every row of every table of one cell."""
    names = grid()
    cells = {
        f"{data.label}, {model.label}": (data.label, model.label)
        for data in names.data.values()
        for model in names.models.values()
    }
    item = cell = columns = None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            item, cell = line[3:], None
        for label, both in cells.items():
            if f"<summary>{label}: " in line or line == f"**{label}**":
                cell, columns = both, None
        if not line:
            columns = None  # a table ends at an empty line
        elif cell and line.startswith("| Method | Runs |"):
            columns = [each.strip() for each in line.strip("|").split("|")]
        elif cell and columns and line.startswith("| ") and not line.startswith(("|---", "| *ours*")):
            fields = [each.strip() for each in line.strip("|").split("|")]
            yield item, *cell, dict(zip(columns, fields, strict=True))


ROWS = list(details())


def test_the_page_has_tables_to_check():
    assert len(ROWS) > 50


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0][:9]}-{row[1]}-{row[2]}-{row[3]['Method']}")
def test_row_is_what_the_results_say(row):
    _, data, model, fields = row
    results = known()
    own = results.get((data, model, fields["Method"]), {})
    # An item of one row is compared with nothing.
    base = next((re.search(r"− (.+) \(95 %\)", name).group(1) for name in fields if "95 %" in name), None)
    other = results.get((data, model, base), {})
    for metric, name in (("auprc", "AUPRC"), ("ap", "AP")):
        values = [test[metric] for test in own.values()]
        expected = [] if not values else [mean(values)] if len(values) == 1 else [mean(values), stdev(values)]
        assert numbers(fields[name]) == pytest.approx(expected, abs=6e-5)
        if base is None:
            continue
        pairs = [(own[where][metric], other[where][metric]) for where in own if where in other]
        text = fields[f"{name} − {base} (95 %)"]
        if fields["Method"] == base or not pairs:
            assert text == ""
            continue
        differences = [a - b for a, b in pairs]
        expected = [mean(differences)]
        if len(pairs) > 1:
            expected += stats.t.interval(0.95, len(pairs) - 1, mean(differences), stats.sem(differences))
        assert numbers(text) == pytest.approx(expected, abs=6e-5)
        if metric == "auprc":
            equal = sum(d == 0 for d in differences)
            won = f"{sum(d > 0 for d in differences)} of {len(pairs)}"
            assert fields["Won"] == (f"{won}, equal in {equal}" if equal else won)
