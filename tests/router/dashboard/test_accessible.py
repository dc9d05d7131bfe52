"""Accessibility: keyboard, screen reader, large text and themes."""

import re
from itertools import pairwise

import pytest
from playwright.sync_api import Browser, Page, expect

from router.api.http.operator_routes import page_files
from tests.router.dashboard.fake import FakeRouterState
from tests.router.dashboard.page import opened, show, watched

_LEAST_TEXT, _LEAST_SHAPE = 4.5, 3.0
"""The smallest contrasts that WCAG 2.2 permits at level AA, for text and for shapes."""
_GROUNDS = ("ground", "surface", "raised")
_TEXTS = (
    *((text, ground) for text in ("text", "muted", "accent") for ground in _GROUNDS),
    *((tone, ground) for tone in ("good", "warn", "bad", "note") for ground in ("surface", f"{tone}-ground")),
    *((("on-accent", "accent"), ("on-danger", "danger"), ("ground", "text"), ("text", "warn-ground"))),
)
_SHAPES = (
    *((shape, "surface") for shape in ("edge", "used", "plot", "target", "accent")),
    ("used", "free"),
)
_CONTROLS = "button, a, input, select, textarea, summary, [role=img], table, dialog[open]"
_NAMELESS = """(controls) => [...document.querySelectorAll(controls)]
  .filter((node) => !node.closest("dialog:not([open])")).filter((node) => {
    const ids = (node.getAttribute("aria-labelledby") ?? "").split(" ");
    const by = ids.map((id) => document.getElementById(id)?.textContent);
    const named = node.getAttribute("aria-label") ?? node.caption?.textContent ?? by.join("");
    const labels = [...(node.labels ?? [])].map((label) => label.textContent).join("");
    const own = node.matches("button, a, summary") ? node.textContent : "";
    return !`${named}${labels}${own}`.trim();
  }).map((node) => node.outerHTML.slice(0, 120))"""
_LEVELS = """() => [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")]
  .filter((node) => !node.closest("dialog")).map((node) => Number(node.tagName[1]))"""
_TWICE = """() => [...document.querySelectorAll("[id]")].map((node) => node.id)
  .filter((id, index, all) => all.indexOf(id) !== index)"""
_LOOSE = "() => document.querySelectorAll('th:not([scope])').length"


