"""One browser and one door for all of it."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.router.dashboard.browser import chromium_or_skip, launched
from tests.router.dashboard.fake import Fake, serving


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    chromium_or_skip()
    with sync_playwright() as playwright, launched(playwright) as found:
        yield found


@pytest.fixture(scope="package")
def door() -> Iterator[tuple[Fake, str]]:
    fake = Fake()
    with serving(fake) as url:
        yield fake, url


@pytest.fixture
def fake(door: tuple[Fake, str]) -> Fake:
    door[0].reset()
    return door[0]


@pytest.fixture
def url(door: tuple[Fake, str]) -> str:
    return door[1]
