"""Pages in a real browser: clicked through at desk and phone width, in dark and in print."""

import os
import re
import shutil
from pathlib import Path

import pytest

import sim
from sim import cli

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = os.environ.get("PREFIXSIM_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="no Chromium is found; install one, or name it in PREFIXSIM_CHROMIUM",
)
WIDTHS = pytest.mark.parametrize("width", [1300, 400])
DIALS = {"num_requests": 30, "prompt": 64, "output": 4, "num_prefixes": 3}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        # A container's root has no sandbox.
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser):
    """Open pages that may neither complain nor ask the network for anything."""
    contexts, complaints = [], []

    def open_page(path, width=1300, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        url = path.as_uri()
        page.on("request", lambda sent: complaints.append(sent.url) if sent.url != url else None)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def article(tmp_path_factory):
    path = tmp_path_factory.mktemp("explain") / "article.html"
    with pytest.raises(SystemExit) as ended:
        cli.main(
            ["explain", "--example", "article", "--policy", "vllm_v1,vllm_v0", "-o", str(path)]
        )
    assert ended.value.code == 0
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report of a workload, which has every kind of picture and table."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    return sim.report(
        "shared-prefix",
        path,
        policy=["none", "vllm_v1", "vllm_v0"],
        block_size=[8, 16],
        kv_capacity=[4096, 2048],
        workload_args=DIALS,
    )


def overflow(page):
    """By how many pixels the page is wider than its window."""
    return page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


def has_colour(page, colour):
    """Hold the page to a colour, which it may take a moment to turn to."""
    playwright.expect(page.locator("body")).to_have_css("background-color", colour)


def headline(page):
    return page.locator("section .event strong").all_inner_texts()


@WIDTHS
def test_the_article_is_stepped_through_with_keys_and_buttons(opened, article, width):
    page = opened(article, width)
    where = page.locator("#where")
    assert where.inner_text() == "1 / 8"
    assert headline(page) == ["Request 0 admitted"] * 2
    assert page.locator("h2").all_inner_texts() == ["vllm_v1", "vllm_v0"]
    for number in range(2, 9):
        page.keyboard.press("ArrowRight")
        assert where.inner_text() == f"{number} / 8"
        assert overflow(page) <= 0
    assert headline(page) == ["Request 2 ended"] * 2
    page.keyboard.press("ArrowRight")
    assert where.inner_text() == "8 / 8"
    page.keyboard.press("Home")
    assert where.inner_text() == "1 / 8"
    for _ in range(6):
        page.get_by_role("button", name="next event").click()
    # Block 3 is evicted by V1 and not by V0, as the drawings have it.
    assert page.locator("#panels section").nth(0).locator(".block.lost").count() == 1
    assert page.locator("#panels section").nth(1).locator(".block.lost").count() == 0
    assert "Evicted MNOp (block 3)" in page.locator("#panels").inner_text()
    page.get_by_role("button", name="previous event").click()
    assert where.inner_text() == "6 / 8"
    page.keyboard.press("End")
    assert where.inner_text() == "8 / 8"
    page.get_by_label("event", exact=True).fill("2")
    assert where.inner_text() == "3 / 8"


@pytest.mark.parametrize("name", ["article", "report"])
def test_light_dark_and_print(opened, request, name):
    path = request.getfixturevalue(name)
    page = opened(path, color_scheme="dark")
    has_colour(page, "rgb(22, 24, 27)")
    button = page.locator("#theme")
    assert button.inner_text() == "Light"
    button.click()
    has_colour(page, "rgb(255, 255, 255)")
    assert button.inner_text() == "Dark"
    button.click()
    has_colour(page, "rgb(22, 24, 27)")
    page.emulate_media(media="print")
    has_colour(page, "rgb(255, 255, 255)")
    assert not button.is_visible()
    page.emulate_media(media="screen")
    has_colour(page, "rgb(22, 24, 27)")
    assert len(page.pdf(format="A4")) > 10_000
    light = opened(path)
    has_colour(light, "rgb(255, 255, 255)")


@WIDTHS
def test_a_report_fits_its_window(opened, report, width):
    page = opened(report, width)
    assert overflow(page) <= 0
    assert page.locator("main > section").count() == 4
    # Nothing but pictures and tables is wider than the window, and those scroll in themselves.
    wide = page.evaluate(
        "[...document.querySelectorAll('main *')].filter((node) => !node.closest('.scroll')"
        " && node.getBoundingClientRect().right > innerWidth + 1).map((node) => node.outerHTML)"
    )
    assert wide == []
    for box in page.locator(".scroll").all():
        assert box.bounding_box()["width"] <= width


