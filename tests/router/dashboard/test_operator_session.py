"""An operator and a caller in a real browser with a real router."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.router.dashboard.ensemble import POET, WRITER, RunningEnsemble, running_ensemble
from tests.router.dashboard.page import ROWS, show, watched
from tests.router.keys.keyed import issue_key

CALLER, OPERATOR = issue_key("ann"), issue_key("ops", "operate")


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEnsemble]:
    """Yield an ensemble with its own state folder. This fixture runs before the fixtures that set a folder for each
    test, so it sets the folder itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with running_ensemble([CALLER, OPERATOR]) as found:
            yield found


def enter(page: Page, token: str) -> None:
    page.get_by_label(re.compile("^Key")).fill(token)
    page.keyboard.press("Enter")


def act(page: Page, button: str, why: str) -> None:
    show(page, f"specialist/{WRITER}")
    page.get_by_role("button", name=button).click()
    page.get_by_label(re.compile("^Reason")).fill(why)
    page.locator("#act-go").click()
    expect(page.locator("#act")).to_be_hidden()


def answered_by(ensemble: RunningEnsemble) -> str:
    response = ensemble.ask(CALLER)
    assert response.status == 200, response.body
    who: str = response.headers["x-octet-specialist"]
    return who


def test_operator_opens_a_breaker_and_traffic_moves(browser: Browser, ensemble: RunningEnsemble) -> None:
    with watched(browser) as page:
        page.goto(f"{ensemble.url}/dashboard")
        enter(page, OPERATOR.token)
        expect(page.locator(ROWS)).to_have_count(2)
        details = page.get_by_role("article", name=WRITER)
        newest = page.locator("#receipt-table tbody tr").first
        audit = page.locator("#audit-table tbody tr").first

        assert answered_by(ensemble) == WRITER
        expect(newest).to_contain_text(WRITER)

        act(page, f"Hold open the breaker of {WRITER}…", "bad refresh")
        expect(details).to_contain_text("held open")
        expect(audit).to_contain_text("bad refresh")
        expect(audit).to_contain_text("ops")
        assert answered_by(ensemble) == POET
        expect(newest).to_contain_text(f"instead of {WRITER}")
        show(page, f"specialist/{POET}")
        expect(page.get_by_role("article", name=POET)).not_to_contain_text("0 requests/s")
        expect(page.locator("#troubles")).to_contain_text(WRITER)

        show(page, "requests")
        newest.get_by_role("button").click()
        expect(page.locator("#story-body")).to_contain_text(f"Answered by {POET}")
        expect(page.locator("#story-body")).to_contain_text(f"fallback {POET} is used")
        page.keyboard.press("Escape")
        page.locator("#headline").hover()

        act(page, f"Release the breaker of {WRITER}…", "the old weights are back")
        expect(details).not_to_contain_text("held open")
        expect(audit).to_contain_text("the old weights are back")
        assert answered_by(ensemble) == WRITER
        page.evaluate("document.activeElement.blur()")
        expect(newest).not_to_contain_text("instead of")


def test_caller_key_sees_and_changes_nothing(browser: Browser, ensemble: RunningEnsemble) -> None:
    with watched(browser) as page:
        page.goto(f"{ensemble.url}/dashboard")
        expect(page.locator("#key")).to_contain_text("This router requires a key.")
        enter(page, CALLER.token)
        expect(page.locator("#key")).to_contain_text("This key lacks the role operate.")
        expect(page.locator(ROWS)).to_have_count(0)
    refused = ensemble.post(f"/v1/breakers/{WRITER}/hold", {"hold": "open", "why": "mischief"}, CALLER)
    assert (refused.status, refused.error["code"]) == (403, "forbidden")
    assert answered_by(ensemble) == WRITER


def test_router_refusal_is_shown(browser: Browser, ensemble: RunningEnsemble) -> None:
    with watched(browser) as page:
        page.goto(f"{ensemble.url}/dashboard")
        enter(page, OPERATOR.token)
        show(page, "knobs")
        page.get_by_role("button", name="Set story.priority_floor…").click()
        page.get_by_label("Value").fill("99")
        page.get_by_label(re.compile("^Reason")).fill("too much")
        page.locator("#act-go").click()
        expect(page.locator("#act-error")).to_contain_text("Value must be a whole number from 0 to 9")
