"""Pictures of a report for the README: docs/images/leaderboard.png and report.png.

`python tools/take_screenshots.py` generates a table of payments, trains the default committee on it (two minutes), and
takes the pictures of its report in headless Chromium.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

import numpy as np

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDTH, COLOURS = 1100, 64
SECTIONS = {"leaderboard.png": "Average precision", "report.png": "Precision–recall curve and threshold"}


def write_payments(path: Path, rows: int = 6000, seed: int = 3) -> None:
    """Write generated payments, 3.5 % of them fraud, most of which only pairs of columns tell apart."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 80, rows)
    amount = np.round(rng.lognormal(3.5, 1.1, rows), 2)
    hour = rng.integers(0, 24, rows)
    country = rng.choice(["DE", "FR", "NO", "PL", "US"], rows, p=[0.4, 0.2, 0.15, 0.15, 0.1])
    disputes = rng.poisson(0.4, rows)
    device = rng.choice(["phone", "web", "shop"], rows, p=[0.5, 0.3, 0.2])
    days = rng.exponential(400, rows).round()
    odds = -4.9 + 0.5 * np.log(amount / 30) - 1.2 * (device == "shop")
    odds += 2.6 * ((hour < 5) & (device == "web")) + 2.4 * ((country == "US") & (amount > 60))
    odds += 1.8 * ((disputes > 0) & (days < 150)) + 1.5 * ((age > 60) & (device == "phone") & (amount > 40))
    fraud = np.where(rng.random(rows) < 1 / (1 + np.exp(-odds)), "yes", "no")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["amount", "hour", "device", "country", "age", "earlier_disputes", "days_known", "fraud"])
        writer.writerows(zip(amount, hour, device, country, age, disputes, days, fraud, strict=True))


def take_screenshots(report: Path, folder: Path) -> None:
    """Write a picture of each of `SECTIONS` of a report into a folder."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1500}, color_scheme="light")
        page.goto(report.as_uri())
        page.wait_for_timeout(2000)
        for name, heading in SECTIONS.items():
            page.locator("section", has=page.get_by_role("heading", name=heading, exact=True)).screenshot(
                path=folder / name
            )
            Image.open(folder / name).convert("RGB").quantize(COLOURS).save(folder / name, optimize=True)
        browser.close()


def main() -> None:
    """Train, report and take the pictures."""
    from apmax.report import report_training, store_report
    from apmax.workflows import train_job

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_payments(folder / "payments.csv")
        data = {"train": str(folder / "payments.csv"), "target": "fraud", "test_share": 0.3}
        result = train_job({"data": data}, out=folder / "model")
        take_screenshots(store_report(folder / "model", report_training(result)), IMAGES)
    sys.stdout.write(f"Written: {', '.join(SECTIONS)} in {IMAGES}\n")


if __name__ == "__main__":
    main()
