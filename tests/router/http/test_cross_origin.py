"""Cross-origin requests: only configured origins may read responses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from octet.config.loader import read_ensemble
from router.settings import HttpSettings
from tests.router.http.harness import HttpHarness, HttpResponse, running_http_router
from tests.specialist.server.harness import running_replica, sim

HERE = "https://tools.example.com"
ELSEWHERE = (
    "https://evil.example.com",
    "http://tools.example.com",
    f"{HERE}:8443",
    f"{HERE}.evil.com",
    "null",
    "*",
    "",
)
ASKS = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-stainless-lang"}


@asynccontextmanager
async def allowing(*origins: str) -> AsyncIterator[HttpHarness]:
    door = HttpSettings(allow_origins=origins)
    async with (
        running_replica(sim()) as served,
        running_http_router({"writer": [served.address]}, door=door) as fronted,
    ):
        yield fronted


def result(response: HttpResponse) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


async def test_allowed_origin_passes_preflight_and_reads_responses() -> None:
    async with allowing("http://localhost:3000", HERE) as fronted:
        asked = await fronted.send("OPTIONS", "/v1/chat/completions", headers={"origin": HERE, **ASKS})
        assert (asked.status, asked.body) == (204, b"")
        assert result(asked) == {
            "access-control-allow-origin": HERE,
            "access-control-allow-methods": "GET, POST, DELETE",
            "access-control-allow-headers": ASKS["access-control-request-headers"],
            "access-control-max-age": "600",
        }
        body = b'{"model": "octet/writer", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2%s}'
        for more in (b"", b', "stream": true'):
            response = await fronted.post(body % more, origin=HERE)
            assert (response.status, response.headers["access-control-allow-origin"]) == (200, HERE)
        for path, status in (("/v1/models", 200), ("/v1/models/nobody", 404), ("/nowhere", 404)):
            response = await fronted.send("GET", path, headers={"origin": HERE})
            assert (response.status, response.headers["access-control-allow-origin"]) == (status, HERE)
            exposed = response.headers["access-control-expose-headers"].split(", ")
            assert {"x-request-id", "request-id", "retry-after", "retry-after-ms"} <= set(exposed)
            assert "access-control-allow-credentials" not in response.headers and response.headers["vary"] == "origin"


async def test_other_origins_read_nothing() -> None:
    async with allowing(HERE) as fronted:
        for origin in ELSEWHERE:
            asked = await fronted.send("OPTIONS", "/v1/models", headers={"origin": origin, **ASKS})
            assert (asked.status, result(asked)) == (405, {}), origin
            response = await fronted.send("GET", "/v1/models", headers={"origin": origin})
            assert (response.status, result(response), response.headers["vary"]) == (200, {}, "origin"), origin
        plain = await fronted.send("OPTIONS", "/v1/models", headers={"origin": HERE})
        assert plain.status == 405
        strange = {"origin": HERE, **ASKS, "access-control-request-headers": "x(y)"}
        assert "access-control-allow-headers" not in result(await fronted.send("OPTIONS", "/", headers=strange))
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        for method in ("GET", "OPTIONS"):
            response = await fronted.send(method, "/v1/models", headers={"origin": HERE, **ASKS})
            assert result(response) == {} and "vary" not in response.headers


def _config(origins: str) -> str:
    return f"engine: sim\nspecialists: {{writer: {{}}}}\nrouter: {{http: {{allow_origins: {origins}}}}}\n"


def test_configured_origin_must_have_the_form_that_browsers_send(tmp_path: Path) -> None:
    file = tmp_path / "ensemble.yaml"
    file.write_text(_config(f'["{HERE}", "http://localhost:3000", "http://[::1]:8080"]'))
    http = read_ensemble(file).router.http
    assert http is not None and http.allow_origins == (HERE, "http://localhost:3000", "http://[::1]:8080")
    for wrong in (
        "*",
        "null",
        f"{HERE}/",
        f"{HERE}/page",
        "tools.example.com",
        "https://Tools.example.com",
        "ftp://x.y",
    ):
        file.write_text(_config(f'["{wrong}"]'))
        with pytest.raises(ValueError, match="allow_origins"):
            read_ensemble(file)
