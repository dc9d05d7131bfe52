"""The page's files and their headers."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from playwright.sync_api import Browser
from starlette.applications import Starlette
from starlette.testclient import TestClient

from bench.runbook_page import SOURCE, render_runbook
from router.api.http.operator_routes import PAGE_HEADERS, dashboard_routes, page_files
from router.api.keys.keys import ROUTE_ACCESS, Access
from router.observe.overview.findings import FINDING_KINDS, Runbook
from tests.router.dashboard.fake import FakeRouterState, app_of
from tests.router.dashboard.page import watched

ROOT = Path(__file__).parents[3]
FILES = page_files()
TEXTS = {name: file.content.decode() for name, file in FILES.items()}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    app: Starlette = app_of(FakeRouterState())
    yield TestClient(app, follow_redirects=False)


def test_every_file_has_the_security_headers_and_an_etag(client: TestClient) -> None:
    pages = [("/dashboard", "index.html"), ("/dashboard/runbook", "runbook.html")]
    for path, name in [*pages, *((f"/dashboard/{name}", name) for name in FILES)]:
        response = client.get(path)
        assert response.status_code == 200 and response.content == FILES[name].content
        assert {key: response.headers[key] for key in PAGE_HEADERS} == PAGE_HEADERS
        assert response.headers["content-type"] == FILES[name].media_type
        again = client.get(path, headers={"if-none-match": response.headers["etag"]})
        assert again.status_code == 304 and again.content == b""


@pytest.mark.parametrize(
    "name", ["../routes.py", "..%2f..%2froutes.py", "page/index.html", "index.html/", "INDEX.HTML"]
)
def test_other_files_are_not_served(client: TestClient, name: str) -> None:
    assert client.get(f"/dashboard/{name}").status_code == 404


def test_trailing_slash_redirects_to_the_page(client: TestClient) -> None:
    response = client.get("/dashboard/")
    assert (response.status_code, response.headers["location"]) == (307, "../dashboard")


def test_the_routes_are_open_and_declared() -> None:
    assert {route.path for route in dashboard_routes()} <= {
        path for path, who in ROUTE_ACCESS.items() if who is Access.OPEN
    }


def test_no_foreign_sources_and_no_inline_code() -> None:
    for name, text in TEXTS.items():
        found = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", text)) - {"http://www.w3.org/2000/svg"}
        assert found == set(), name
        assert "innerHTML" not in text and "insertAdjacentHTML" not in text and "eval(" not in text, name
    page = TEXTS["index.html"] + TEXTS["runbook.html"]
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)


def test_files_and_references_match() -> None:
    page = TEXTS["index.html"]
    used = {"index.html", "runbook.html", *re.findall(r'(?:href|src)="dashboard/([\w.]+\.\w+)"', page)}
    for name, text in TEXTS.items():
        if name.endswith(".js"):
            used |= set(re.findall(r'from "\./([\w.]+)"', text))
    assert used == set(FILES)
    ids = set(re.findall(r'\bid="([\w-]+)"', page))
    asked = {each for text in TEXTS.values() for each in re.findall(r'byId\("([\w-]+)"\)', text)}
    assert asked - ids == set()


def test_files_named_on_the_page_exist() -> None:
    named = {each for text in TEXTS.values() for each in re.findall(r"\b[\w/]+/\w+\.(?:py|md)\b", text)}
    assert len(named) >= 3
    assert {each for each in named if not (ROOT / each).is_file()} == set()


def test_runbook_has_an_anchor_for_every_finding() -> None:
    anchors = re.findall(r'\bid="([\w-]+)"', TEXTS["runbook.html"])
    assert len(anchors) == len(set(anchors))
    assert set(get_args(Runbook)) - {""} <= set(anchors)
    assert {each.removeprefix("finding-") for each in anchors if each.startswith("finding-")} == set(FINDING_KINDS)


def test_runbook_links_only_to_itself_and_the_dashboard() -> None:
    targets = re.findall(r'<a href="([^"]*)"', TEXTS["runbook.html"])
    anchors = {f"#{each}" for each in re.findall(r'\bid="([\w-]+)"', TEXTS["runbook.html"])}
    assert set(targets) <= anchors | {"../dashboard"}


def test_runbook_is_written_from_its_markdown() -> None:
    assert render_runbook(SOURCE.read_text(encoding="utf-8")) == TEXTS["runbook.html"], "run `make pages`"


def test_page_is_package_data() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = config["tool"]["setuptools"]["package-data"]["router.api.http"]
    folder = ROOT / "router" / "api" / "http"
    assert {path.name for pattern in patterns for path in folder.glob(pattern)} >= set(FILES)


_CUT = """async ([text, cuts]) => {
  const { events } = await import("/dashboard/stream.js");
  const whole = new TextEncoder().encode(text);
  const result = [];
  for (const cut of cuts) {
    const body = new ReadableStream({
      start(pipe) {
        for (let at = 0; at < whole.length; at += cut) pipe.enqueue(whole.slice(at, at + cut));
        pipe.close();
      },
    });
    const response = [];
    for await (const event of events(body)) response.push([event.name, event.data]);
    result.push(response);
  }
  return result;
}"""


def test_events_are_parsed_regardless_of_chunk_boundaries(browser: Browser, fake: FakeRouterState, url: str) -> None:
    first = ': still here\r\n\r\nid: 4\r\nevent: history\r\ndata: {"a":\r\ndata: "é✓"}\r\n\r\n'
    text = first + "event: overview\ndata: {}\n\ndata:half"
    with watched(browser) as page:
        page.goto(f"{url}/dashboard")
        result = page.evaluate(_CUT, [text, [1, 2, 3, 5, 7, 1000]])
    assert result == [[["history", '{"a":\n"é✓"}'], ["overview", "{}"]]] * 6
