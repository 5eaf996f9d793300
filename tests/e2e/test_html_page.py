"""The page in a real browser without a network: quiet, drawn, and no wider than the window."""

from __future__ import annotations

import pytest

from tests.unit.page_builder import SLOW_RANK, page_text

pytestmark = [pytest.mark.e2e, pytest.mark.browser]

# Bokeh draws into canvases inside shadow roots
DRAWN = """target => {
    const canvases = [];
    const visit = root => root.querySelectorAll('*').forEach(element => {
        if (element.tagName === 'CANVAS') canvases.push(element);
        if (element.shadowRoot) visit(element.shadowRoot);
    });
    visit(document.getElementById(target));
    const inked = canvas => {
        if (!canvas.width || !canvas.height) return false;
        const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        const colours = new Set();
        for (let i = 0; i < pixels.length; i += 4) {
            if (pixels[i + 3]) colours.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]);
        }
        return colours.size > 10;
    };
    return canvases.some(inked);
}"""
OVERFLOW = "document.documentElement.scrollWidth - window.innerWidth"


@pytest.fixture
def open_text(browser_page, tmp_path):
    """Opens the page of a run, given as arguments of ``page_records``."""

    def open_it(**run):
        path = tmp_path / "report.html"
        path.write_text(page_text(**run), encoding="utf-8")
        opened = browser_page(path)
        opened.page.wait_for_timeout(500)
        return opened

    return open_it


def test_the_page_draws_both_figures_and_asks_nobody(open_text):
    opened = open_text(extra_ms=SLOW_RANK)
    assert opened.page.evaluate(DRAWN, "timeline")
    assert opened.page.evaluate(DRAWN, "lateness")
    assert opened.console == []
    assert opened.requests == []


def test_a_span_tells_its_numbers_when_pointed_at(open_text):
    opened = open_text(extra_ms=SLOW_RANK)
    box = opened.page.locator("#timeline").bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tip = opened.page.get_by_text("duration")
    tip.first.wait_for(timeout=5000)
    assert tip.first.is_visible()


@pytest.mark.parametrize("name", ["x" * 300, "<script>alert(1)</script> " * 20])
def test_a_long_name_and_64_ranks_fit_into_the_window(open_text, name):
    slow = {(rank, "backward"): 40.0 for rank in range(16, 24)}
    opened = open_text(ranks=64, per_node=8, extra_ms=slow, name=name)
    assert opened.page.evaluate(OVERFLOW) <= 0
    assert opened.console == []


def test_a_name_that_is_a_script_does_not_run(open_text):
    opened = open_text(name="<script>window.ran = true</script>")
    assert opened.page.evaluate("window.ran") is None
    assert opened.page.locator("h1").inner_text().startswith("<script>window.ran")
