"""Make the pictures in docs/img: `python -m tests.router.dashboard.screenshots FOLDER [URL]`. They show the router at
the URL, or the sample state."""

import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from tests.router.dashboard.browser import launched
from tests.router.dashboard.fake import FakeRouterState, serving
from tests.router.dashboard.page import ROWS
from tests.router.dashboard.sample_state import NOW_MS

SIZES = {"wide": (1440, 900), "phone": (390, 844)}
THEMES = ("light", "dark")


def shoot(browser: Browser, url: str, folder: Path, size: str, theme: str, *, is_sample: bool) -> Path:
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="light" if theme == "light" else "dark",
        timezone_id="UTC",
        reduced_motion="reduce",
    )
    try:
        page = context.new_page()
        if is_sample:
            page.clock.install(time=NOW_MS / 1000)
        page.goto(f"{url}/dashboard")
        page.locator(ROWS).nth(7).wait_for()
        page.locator("body[data-live=yes]").wait_for()
        path = folder / f"dashboard-{size}-{theme}.png"
        page.screenshot(path=path, full_page=True)
        Image.open(path).convert("RGB").quantize(256, kmeans=3, dither=Image.Dither.NONE).save(path, optimize=True)
        return path
    finally:
        context.close()


def main() -> None:
    folder, *urls = sys.argv[1:]
    fake = FakeRouterState()
    fake.reset(points=360)
    with serving(fake) as sample, sync_playwright() as playwright, launched(playwright) as browser:
        for size in SIZES:
            for theme in THEMES:
                url = urls[0] if urls else sample
                path = shoot(browser, url, Path(folder), size, theme, is_sample=not urls)
                print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
