"""A browser and a fake server that all tests share."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.router.dashboard.browser import chromium_or_skip, launched
from tests.router.dashboard.fake import FakeRouterState, serving
from tests.router.dashboard.page import WIDE, opened, show, watched


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    chromium_or_skip()
    with sync_playwright() as playwright, launched(playwright) as found:
        yield found


@pytest.fixture(scope="package")
def door() -> Iterator[tuple[FakeRouterState, str]]:
    fake = FakeRouterState()
    with serving(fake) as url:
        yield fake, url


@pytest.fixture
def fake(door: tuple[FakeRouterState, str]) -> FakeRouterState:
    door[0].reset()
    return door[0]


@pytest.fixture
def url(door: tuple[FakeRouterState, str]) -> str:
    return door[1]


@pytest.fixture(scope="package")
def afternoon(browser: Browser) -> Iterator[Page]:
    fake = FakeRouterState()
    fake.beats = True
    with serving(fake) as url, watched(browser) as page:
        yield opened(page, url)


@pytest.fixture
def still(afternoon: Page) -> Iterator[Page]:
    """Yield a page with the sample state, for tests that only read it."""
    yield afternoon
    afternoon.evaluate("() => document.querySelectorAll('dialog[open]').forEach((dialog) => dialog.close())")
    show(afternoon, "specialists")
    afternoon.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