@WIDTHS
def test_every_link_leads_to_its_section(opened, report, width):
    page = opened(report, width)
    for link in page.locator("nav a").all():
        link.click()
        assert page.locator(link.get_attribute("href")).is_visible()


@WIDTHS
def test_every_picture_is_read_with_the_keys(opened, report, width):
    page = opened(report, width)
    tip = page.locator("#tip")
    assert tip.is_hidden()
    figures = page.locator("figure").all()
    assert len(figures) >= 5
    for figure in figures:
        svg = figure.locator("svg[role=img]")
        assert svg.get_attribute("aria-label")
        frame = figure.locator(".picture")
        frame.focus()
        frame.press("ArrowRight")
        first = tip.inner_text()
        assert re.search(r": [\d.,]+$", first)
        frame.press("End")
        assert tip.is_visible()
        frame.press("ArrowRight")
        assert tip.inner_text() == first
        assert overflow(page) <= 0
        box = tip.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        spot = figure.locator(".spot").bounding_box()
        assert -10 <= spot["x"] <= width
        frame.press("Escape")
        assert tip.is_hidden()


def test_a_point_is_read_with_the_pointer(opened, report):
    page = opened(report)
    frame = page.locator("#picture-block-size .picture")
    frame.scroll_into_view_if_needed()
    frame.focus()
    frame.press("ArrowRight")
    said = page.locator("#tip").inner_text()
    spot = frame.locator(".spot").bounding_box()
    frame.press("Escape")
    page.mouse.move(spot["x"] + spot["width"] / 2 + 3, spot["y"] + spot["height"] / 2 + 3)
    # Lines that lie upon each other have points at one place.
    assert page.locator("#tip").inner_text().partition("\n")[2] == said.partition("\n")[2]
    page.mouse.move(1, 1)
    assert page.locator("#tip").is_hidden()


def test_lines_are_hidden_and_shown(opened, report):
    page = opened(report)
    for figure in page.locator("figure").all():
        for chip in figure.locator(".chips button").all():
            name = chip.inner_text()
            chip.click()
            assert chip.get_attribute("aria-pressed") == "false"
            assert figure.locator("svg g[visibility=hidden]").count() >= 1
            frame = figure.locator(".picture")
            frame.press("End")
            assert not page.locator("#tip").inner_text().startswith(f"{name}\n")
            chip.click()
            assert chip.get_attribute("aria-pressed") == "true"
            assert figure.locator("svg g[visibility=hidden]").count() == 0


def column(table, index):
    return table.locator(f"tbody td:nth-child({index + 1})").evaluate_all(
        "cells => cells.map((cell) => cell.dataset.value ?? cell.textContent)"
    )


def test_every_table_sorts_by_every_heading(opened, report):
    page = opened(report)
    for table in page.locator("main table").all():
        for index, heading in enumerate(table.locator("th").all()):
            heading.locator("button").click()
            assert heading.get_attribute("aria-sort") == "ascending"
            rising = column(table, index)
            heading.locator("button").click()
            assert heading.get_attribute("aria-sort") == "descending"
            falling = column(table, index)
            if "number" in (heading.get_attribute("class") or ""):
                up = [float(value) for value in rising if value]
                down = [float(value) for value in falling if value]
                assert up == sorted(up)
                assert down == sorted(down, reverse=True)
                # What is not known stands last.
                assert rising[: len(up)] == [value for value in rising if value]
        assert table.locator("th[aria-sort]").count() == 1


def test_rows_are_filtered(opened, report):
    page = opened(report)
    rows = page.locator("#rows-runs tbody tr")
    box = page.get_by_label("filter the rows of: All runs")
    every = rows.count()
    box.fill("vllm_v0 8")
    assert 0 < rows.locator("visible=true").count() < every
    assert "none" not in rows.locator("visible=true").first.inner_text().split()
    box.fill("")
    assert rows.locator("visible=true").count() == every


def test_a_phone_reads_the_recommendation_without_scrolling_aside(opened, report):
    page = opened(report, 400)
    tiles = page.locator(".tile")
    assert tiles.count() == 6
    for tile in tiles.all():
        box = tile.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 400


def test_what_is_not_known_and_other_situations_are_there(opened, tmp_path):
    results = sim.sweep(block_size=8, rate_scale=[1, 2], workload_args=DIALS)
    page = opened(Path(results.report(tmp_path / "r.html")), 400)
    assert page.locator(".finding.unknown").count() >= 2
    details = page.locator("details")
    assert details.count() == 1
    assert not details.locator(".tile").first.is_visible()
    details.locator("summary").click()
    assert details.locator(".tile").first.is_visible()
    assert overflow(page) <= 0
