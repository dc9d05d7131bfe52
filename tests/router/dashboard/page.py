"""A browser page that records its errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, expect

from tests.router.dashboard.sample_state import NOW_MS

WAIT_MS = 60_000
WIDE, PHONE = (1280, 900), (360, 740)
ROWS = "#overview-table tbody tr"
"""The specialists in the overview."""
expect.set_options(timeout=WAIT_MS)


@contextmanager
def watched(browser: Browser, size: tuple[int, int] = WIDE, **options: Any) -> Iterator[Page]:
    """Open a page. The test fails if the page's content security policy blocks something or a script fails. Calls that
    the router refuses are allowed."""
    width, height = size
    context = browser.new_context(viewport={"width": width, "height": height}, timezone_id="UTC", **options)
    context.set_default_timeout(WAIT_MS)
    complaints: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if _is_complaint(line.type, line.text) else None)
    try:
        yield page
        assert complaints == []
    finally:
        context.close()


def _is_complaint(kind: str, text: str) -> bool:
    return kind in ("error", "warning") and not text.startswith("Failed to load resource")


def opened(page: Page, url: str, specialists: int = 8, *, clock: bool = True) -> Page:
    """Open the dashboard and wait until it shows `specialists` rows. If `clock` is set, the browser's clock shows the
    time of the sample state."""
    if clock:
        page.clock.install(time=NOW_MS / 1000)
    page.goto(f"{url}/dashboard")
    expect(page.locator(ROWS)).to_have_count(specialists)
    return page


def show(page: Page, view: str) -> Page:
    """Open a view by its fragment, such as `requests` or `specialist/stl`."""
    page.evaluate("(view) => { location.hash = view; }", view)
    section, _, name = view.partition("/")
    expect(page.locator(f"section#{section}")).to_be_visible()
    if name:
        expect(page.locator("#details-title")).to_have_text(name)
    return page
