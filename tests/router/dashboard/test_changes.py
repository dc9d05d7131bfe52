"""Changes by an operator: each shows its effect, and requires a reason and a name."""

import re
from datetime import UTC, datetime
from typing import Any

from playwright.sync_api import Browser, Locator, Page, expect

from octet.v1 import overview_pb2 as wire
from tests.router.dashboard.fake import OPERATOR, FakeRouterState
from tests.router.dashboard.page import ROWS, opened, show, watched

ACTS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("Hold open the breaker of stl…", "The fallback algo answers instead", "/v1/breakers/stl/hold", {"hold": "open"}),
    ("Hold closed the breaker of stl…", "regardless of its pass rate", "/v1/breakers/stl/hold", {"hold": "closed"}),
    ("Release the breaker of debug…", "The breaker decides again", "/v1/breakers/debug/release", {}),
    (
        "Promote the candidate of algo…",
        "algo-july serves instead of",
        "/v1/lanes/algo/promote",
        {"name": "algo-july"},
    ),
    ("Drop the candidate of algo…", "algo-july is removed", "/v1/lanes/algo/roll_back", {}),
    ("Roll back the lane of stl…", "may-tickets serves again", "/v1/lanes/stl/roll_back", {}),
    ("Drain replica template-0…", "One other replica of template serves", "/v1/replicas/template-0/drain", {}),
    ("Drain replica stl-0…", "the last serving replica of stl", "/v1/replicas/stl-0/drain", {}),
    ("Undrain replica algo-1…", "send it requests again", "/v1/replicas/algo-1/undrain", {}),
    (
        "Release review.priority_floor…",
        "the configured value, 0",
        "/v1/knobs/release",
        {"name": "review.priority_floor"},
    ),
]


def confirm(page: Page, why: str, who: str = "") -> None:
    page.get_by_label(re.compile("^Reason")).fill(why)
    if who:
        page.get_by_label(re.compile("^Your name")).fill(who)
    page.locator("#act-go").click()


def test_every_change_shows_its_effect_and_is_sent(browser: Browser, fake: FakeRouterState, url: str) -> None:
    fake.overview.specialists[2].replicas[1].info.status = "drained_by_operator"
    with watched(browser) as page:
        opened(page, url)
        for number, (button, effect, path, body) in enumerate(ACTS):
            subject = path.split("/")[3].partition("-")[0]
            show(page, "knobs" if "/knobs/" in path else f"specialist/{subject}")
            page.get_by_role("button", name=button).click()
            expect(page.locator("#act-effect")).to_contain_text(effect)
            confirm(page, f"why {number}", "ana" if number == 0 else "")
            expect(page.locator("#act")).to_be_hidden()
            assert fake.posted[-1] == (path, {**body, "why": f"why {number}", "who": "ana"})
            newest = page.locator("#audit-table tbody tr").first
            expect(newest).to_contain_text(f"why {number}")
            expect(newest).to_contain_text("ana")


def _held_open(view: wire.SpecialistView) -> None:
    view.breaker.hold, view.breaker.hold_by, view.breaker.hold_why = "open", "ben", "drill"


def _demoted(view: wire.SpecialistView) -> None:
    view.breaker.state = "shadow_only"


def _recovering(view: wire.SpecialistView) -> None:
    view.breaker.state = "recovering"


def _drained(view: wire.SpecialistView) -> None:
    for each in view.replicas:
        each.info.status = "drained_by_operator"


def _failing(view: wire.SpecialistView) -> None:
    for each in view.replicas:
        each.info.health_breaker = "open"


def _held_closed(view: wire.SpecialistView) -> None:
    view.breaker.state, view.breaker.hold = "shadow_only", "closed"


_NO_FALLBACK = re.compile(r"No specialist replaces it \(the fallback algo does not serve either\): callers are refused")
_FALLBACK = re.compile("The fallback algo answers instead")


def test_fallback_is_named_only_if_it_serves(browser: Browser, fake: FakeRouterState, url: str) -> None:
    stl, algo = fake.overview.specialists[1:3]
    well = wire.SpecialistView.FromString(algo.SerializeToString())
    with watched(browser) as page:
        opened(page, url)

        def effect() -> Locator:
            fake.change()
            moment = datetime.fromtimestamp(fake.overview.at_unix_ms / 1000, UTC)
            expect(page.locator("#freshness")).to_have_text(f"Live, {moment:%H:%M:%S}")
            show(page, "specialist/stl")
            page.get_by_role("button", name="Hold open the breaker of stl…").click()
            return page.locator("#act-effect")

        for spoil in (_held_open, _demoted, _recovering, _drained, _failing, _held_closed):
            algo.CopyFrom(well)
            spoil(algo)
            result = _FALLBACK if spoil is _held_closed else _NO_FALLBACK
            expect(effect()).to_contain_text(result)
            page.keyboard.press("Escape")
        stl.breaker.fallback = ""
        expect(effect()).to_contain_text("No specialist replaces it (no fallback is configured): callers are refused")


def test_nothing_is_sent_without_reason_and_name(browser: Browser, fake: FakeRouterState, url: str) -> None:
    with watched(browser) as page:
        opened(page, url)
        show(page, "specialist/stl")
        page.get_by_role("button", name="Hold open the breaker of stl…").click()
        confirm(page, "   ")
        expect(page.locator("#act-error")).to_have_text("Enter a reason for the audit log.")
        expect(page.get_by_label(re.compile("^Reason"))).to_be_focused()
        confirm(page, "bad refresh")
        expect(page.locator("#act-error")).to_have_text("Enter your name for the audit log.")
        page.keyboard.press("Escape")
        show(page, "knobs")
        page.get_by_role("button", name="Set codegen.priority_floor…").click()
        page.get_by_label("Value").fill("many")
        confirm(page, "batch", "ana")
        expect(page.locator("#act-error")).to_contain_text("The value must be a number")
        assert fake.posted == []
        page.get_by_label("Value").fill("7")
        confirm(page, "batch", "ana")
        expect(page.locator("#toast")).to_have_text("codegen.priority_floor is set.")
        body = {"name": "codegen.priority_floor", "value": 7, "why": "batch", "who": "ana"}
        assert fake.posted == [("/v1/knobs/set", body)]


def test_key_identifies_the_operator(browser: Browser, fake: FakeRouterState, url: str) -> None:
    fake.asks_for_keys = True
    with watched(browser) as page:
        page.goto(f"{url}/dashboard")
        page.get_by_label(re.compile("^Key")).fill(OPERATOR)
        page.keyboard.press("Enter")
        expect(page.locator(ROWS)).to_have_count(8)
        show(page, "specialist/stl")
        page.get_by_role("button", name="Hold open the breaker of stl…").click()
        expect(page.locator("#act-who-field")).to_be_hidden()
        confirm(page, "bad refresh")
        expect(page.locator("#act")).to_be_hidden()
        assert fake.posted == [("/v1/breakers/stl/hold", {"hold": "open", "why": "bad refresh"})]


def test_refused_change_shows_the_reason(browser: Browser, fake: FakeRouterState, url: str) -> None:
    fake.says = "stl is held open already"
    with watched(browser) as page:
        opened(page, url)
        show(page, "specialist/stl")
        page.get_by_role("button", name="Hold open the breaker of stl…").click()
        confirm(page, "bad refresh", "ana")
        expect(page.locator("#act-error")).to_have_text("Stl is held open already")
        expect(page.locator("#act-go")).to_be_enabled()
        page.route("**/v1/breakers/**", lambda route: route.abort())
        page.locator("#act-go").click()
        expect(page.locator("#act-error")).to_contain_text("Check the audit log")
