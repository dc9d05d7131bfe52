"""Make the pictures in docs/img: `python -m tests.router.dashboard.screenshots FOLDER`."""

import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from tests.router.dashboard.browser import launched
from tests.router.dashboard.fake import FakeRouterState, serving
from tests.router.dashboard.page import ROWS
from tests.router.dashboard.sample_state import NOW_MS

SIZES = {"wide": (1440, 1000), "phone": (390, 1180)}
THEMES = ("light", "dark")


def shoot(browser: Browser, url: str, folder: Path, size: str, theme: str) -> Path:
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="light" if theme == "light" else "dark",
        timezone_id="UTC",
        reduced_motion="reduce",
    )
    try:
        page = context.new_page()
        page.clock.install(time=NOW_MS / 1000)
        page.goto(f"{url}/dashboard")
        page.locator(ROWS).nth(7).wait_for()
        page.clock.run_for(1500)
        path = folder / f"dashboard-{size}-{theme}.png"
        page.screenshot(path=path)
        Image.open(path).convert("RGB").quantize(256, kmeans=3, dither=Image.Dither.NONE).save(path, optimize=True)
        return path
    finally:
        context.close()


def main() -> None:
    folder = Path(sys.argv[1])
    fake = FakeRouterState()
    fake.reset(points=360)
    with serving(fake) as url, sync_playwright() as playwright, launched(playwright) as browser:
        for size in SIZES:
            for theme in THEMES:
                path = shoot(browser, url, folder, size, theme)
                print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