def channels(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def luminance(colour: str) -> float:
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def colours(theme: int) -> dict[str, str]:
    """Return the colours of a theme: 0 is light, 1 is dark."""
    css = page_files()["theme.css"].content.decode()
    found = re.findall(r"--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", css)
    assert len(found) == css.count("light-dark(")
    return {name: pair[theme] for name, *pair in found}


def test_the_contrast_formula_gives_known_values() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_all_colours_have_enough_contrast(theme: int) -> None:
    shown = colours(theme)
    faint = [pair for pair in _TEXTS if contrast(shown[pair[0]], shown[pair[1]]) < _LEAST_TEXT]
    assert faint == []
    assert [pair for pair in _SHAPES if contrast(shown[pair[0]], shown[pair[1]]) < _LEAST_SHAPE] == []


def test_colours_are_defined_only_in_the_theme() -> None:
    """The contrast tests check only the colours of the theme, so no other file may define colours."""
    for name, file in page_files().items():
        if name.endswith(".css") and name != "theme.css":
            assert re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[;\s,)])|\b(?:hsl|oklch)\(", file.content.decode()) == [], name


_FAINT = """([least]) => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const opaque = (node) => (numbers(getComputedStyle(node).backgroundColor)[3] ?? 1) === 1;
  const mixed = (over, under, share) => over.slice(0, 3).map((each, at) => each * share + under[at] * (1 - share));
  const linear = (each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
  const bright = (colour) => {
    const [red, green, blue] = colour.map((each) => linear(each / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const page = numbers(getComputedStyle(document.body).backgroundColor);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const faint = [];
  let seen = 0;
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !node.checkVisibility()) continue;
    if (node.closest(".unseen, dialog, option, script, details, .skip")) continue;
    let [share, ground, filtered] = [1, null, false];
    for (let each = node; each; each = each.parentElement) {
      const style = getComputedStyle(each);
      share *= Number(style.opacity);
      filtered ||= style.filter !== "none";
      if (!ground && opaque(each)) ground = numbers(style.backgroundColor);
    }
    const both = [numbers(getComputedStyle(node).color), ground ?? page];
    const pair = both.map((each) => bright(mixed(each, page, share)));
    const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    seen += 1;
    if (contrast < least || filtered) faint.push([texts.currentNode.data, contrast, filtered]);
  }
  return [seen, faint];
}"""


def test_outdated_data_is_grey_and_readable(browser: Browser, fake: FakeRouterState, url: str) -> None:
    colour = "() => getComputedStyle(document.querySelector('#overview-table .badge[data-tone=good]')).color"
    with watched(browser, reduced_motion="reduce") as page:
        opened(page, url)
        for theme in ("light", "dark"):
            page.get_by_label("Colours").select_option(theme)
            seen, faint = page.evaluate(_FAINT, [_LEAST_TEXT])
            assert seen > 100 and faint == []
        live = page.evaluate(colour)
        fake.silent = True
        page.clock.fast_forward(12_000)
        expect(page.locator("body")).to_have_attribute("data-live", "no")
        for theme in ("dark", "light"):
            page.get_by_label("Colours").select_option(theme)
            seen, faint = page.evaluate(_FAINT, [_LEAST_TEXT])
            assert seen > 100 and faint == []
            if theme == "dark":
                muted = f"rgb{tuple(round(255 * each) for each in channels(colours(1)['muted']))}"
                assert page.evaluate(colour) == muted != live


def test_controls_have_names_and_headings_are_ordered(still: Page) -> None:
    page = show(still, "specialist/template")
    assert page.evaluate(_NAMELESS, _CONTROLS) == []
    show(page, "requests")
    page.locator("#receipt-table tbody tr").nth(2).click()
    expect(page.locator(".fall")).to_be_visible()
    assert page.evaluate(_NAMELESS, _CONTROLS) == []
    assert page.evaluate(_TWICE) == []
    assert page.evaluate(_LOOSE) == 0
    levels = page.evaluate(_LEVELS)
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    page.keyboard.press("Escape")
    for landmark in ("banner", "main", "navigation", "contentinfo"):
        assert page.get_by_role(landmark).count() == 1


@pytest.mark.parametrize("view", ["specialists", "specialist/template", "knobs", "requests"])
def test_keyboard_reaches_everything_with_visible_focus(still: Page, view: str) -> None:
    page = show(still, view)
    page.evaluate("() => document.activeElement.blur()")
    page.get_by_role("link", name="Skip to the content").focus()
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    wanted = page.evaluate("""() => {
      const all = [...document.querySelectorAll("button, a[href], input, select, textarea, summary")];
      const shown = all.filter((node) => node.checkVisibility() && !node.closest("dialog"));
      shown.forEach((node, index) => { node.dataset.wanted = index; });
      return shown.length;
    }""")
    reached, bare = set(), []
    for _ in range(wanted):
        where, outline = page.evaluate("""() => [
          document.activeElement.dataset.wanted, getComputedStyle(document.activeElement).outlineStyle]""")
        reached.add(where)
        bare += [where] if outline == "none" else []
        page.keyboard.press("Tab")
    assert bare == []
    assert reached == {str(number) for number in range(wanted)}


def test_themes_and_reduced_motion(browser: Browser, fake: FakeRouterState, url: str) -> None:
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light, dark = (f"rgb{tuple(round(255 * each) for each in channels(colours(theme)['ground']))}" for theme in (0, 1))
    with watched(browser, color_scheme="dark", reduced_motion="reduce") as page:
        opened(page, url)
        assert page.evaluate(ground) == dark
        page.get_by_label("Colours").select_option("light")
        assert page.evaluate(ground) == light
        page.reload()
        expect(page.get_by_label("Colours")).to_have_value("light")
        assert page.evaluate(ground) == light
        expect(page.locator("body")).to_have_attribute("data-live", "yes")
        assert page.evaluate("() => getComputedStyle(document.documentElement).scrollBehavior") == "auto"
        assert page.evaluate("() => document.getAnimations().length") == 0
