"""The page of a report in a real browser: drags and clicks give what Python computes, and nothing leaves the page."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from apmax.metrics import precision_at_k, recall_at_k
from apmax.report import ReportData, TargetReport, score_part, write_report
from small_reports import small_report, small_scores

pytestmark = pytest.mark.slow
SIZES = [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")]


@pytest.fixture(scope="module")
def browser():
    """Return Chromium; it is found in the PATH, as Debian's package `chromium` installs it."""
    playwright = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as started:
        try:
            launched = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"Chromium does not start: {error}")
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(small_report(), path)
    return path


class OpenPage:
    """A page with what it logged and requested."""

    def __init__(self, browser, file, *, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page, self.messages, self.requests = context.new_page(), [], []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def control(self, name):
        return self.page.locator(f'article:not([hidden]) [data-control="{name}"]')

    def type(self, name, value):
        self.control(name).fill(str(value))

    def value(self, name):
        return float(self.page.locator(f'article:not([hidden]) [data-output="{name}"]').get_attribute("data-value"))

    def values(self):
        return {name: self.value(name) for name in ("threshold", "flagged", "found", "false", "missed", "cost")}

    def drag(self, start, end):
        """Drag over the chart of the curve, between places as shares of its width and height."""
        chart = self.page.locator("article:not([hidden]) [data-chart=curve] svg")
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end)]
        self.page.mouse.move(*places[0])
        self.page.mouse.down()
        self.page.mouse.move(*places[1], steps=8)
        self.page.mouse.up()


@pytest.fixture
def opened(browser, file):
    page = OpenPage(browser, file)
    yield page
    assert page.messages == []
    assert [url for url in page.requests if not url.startswith("data:")] == [file.as_uri()]
    page.page.context.close()


def expected(scores, labels, threshold, cost_false=1.0, cost_missed=10.0):
    flagged = scores >= threshold
    found, false = float((flagged & (labels == 1)).sum()), float((flagged & (labels == 0)).sum())
    missed = float(labels.sum()) - found
    cost = cost_false * false + cost_missed * missed
    return {
        "threshold": threshold,
        "flagged": found + false,
        "found": found,
        "false": false,
        "missed": missed,
        "cost": cost,
    }


@pytest.mark.parametrize("place", [(0.2, 0.2), (0.45, 0.5), (0.8, 0.7), (0.97, 0.9)])
def test_drag_along_the_curve_gives_the_counts_of_the_rows(opened, place):
    scores, labels = small_scores()
    before = opened.values()
    opened.drag((0.5, 0.5), place)
    after = opened.values()
    assert after["threshold"] != before["threshold"]
    assert after == pytest.approx(expected(scores, labels, after["threshold"]))
    assert opened.value("precision") == pytest.approx(after["found"] / after["flagged"])
    assert opened.value("recall") == pytest.approx(after["found"] / labels.sum())
    shown = opened.page.locator("article:not([hidden]) [data-output=precision]").inner_text()
    assert shown == f"{after['found'] / after['flagged']:.3f}"


def test_drag_goes_where_the_pointer_is(opened):
    opened.drag((0.3, 0.5), (0.25, 0.3))
    low = opened.value("recall")
    opened.drag((0.3, 0.5), (0.85, 0.8))
    assert opened.value("recall") > low + 0.3
    assert opened.value("recall") == pytest.approx(0.85, abs=0.1)


def test_slider_moves_by_the_keyboard(opened):
    slider = opened.control("position")
    slider.focus()
    before = opened.value("flagged")
    slider.press("ArrowRight")
    assert opened.value("flagged") > before


@pytest.mark.parametrize("k", [1, 10, 37, 60, 250, 600])
def test_top_k_is_precision_at_k(opened, k):
    scores, labels = small_scores()
    opened.type("top", k)
    assert opened.value("flagged") == pytest.approx(k)
    assert opened.value("precision") == pytest.approx(precision_at_k(scores, labels, k=k).item())
    assert opened.value("recall") == pytest.approx(recall_at_k(scores, labels, k=k).item())


@pytest.mark.parametrize("percent", [0.1, 2.5, 50])
def test_prevalence_recomputes_the_precision(opened, percent):
    scores, labels = small_scores()
    threshold, share = opened.value("threshold"), percent / 100
    opened.type("prevalence-percent", percent)
    opened.type("volume", 5000)
    assert opened.value("threshold") == threshold
    recall = (scores >= threshold)[labels == 1].mean()
    wrong = (scores >= threshold)[labels == 0].mean()
    found, false = 5000 * share * recall, 5000 * (1 - share) * wrong
    assert opened.value("precision") == pytest.approx(found / (found + false))
    assert opened.value("found") == pytest.approx(found)
    assert opened.value("missed") == pytest.approx(5000 * share * (1 - recall))
    opened.control("reset-prevalence").click()
    assert opened.value("precision") == pytest.approx(labels[scores >= threshold].mean())


def test_top_k_a_day_stays_while_the_prevalence_changes(opened):
    opened.type("volume", 2000)
    opened.type("top", 40)
    before = opened.value("precision")
    opened.type("prevalence-percent", 1)
    assert opened.value("flagged") == pytest.approx(40)
    assert opened.value("precision") < before


