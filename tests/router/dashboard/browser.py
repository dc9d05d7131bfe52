"""Debian's Chromium without a window."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Playwright

ELSEWHERE = "octet.test"
"""A host name that resolves to this machine but is not loopback."""


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def chromium_or_skip() -> str:
    found = chromium()
    if found is None:
        pytest.skip("there is no chromium on this machine")
    return found


@contextmanager
def launched(playwright: Playwright) -> Iterator[Browser]:
    options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"]
    options.append(f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1")
    browser = playwright.chromium.launch(executable_path=chromium_or_skip(), headless=True, args=options)
    try:
        yield browser
    finally:
        browser.close()
