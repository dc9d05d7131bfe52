"""The page in a real browser with a fake server."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from octet.v1 import overview_pb2 as wire
from tests.router.dashboard import sample_state
from tests.router.dashboard.browser import ELSEWHERE
from tests.router.dashboard.fake import CALLER, OPERATOR, FakeRouterState
from tests.router.dashboard.page import PHONE, ROWS, WIDE, opened, show, watched

HOSTILE = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
_STRAY_LATENCIES = """() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const stray = [];
  while (texts.nextNode()) {
    const node = texts.currentNode;
    const tables = "#overview-table tbody tr, #plot-table, #receipt-table tr, #audit-table tr";
    const owners = `${tables}, #details, #plot-grid, #story, #fresh-text, #now`;
    const owned = node.parentElement.closest(owners);
    if (/\\d\\s?(ms|s)\\b/.test(node.data) && !owned) stray.push(node.data);
  }
  return stray;
}"""

_COUNT_WORDS = """() => {
  window.spoken = 0;
  const count = new MutationObserver((found) => { window.spoken += found.length; });
  count.observe(document.getElementById("announce-live"), { childList: true, characterData: true, subtree: true });
}"""
_STRAY_AIMS = """() => [...document.querySelectorAll(".aim-line")].filter((line) => {
  const [own, frame] = [line, line.ownerSVGElement].map((node) => node.getBoundingClientRect());
  const cut = getComputedStyle(line.ownerSVGElement).overflow === "hidden";
  return !cut && getComputedStyle(line).visibility === "visible" && (own.top < frame.top || own.bottom > frame.bottom);
}).length"""
_STICKS_OUT = """() => [document.documentElement, ...document.querySelectorAll("dialog[open]")]
  .filter((node) => node.scrollWidth > node.clientWidth).map((node) => node.id || node.tagName)"""


def test_overview_shows_all_parts(still: Page) -> None:
    page = still
    shown = sample_state.overview()
    line = f"Critical: {shown.headline}"
    assert "template: 12 % of requests refused" in line
    expect(page.locator("#headline")).to_contain_text(line)
    expect(page.locator("#announce")).to_have_text(line)
    assert [each.kind for each in shown.troubles][:2] == ["refusing", "escalated"]
    others = shown.troubles[1:]
    for number, trouble in enumerate(others[:3]):
        expect(page.locator("#troubles li").nth(number)).to_contain_text(trouble.text)
    expect(page.locator("#troubles li")).to_have_count(3)
    page.get_by_role("button", name=f"Show all {len(shown.troubles)} findings").click()
    for number, trouble in enumerate(others):
        expect(page.locator("#troubles li").nth(number)).to_contain_text(trouble.text)
    page.get_by_role("button", name="Show fewer findings").click()
    expect(page).to_have_title("✖ cpp - Octet")
    show(page, "specialist/template")
    details = page.get_by_role("article", name="template")
    for words in (
        *(
            "1.94 s",
            "✗ missed: ≤ 250 ms",
            "✓ met: ≤ 50 ms",
            "2 of 4 targets met",
            re.compile(r"burns 7\.2.\sin 5\smin, 1\.8.\sin 1\sh"),
        ),
        *("Correctness 97.1 %", "of 240 evaluated, 24 h · ✓ met, floor 90 %", "Queue 28 · running 16", "running 8/8"),
        *("KV blocks: 1,180 used, 330 cached, 26 free", "cache reuse 62 %, usually 64 %", "1.42/s refused"),
    ):
        expect(details).to_contain_text(words)
    show(page, "specialist/debug")
    held = page.get_by_role("article", name="debug")
    expect(held).to_contain_text("held open")
    expect(held).to_contain_text("ana: bad refresh")
    expect(held).to_contain_text("✗ missed, floor 90 %")
    expect(page.locator("#knob-table tbody tr")).to_have_count(11)
    expect(page.locator("#knob-table tbody tr").first).to_contain_text("codegen/template.shadow_threshold")
    expect(page.locator("#shadow-table")).to_contain_text("algo+algo-july")
    expect(page.locator("#audit-table tbody tr").first).to_contain_text("15 of 118 requests refused")
    expect(page.locator("#receipt-table")).to_contain_text("spilled from template")


def test_every_latency_belongs_to_one_specialist(still: Page) -> None:
    page = still
    assert page.evaluate(_STRAY_LATENCIES) == []
    assert page.locator(ROWS, has_text="ms").count() == 8
    show(page, "specialist/stl")
    assert page.evaluate(_STRAY_LATENCIES) == []
    assert [option.inner_text() for option in page.locator("#plot-who option").all()] == [
        each.name for each in sample_state.overview().specialists
    ]


def unmeasured() -> list[wire.SpecialistView]:
    """Return a specialist without measurements, and one with few measurements and a high target."""
    none, little = (sample_state.specialist(name, 1) for name in ("none", "little"))
    for view in (none, little):
        view.breaker.CopyFrom(sample_state.new_breaker(view.name))
        for objective in view.slo.objectives:
            objective.target = 3600
            objective.ClearField("current")
            objective.ClearField("burns")
    little.slo.objectives[0].current = 0.1
    return [none, little]


def test_an_overview_without_problems_is_shown(browser: Browser, fake: FakeRouterState, url: str) -> None:
    fake.reset(
        wire.Overview(
            at_unix_ms=sample_state.NOW_MS,
            headline="All well: 1 specialist serves.",
            specialists=[wire.SpecialistView(name="quiet"), *unmeasured()],
        )
    )
    with watched(browser) as page:
        opened(page, url, 3)
        expect(page.locator("#headline-text")).to_have_text("All well: 1 specialist serves.")
        expect(page.locator("#headline-sign")).to_have_text("✓")
        expect(page.locator("#headline-runbook")).to_be_hidden()
        assert page.locator(".spark .aim-line").count() == 3
        assert page.evaluate(_STRAY_AIMS) == 0
        details = page.get_by_role("article")
        show(page, "specialist/quiet")
        expect(details).to_contain_text("No targets are configured.")
        expect(details).to_contain_text("of 0 evaluated")
        show(page, "specialist/none")
        expect(details).to_contain_text("4 targets, not measured yet")
        assert details.inner_text().count("of 20") == 1
        show(page, "specialist/little")
        expect(details).to_contain_text("1 of 1 measured targets met · 3 not measured yet")
        for view, empty in (("shadows", "#no-shadows"), ("requests", "#no-receipts"), ("audit", "#no-audit")):
            show(page, view)
            expect(page.locator(empty)).to_be_visible()


def test_changed_figures_are_updated_in_place(browser: Browser, fake: FakeRouterState, url: str) -> None:
    """If a figure in one of sixty-four rows changes, the page replaces only the text of that figure."""
    names = [f"specialist-{number}" for number in range(64)]
    fake.reset(sample_state.overview(names), points=20)
    with watched(browser) as page:
        opened(page, url, 64)
        page.get_by_role("link", name="specialist-5", exact=True).focus()
        page.evaluate("""() => {
          window.seen = [];
          const note = (found) => window.seen.push(...found.map((each) => each.target.className));
          const watch = new MutationObserver(note);
          const table = document.getElementById("overview-table");
          watch.observe(table, { childList: true, characterData: true, subtree: true });
        }""")
        fake.overview.specialists[7].slo.ttft.p95 = 0.777
        fake.change()
        expect(page.locator(ROWS).nth(7)).to_contain_text("777 ms")
        assert page.evaluate("window.seen") == ["value"]
        assert page.evaluate("document.activeElement.textContent") == "specialist-5"
        page.get_by_label("Show").fill("specialist-6")
        expect(page.locator(f"{ROWS}:visible")).to_have_count(5)
        page.get_by_label("Show").fill("nobody")
        expect(page.locator("#no-match")).to_be_visible()


def test_silent_stream_is_reported(browser: Browser, fake: FakeRouterState, url: str) -> None:
    with watched(browser) as page:
        opened(page, url)
        expect(page.locator("#freshness")).to_have_text("Live, 14:02:11")
        assert page.locator("#announce-live").inner_text() == ""
        fake.silent = True
        page.clock.fast_forward(12_000)
        expect(page.locator("#freshness")).to_have_text(re.compile("As of 14:02:11, 1[2-9]\\s*s old — not live."))
        expect(page.locator("body")).to_have_attribute("data-live", "no")
        headline = page.locator("#headline-text")
        expect(headline).to_have_text(f"As of 14:02:11: Critical: {fake.overview.headline}")
        expect(page.locator("#headline-sign")).to_have_text("?")
        expect(page.locator("#headline")).to_have_attribute("data-severity", "unknown")
        expect(page).to_have_title("? cpp - Octet")
        spoken = page.locator("#announce-live")
        expect(spoken).to_have_text("Not live: all data is as of 14:02:11.")
        assert spoken.get_attribute("aria-live") == "polite"
        page.evaluate(_COUNT_WORDS)
        before = page.locator("#freshness").inner_text()
        page.clock.fast_forward(1_000)
        expect(page.locator("#freshness")).not_to_have_text(before)
        assert page.evaluate("window.spoken") == 0, "the silence must not be announced again"
        show(page, "specialist/stl")
        page.get_by_role("button", name="Hold open the breaker of stl…").click()
        expect(page.locator("#act-stale")).to_contain_text("The data shown may be outdated.")
        page.keyboard.press("Escape")
        fake.silent = False
        fake.change()
        expect(page.locator("#freshness")).to_have_text("Live, 14:02:12")
        expect(page.locator("body")).to_have_attribute("data-live", "yes")
        expect(spoken).to_have_text("Live again.")
        expect(headline).to_have_text(f"Critical: {fake.overview.headline}")
        expect(page.locator("#headline-sign")).to_have_text("✖")
        expect(page).to_have_title("✖ cpp - Octet")


def test_repeated_overview_is_not_new_data(browser: Browser, fake: FakeRouterState, url: str) -> None:
    """An overview with the same time as the previous one does not count as an update."""
    with watched(browser) as page:
        opened(page, url)
        page.clock.fast_forward(9_000)
        fake.changes += 1
        page.clock.fast_forward(3_000)
        expect(page.locator("#freshness")).to_contain_text("not live")


def test_page_reconnects_to_a_lost_router(browser: Browser, fake: FakeRouterState, url: str) -> None:
    with watched(browser) as page:
        opened(page, url, clock=False)
        fake.down = True
        expect(page.locator("#freshness")).to_contain_text("not live")
        expect(page.locator("#freshness")).to_contain_text("Trying again")
        fake.down = False
        expect(page.locator("#freshness")).to_contain_text("Live")


def test_hostile_text_is_not_markup(browser: Browser, fake: FakeRouterState, url: str) -> None:
    shown = fake.overview
    shown.headline = HOSTILE
    for trouble in shown.troubles:
        trouble.text = trouble.subject = trouble.runbook = HOSTILE
    view = shown.specialists[7]
    view.describe = view.breaker.hold_by = view.breaker.hold_why = view.breaker.outlook = HOSTILE
    view.lanes[0].adapter = view.replicas[0].info.name = HOSTILE
    shown.ensemble = shown.version = shown.knobs[0].why = shown.knobs[0].name = HOSTILE
    shown.shadow_rows[0].shadow = shown.receipts[0].intent = HOSTILE
    shown.receipts[0].request_id = "<img src=x onerror=window.hacked=1>"
    shown.audit[0].why = shown.audit[0].who = HOSTILE
    with watched(browser) as page:
        opened(page, url)
        expect(page.locator("#audit-table")).to_contain_text(HOSTILE)
        expect(page.locator("#headline")).to_contain_text(HOSTILE)
        show(page, "specialist/debug")
        expect(page.get_by_role("article")).to_contain_text(HOSTILE)
        show(page, "requests")
        page.locator("#receipt-table tbody tr").first.click()
        expect(page.locator("#story-title")).to_have_text("Request <img src=x onerror=window.hacked=1>")
        expect(page.locator("#story-body")).to_contain_text("Where the time went")
        assert page.locator("main img, main script, dialog img, dialog script").count() == 0
        assert page.evaluate("window.hacked") is None


def test_page_asks_for_a_key(browser: Browser, fake: FakeRouterState, url: str) -> None:
    fake.asks_for_keys = True
    with watched(browser) as page:
        page.goto(f"{url}/dashboard")
        dialog = page.locator("#key")
        expect(dialog).to_contain_text("This router requires a key.")
        page.get_by_label(re.compile("^Key")).fill(CALLER)
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("This key lacks the role operate.")
        expect(dialog).to_contain_text("the key 'ann' may not do this")
        expect(page.locator(ROWS)).to_have_count(0)
        page.get_by_label(re.compile("^Key")).fill(OPERATOR)
        page.keyboard.press("Enter")
        expect(page.locator(ROWS)).to_have_count(8)
        assert OPERATOR not in page.content()
        page.get_by_role("button", name="Forget key").click()
        expect(dialog).to_contain_text("This router requires a key.")
        expect(page.locator(ROWS)).to_have_count(0)
        assert page.evaluate("[sessionStorage.length, localStorage.length]") == [0, 0]


@pytest.mark.parametrize("name", ["team/a/17", "..", "a?b=c#d%2f", HOSTILE], ids=["path", "dots", "query", "markup"])
def test_request_with_any_id_can_be_opened(still: Page, name: str) -> None:
    show(still, "requests")
    still.get_by_role("textbox", name="Request", exact=True).fill(name)
    with still.expect_response(lambda response: "/v1/story" in response.url) as response:
        still.keyboard.press("Enter")
    assert response.value.status == 200 and response.value.json()["receipt"]["request_id"] == name
    expect(still.locator("#story-body")).to_contain_text("Where the time went")
    still.keyboard.press("Escape")


def test_wrong_origin_is_explained_without_asking_for_a_key(browser: Browser, fake: FakeRouterState, url: str) -> None:
    with browser.new_context() as elsewhere:
        page = elsewhere.new_page()
        page.goto(f"{url.replace('127.0.0.1', ELSEWHERE)}/dashboard")
        why = "The router does not accept requests from a page at this address: host must be a loopback name"
        expect(page.locator("#freshness")).to_contain_text(why)
        expect(page.locator("#announce-live")).to_contain_text(why)
        expect(page.locator("#key")).to_be_hidden()
        expect(page.locator(ROWS)).to_have_count(0)
    with watched(browser) as page:
        opened(page, url)
        fake.behind = "localhost:1"
        show(page, "specialist/stl")
        page.get_by_role("button", name="Hold open the breaker of stl…").click()
        page.get_by_label(re.compile("^Reason")).fill("drill")
        page.get_by_label(re.compile("^Your name")).fill("ana")
        page.locator("#act-go").click()
        expect(page.locator("#act-error")).to_contain_text("a proxy that changes the Host header may be the cause")
        expect(page.locator("#act-error")).to_contain_text(f"got '{url}'")
        assert "This key" not in page.locator("#act-error").inner_text()
        assert fake.posted == []


def test_timeline_of_a_request(still: Page) -> None:
    page = still
    show(page, "requests")
    row = page.locator("#receipt-table tbody button").nth(2)
    row.focus()
    page.keyboard.press("Enter")
    body = page.locator("#story-body")
    for words in (
        *("Answered by stl (stl-0) in 1.51 s", "the classifier takes it for template", "template had no room"),
        *("16 requests wait, which is all there is room for", "Expected wait", "192 of 403 prompt tokens"),
        *(
            "First token",
            "207.0 ms",
            "queue",
            "61.0 ms",
            "template-1, failed",
            "Similarity",
            "64 %",
            "Verdict",
            "passed",
        ),
        *("batch traffic during the incident", "4bf92f3577b34da6a3ce929d0e0e4736"),
    ):
        expect(body).to_contain_text(words)
    page.keyboard.press("Escape")
    expect(row).to_be_focused()
    page.get_by_label("Request", exact=True).fill("unknown")
    page.keyboard.press("Enter")
    expect(body).to_have_text("No receipt of 'unknown' is kept")
    page.keyboard.press("Escape")
    with page.expect_request(lambda sent: sent.url.endswith("/v1/receipts?limit=50&outcome=refused")):
        page.get_by_label("Outcome").select_option("refused")
    expect(page.locator("#requests-state")).to_contain_text("3 shown; no older requests are kept; not live.")
    page.get_by_label("Outcome").select_option("")
    expect(page.locator("#receipt-table tbody tr")).to_have_count(8)


def test_plots_of_one_specialist_are_accessible(still: Page) -> None:
    page = show(still, "specialist/template")
    plot = page.get_by_role(
        "img", name=re.compile(r"^template: TTFT p95: from .* to 1\.89\ss, now 1\.89\ss; target 250\sms")
    )
    expect(plot).to_be_visible()
    page.locator("#plot-who").select_option("stl")
    expect(page.get_by_role("img", name=re.compile(r"^stl: Pass rate: .*; floor 90\s%"))).to_be_visible()
    page.get_by_text("Show as a table").click()
    table = page.get_by_role("table", name="stl over time, newest first")
    expect(table.locator("tbody tr")).to_have_count(30)
    expect(table.locator("tbody th").first).to_have_text("14:02:11")
    page.get_by_text("Show as a table").click()


@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
def test_nothing_overflows_the_viewport(still: Page, size: tuple[int, int]) -> None:
    still.set_viewport_size({"width": size[0], "height": size[1]})
    for view in ("specialists", "specialist/template", "knobs", "shadows", "audit", "requests"):
        show(still, view)
        assert still.evaluate(_STICKS_OUT) == [], view
    still.locator("#receipt-table tbody tr").nth(2).click()
    expect(still.locator(".fall")).to_be_visible()
    assert still.evaluate(_STICKS_OUT) == []
    still.keyboard.press("Escape")
    show(still, "knobs")
    still.get_by_role("button", name="Set review.priority_floor…").click()
    assert still.evaluate(_STICKS_OUT) == []
    still.keyboard.press("Escape")
