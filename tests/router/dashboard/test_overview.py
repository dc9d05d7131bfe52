"""The overview fits its screens, leads to details and to the runbook, and marks what was missed."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from octet.v1 import overview_pb2 as wire
from tests.router.dashboard.fake import FakeRouterState
from tests.router.dashboard.page import ROWS, opened, show, watched

_HEIGHT = "() => document.documentElement.scrollHeight"
_CUT = """() => [...document.querySelectorAll("#totals dd, #overview-table :is(.value, .aim, .below)")]
  .filter((node) => node.scrollWidth > node.clientWidth && node.checkVisibility())
  .map((node) => node.textContent).filter((text) => /\\d/.test(text))"""
_OUTSIDE = """() => [...document.querySelectorAll("#headline, #totals, #overview-table tbody tr")].filter((node) => {
    const box = node.getBoundingClientRect();
    return box.height === 0 || box.top < 0 || box.bottom > innerHeight || box.left < 0 || box.right > innerWidth;
  }).map((node) => node.textContent)"""
_STAGES = """() => [...document.querySelectorAll(".fall .stage")].map((name) => [
  name.className.replace("stage", "").trim(), name.textContent,
  Math.round(10 * Number(name.nextElementSibling.nextElementSibling.textContent.replace(/[^\\d.]/g, "")))])"""


def many_findings(overview: wire.Overview) -> None:
    """Give the overview more findings than it shows at first."""
    for number in range(9):
        overview.troubles.add(severity=wire.Trouble.NOTE, kind="draining", subject=f"r-{number}", text=f"r-{number}: x")


def test_eight_specialists_fit_a_wide_screen(browser: Browser, fake: FakeRouterState, url: str) -> None:
    many_findings(fake.overview)
    with watched(browser, (1440, 900)) as page:
        opened(page, url)
        expect(page.locator("body")).to_have_attribute("data-live", "yes")
        assert page.evaluate(_HEIGHT) <= 900
        assert page.evaluate(_OUTSIDE) == []
        assert page.evaluate(_CUT) == []


def test_eight_specialists_fit_three_phone_screens(browser: Browser, fake: FakeRouterState, url: str) -> None:
    many_findings(fake.overview)
    with watched(browser, (390, 844), has_touch=True) as page:
        opened(page, url)
        expect(page.locator("body")).to_have_attribute("data-live", "yes")
        assert page.evaluate(_HEIGHT) <= 3 * 844
        assert page.evaluate(_CUT) == []
        page.locator(ROWS).nth(3).tap()
        expect(page.get_by_role("article", name="memory")).to_be_visible()
        page.set_viewport_size({"width": 320, "height": 700})
        for view in ("specialist/memory", "specialists", "requests", "knobs", "shadows", "audit"):
            show(page, view)
            assert page.evaluate("() => document.documentElement.scrollWidth") <= 320, view


def test_row_shows_the_figures_of_a_specialist(still: Page) -> None:
    cells = still.locator(ROWS).first.locator("th, td")
    for number, text in enumerate(
        (
            "template✖ Critical · ✗ 2 of 4 missed",
            "closedbare model #1",
            "2/2",
            "11.8842 tokens/s",
            "1.94 s✗ missed: ≤ 250 ms",
            "19 ms✓ met: ≤ 50 ms",
            "12.0 %0.6/s spilled",
            "97.1 %✓ met: ≥ 90 %",
        )
    ):
        expect(cells.nth(number)).to_have_text(text)
    expect(cells.nth(8).get_by_role("img", name=re.compile("^template: TTFT p95: from"))).to_be_visible()
    restarted = still.locator(ROWS).nth(5)
    expect(restarted).to_contain_text(re.compile(r"1 restart\s· 4\smin ago"))
    expect(still.locator("#totals")).to_contain_text("✗ 29 of 32")
    show(still, "specialist/systems")
    expect(still.get_by_role("article")).to_contain_text(re.compile(r"1 restart\s· last 4\smin ago: killed by SIGKILL"))


def test_missed_objective_without_a_figure_is_marked(browser: Browser, fake: FakeRouterState, url: str) -> None:
    """If no request gets an answer, there is no latency to show, but the objective is missed."""
    slo = fake.overview.specialists[1].slo
    slo.ttft.ClearField("p95")
    slo.objectives[0].ClearField("current")
    slo.objectives[0].met = False
    with watched(browser) as page:
        opened(page, url)
        expect(page.locator(ROWS).nth(1).locator("td").nth(3)).to_contain_text("✗ missed: ≤ 250 ms")
        expect(page.locator(ROWS).nth(1)).to_contain_text("✗ 1 of 4 missed")


def test_all_well_is_green_only_if_the_router_says_so(browser: Browser, fake: FakeRouterState, url: str) -> None:
    del fake.overview.troubles[:]
    fake.overview.headline = "8 specialists serve, but stl misses its target for time to first token p95."
    with watched(browser) as page:
        opened(page, url)
        expect(page.locator("#headline")).to_have_attribute("data-severity", "warning")
        fake.overview.headline = "All well: 8 specialists serve."
        fake.change()
        expect(page.locator("#headline")).to_have_attribute("data-severity", "none")


def test_missing_replica_is_marked(browser: Browser, fake: FakeRouterState, url: str) -> None:
    fake.overview.specialists[0].replicas[1].info.status = "connecting"
    fake.overview.specialists[1].replicas[0].info.health_breaker = "open"
    with watched(browser) as page:
        opened(page, url)
        for row, text in enumerate(("✗ 1/2", "✗ 0/1", "2/2")):
            expect(page.locator(ROWS).nth(row).locator("td").nth(1)).to_contain_text(text)
        expect(page.locator("#totals")).to_contain_text("✗ 10 of 12")


def test_details_open_and_close_by_pointer_and_keyboard(still: Page) -> None:
    page, details = still, still.locator("#specialist")
    link = page.get_by_role("link", name="algo", exact=True)
    page.locator(ROWS).nth(2).locator("td").nth(3).click()
    expect(page.get_by_role("article", name="algo")).to_be_visible()
    expect(details).to_be_focused()
    expect(page.locator("#specialists")).to_be_hidden()
    assert page.evaluate("location.hash") == "#specialist/algo"
    page.keyboard.press("Escape")
    expect(details).to_be_hidden()
    expect(link).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="algo")).to_be_visible()
    page.get_by_role("link", name="← All specialists").click()
    expect(link).to_be_focused()
    page.go_back()
    expect(page.get_by_role("article", name="algo")).to_be_visible()
    page.get_by_role("button", name="Promote the candidate of algo…").click()
    page.keyboard.press("Escape")
    expect(page.locator("#act")).to_be_hidden()
    expect(details).to_be_visible()


@pytest.mark.parametrize("name", ["template", "c++/17 100%", "missing"])
def test_details_open_by_fragment(browser: Browser, fake: FakeRouterState, url: str, name: str) -> None:
    fake.overview.specialists[7].name = "c++/17 100%"
    with watched(browser) as page:
        page.goto(f"{url}/dashboard#specialist/{name.replace('%', '%25')}")
        expect(page.locator("#details-title")).to_have_text(name)
        expect(page.get_by_role("article", name=name)).to_have_count(0 if name == "missing" else 1)
        if name == "missing":
            expect(page.locator("#no-details")).to_have_text("The ensemble has no specialist named “missing”.")
        current = page.locator("nav [aria-current=page]")
        expect(current).to_have_text("Overview")
        page.get_by_role("link", name="Audit").click()
        expect(page.locator("#audit")).to_be_visible()
        expect(current).to_have_text("Audit")


def test_stage_times_add_up(still: Page) -> None:
    show(still, "requests").locator("#receipt-table tbody tr").nth(2).click()
    expect(still.locator(".fall")).to_be_visible()
    *rows, (_, total_name, total) = still.evaluate(_STAGES)
    stages: list[tuple[int, list[int]]] = []
    for depth, _, figure in rows:
        if depth == "sub":
            stages[-1][1].append(figure)
        else:
            stages.append((figure, []))
    assert total_name == "Total" and total == 15_120
    assert sum(length for length, _ in stages) == total
    assert [(length, sum(parts)) for length, parts in stages if parts] == [(250, 250), (2_070, 2_070), (12_700, 12_700)]
    assert [name for depth, name, _ in rows if name == "other" and depth == "sub"] == ["other"] * 3
    still.keyboard.press("Escape")


def test_every_finding_leads_to_its_place_in_the_runbook(browser: Browser, fake: FakeRouterState, url: str) -> None:
    with watched(browser) as page:
        opened(page, url)
        page.locator("#all-troubles").click()
        links = page.locator("#now a:visible")
        expect(links).to_have_count(len(fake.overview.troubles))
        targets = [link.get_attribute("href") for link in links.all()]
        expected = [each.runbook or f"finding-{each.kind}" for each in fake.overview.troubles]
        assert targets == [f"dashboard/runbook#{each}" for each in expected]
        assert len(set(expected)) > 2
        for target in sorted(set(filter(None, targets))):
            page.goto(f"{url}/{target}")
            expect(page.locator(":target")).to_be_visible()
        page.set_viewport_size({"width": 320, "height": 700})
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 320
        page.get_by_role("link", name="← Dashboard").click()
        expect(page.locator(ROWS)).to_have_count(8)