def test_prevalence_slider_is_logarithmic(opened):
    opened.control("prevalence").evaluate(
        "element => { element.value = -2; element.dispatchEvent(new Event('input')) }"
    )
    assert opened.control("prevalence-percent").input_value() == "1"


@pytest.mark.parametrize(("false", "missed"), [(1, 10), (5, 1), (1, 200)])
def test_least_cost_is_the_least_of_all_thresholds(opened, false, missed):
    scores, labels = small_scores()
    opened.type("cost-false", false)
    opened.type("cost-missed", missed)
    opened.control("least-cost").click()
    every = [expected(scores, labels, t, false, missed)["cost"] for t in [np.inf, *np.unique(scores)]]
    assert opened.value("cost") == pytest.approx(min(every))


def test_other_rows_can_be_explored(opened):
    scores, labels = small_scores(1, 900)
    opened.control("part").select_option("1")
    opened.type("top", 90)
    assert opened.value("precision") == pytest.approx(precision_at_k(scores, labels, k=90).item())
    opened.page.locator("article:not([hidden]) [data-legend=curves] input").first.uncheck()


def test_other_target_can_be_chosen(opened):
    scores, labels = small_scores(2, 80)
    opened.page.locator("[data-control=target]").select_option("1")
    opened.type("top", 8)
    assert opened.value("precision") == pytest.approx(precision_at_k(scores, labels, k=8).item())
    assert opened.page.locator("article:not([hidden])").count() == 1


def test_markup_in_the_data_does_not_run(opened):
    assert opened.page.evaluate("window.pwned") is None
    assert opened.page.locator("img[src=x]").count() == 0
    assert "<img src=x" in opened.page.locator("h1").inner_text()


def test_theme_can_be_switched(opened):
    colour = "getComputedStyle(document.body).backgroundColor"
    assert opened.page.evaluate(colour) == "rgb(255, 255, 255)"
    opened.page.locator("[data-control=theme]").click()
    assert opened.page.evaluate(colour) == "rgb(22, 24, 28)"


def test_policy_stops_a_script_that_was_added(browser, file, tmp_path):
    changed = tmp_path / "changed.html"
    changed.write_text(file.read_text().replace("</main>", "</main><script>window.pwned=1</script>"))
    page = OpenPage(browser, changed)
    assert page.page.evaluate("window.pwned") is None
    assert any("Content Security Policy" in message for message in page.messages)
    page.page.context.close()


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_page_is_readable_at_any_size(browser, file, width, scheme):
    page = OpenPage(browser, file, width=width, scheme=scheme)
    assert page.messages == []
    assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    # Every chart is drawn, and within the page.
    charts = page.page.locator("article:not([hidden]) .chart, main > section .chart")
    boxes = [charts.nth(k).locator("svg").first.bounding_box() for k in range(charts.count())]
    assert len(boxes) >= 7
    assert all(box["width"] > 200 and box["x"] + box["width"] <= width + 1 for box in boxes)
    texts = "main p, main td, main dd, main label, main svg text"
    small = (
        f"[...document.querySelectorAll('{texts}')].filter(each => each.checkVisibility() && "
        "parseFloat(getComputedStyle(each).fontSize) < 11).length"
    )
    assert page.page.evaluate(small) == 0
    contrast = page.page.evaluate(
        "(() => { const [ink, paper] = ['color', 'backgroundColor'].map(k => getComputedStyle(document.body)[k]"
        ".match(/\\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b)); return Math.abs(ink - paper) })()"
    )
    assert contrast > 400
    page.page.context.close()


def test_charts_follow_the_width_of_the_window(browser, file):
    page = OpenPage(browser, file)
    page.page.set_viewport_size({"width": 400, "height": 900})
    page.page.wait_for_function("document.documentElement.scrollWidth <= 400")
    box = page.page.locator("article:not([hidden]) [data-chart=curve] svg").bounding_box()
    assert box["x"] + box["width"] <= 401
    page.page.context.close()


def test_printed_page_is_light(browser, file):
    page = OpenPage(browser, file, scheme="dark")
    page.page.emulate_media(media="print", color_scheme="dark")
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(page.page.pdf()) > 10_000
    page.page.context.close()


def test_thinned_curve_is_explored_exactly(browser, tmp_path):
    generator = np.random.default_rng(0)
    labels = (generator.random(60_000) < 0.05).astype(float)
    scores = generator.normal(size=60_000) + 1.5 * labels
    part = score_part("test", scores, labels)
    assert len(part.curve.threshold) < 20_000
    write_report(ReportData("large", (TargetReport("y", "1", ("A verdict.",), (part,)),)), tmp_path / "large.html")
    page = OpenPage(browser, tmp_path / "large.html")
    for k in (7, 320, 45_600):
        page.type("top", k)
        assert page.value("precision") == pytest.approx(precision_at_k(scores, labels, k=k).item())
    page.drag((0.3, 0.5), (0.6, 0.5))
    threshold = page.value("threshold")
    assert page.value("found") == pytest.approx(labels[scores >= threshold].sum())
    assert page.value("flagged") == pytest.approx((scores >= threshold).sum())
    page.control("least-cost").click()
    costs = np.append(0.0, np.cumsum(np.where(labels[np.argsort(-scores)] == 1, -10.0, 1.0))) + 10 * labels.sum()
    assert page.value("cost") == pytest.approx(costs.min())
    assert page.messages == []
    page.page.context.close()
