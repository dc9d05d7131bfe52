"""A hostile page in an operator's browser can neither change nor read anything."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.http.access_control import check_same_origin, is_loopback, origin_host
from router.api.http.errors import ApiError
from router.settings import HttpSettings
from tests.router.http.harness import HttpHarness, HttpResponse, running_http_router
from tests.router.keys.keyed import issue_key, running_keyed_router

PATH = "/v1/breakers/writer/hold"
BODY = json.dumps({"hold": "open", "who": "eve", "why": "because I can"}).encode()
OPS = issue_key("ops", "operate")
EVIL = "https://evil.example"
FAR = (EVIL, "null", "", "http://127.0.0.1", "http://[")
LED = (
    *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "localhost@evil.example"),
    *("", "10.0.0.1", "[::2]", "localhost, evil.example"),
)
READS = ("/v1/breakers", "/v1/audit", "/v1/receipts", "/v1/receipts/x/story", "/v1/story?request_id=x")


@asynccontextmanager
async def open_door(*origins: str) -> AsyncIterator[HttpHarness]:
    door = HttpSettings(allow_origins=origins)
    async with running_http_router({"writer": ["127.0.0.1:1"]}, warm=False, door=door) as fronted:
        yield fronted


async def held(fronted: HttpHarness, **headers: str) -> HttpResponse:
    return await fronted.post(BODY, PATH, **headers)


async def is_untouched(fronted: HttpHarness, key: dict[str, str] | None = None) -> bool:
    result = await fronted.send("GET", "/v1/breakers", b"", key)
    return [each["hold"] for each in result.json["breakers"]] == [""]


async def test_page_of_another_origin_changes_nothing() -> None:
    async with open_door() as fronted:
        own = f"http://127.0.0.1:{fronted.port}"
        near = (f"{own}.evil.example", f"{own}1", f"http://eve@{own[7:]}", f"file://{own[7:]}", f"{own}, {EVIL}")
        for origin in (*FAR, *near, f"http://localhost:{fronted.port}"):
            response = await held(fronted, origin=origin)
            assert (response.status, response.error["param"]) == (403, "origin"), origin
        for site in ("cross-site", "same-site", "Same-Origin", ""):
            response = await held(fronted, sec_fetch_site=site)
            assert (response.status, response.error["param"]) == (403, "sec-fetch-site"), site
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
            response = await held(fronted, **{"content-type": kind})
            assert response.status == 415, kind
        assert await is_untouched(fronted)
        for headers in ({"origin": own}, {"origin": own, "sec_fetch_site": "same-origin"}, {}):
            assert (await held(fronted, **headers)).status == 200, headers


async def test_rebound_host_name_reads_and_changes_nothing() -> None:
    async with open_door() as fronted:
        port = fronted.port
        for host in (f"evil.example:{port}", *LED):
            response = await held(fronted, host=host, origin=f"http://{host}", sec_fetch_site="same-origin")
            assert response.status in (400, 403), host
            if response.status == 403:
                assert response.error["param"] == "host"
            for path in READS:
                assert (await fronted.send("GET", path, b"", {"host": host})).status in (400, 403), (host, path)
        assert await is_untouched(fronted)
        for host in (f"localhost:{port}", "127.0.0.1", "127.8.9.1:1", f"[::1]:{port}", "LOCALHOST"):
            response = await held(fronted, host=host, origin=f"http://{host}")
            assert response.status == 200, host


async def test_callers_may_use_any_host_name() -> None:
    """A router without keys accepts any host name from callers, because a router behind a proxy or in a container has
    many host names (see docs/security.md)."""
    async with open_door() as fronted:
        for path in ("/v1/slo", "/v1/models", "/v1/jobs"):
            assert (await fronted.send("GET", path, b"", {"host": "octet.internal:8080"})).status == 200, path


async def test_with_keys_any_host_name_is_allowed_but_no_other_origin() -> None:
    async with running_keyed_router([OPS]) as fronted:
        response = await held(fronted, host="octet.example", origin=EVIL, **OPS.headers)
        assert (response.status, response.error["param"]) == (403, "origin")
        assert await is_untouched(fronted, OPS.headers)
        response = await held(fronted, host="octet.example", origin="https://octet.example", **OPS.headers)
        assert response.status == 200
        result = await fronted.send("GET", "/v1/audit", b"", {"host": "octet.example", **OPS.headers})
        assert result.status == 200


async def test_allowed_origin_may_not_operate() -> None:
    """`allow_origins` applies only to routes that any key may call."""
    async with open_door(EVIL) as fronted:
        asks = {"origin": EVIL, "access-control-request-method": "POST"}
        assert (await fronted.send("OPTIONS", "/v1/models", b"", asks)).status == 204
        for path in (PATH, *READS):
            asked = await fronted.send("OPTIONS", path, b"", asks)
            assert asked.status == 405 and "access-control-allow-origin" not in asked.headers, path
        for path in READS:
            result = await fronted.send("GET", path, b"", {"origin": EVIL})
            assert "access-control-allow-origin" not in result.headers and result.headers["vary"] == "origin", path
        assert (await held(fronted, origin=EVIL)).status == 403 and await is_untouched(fronted)


@given(st.sampled_from(["GET", "HEAD", "POST", "DELETE"]), st.text(), st.text(), st.text(), st.booleans())
def test_any_browser_headers_are_accepted_or_refused(
    method: str, host: str, origin: str, site: str, keys: bool
) -> None:
    given_headers = {b"host": host, b"origin": origin, b"sec-fetch-site": site}
    headers = [(name, value.encode()) for name, value in given_headers.items()]
    scope = {"method": method, "headers": headers, "server": ("127.0.0.1", 80)}
    try:
        check_same_origin(scope, has_keys=keys)
    except ApiError as fault:
        assert fault.status == 403 and fault.param in ("host", "origin", "sec-fetch-site")
    else:
        assert keys or is_loopback(host.encode().decode("latin-1").strip())
        assert method in ("GET", "HEAD") or origin_host(origin) is not None


@pytest.mark.parametrize("server", [("10.1.2.3", 80), ("fd00::1", 80), None])
def test_public_router_without_keys_is_read_by_any_host_name_and_changed_by_none(
    server: tuple[str, int] | None,
) -> None:
    headers = [(b"host", b"octet.internal")]
    check_same_origin({"method": "GET", "headers": headers, "server": server}, has_keys=False)
    with pytest.raises(ApiError, match="loopback"):
        check_same_origin({"method": "POST", "headers": headers, "server": server}, has_keys=False)
    for local in ("127.0.0.1", "::1"):
        with pytest.raises(ApiError, match="loopback"):
            check_same_origin({"method": "GET", "headers": headers, "server": (local, 80)}, has_keys=False)
