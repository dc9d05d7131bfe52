"""The routes and their methods."""

import asyncio
from pathlib import Path

import pytest

from octet.config.loader import read_ensemble
from octet.config.reload import ConfigWatch
from octet.rpc.listener import BindRefused
from router.api.http.server import HttpServer
from router.settings import HttpSettings
from tests.patience import PATIENCE
from tests.router.http.harness import running_http_router
from tests.router.serving.harness import running_router
from tests.router.serving.spy import hang, running_spy
from tests.specialist.server.harness import run, running_replica, sim
from tests.specialist.server.test_tls import tls

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
ENDLESS = -1
"""Marks endless streams, which have tests of their own."""
ROUTES = {
    "/v1/chat/completions": {"POST": 415},
    "/v1/completions": {"POST": 415},
    "/v1/embeddings": {"POST": 415},
    "/v1/responses": {"POST": 415},
    "/v1/responses/absent": {"GET": 404, "HEAD": 404, "DELETE": 404},
    "/v1/responses/absent/input_items": {"GET": 404, "HEAD": 404},
    "/v1/responses/absent/cancel": {"POST": 400},
    "/v1/messages": {"POST": 415},
    "/v1/messages/count_tokens": {"POST": 415},
    "/v1/infer": {"POST": 415},
    "/v1/jobs": {"GET": 200, "HEAD": 200, "POST": 415},
    "/v1/jobs/absent": {"GET": 404, "HEAD": 404},
    "/v1/jobs/absent/events": {"GET": 404, "HEAD": 404},
    "/v1/jobs/absent/cancel": {"POST": 404},
    "/v1/models": {"GET": 200, "HEAD": 200},
    "/v1/models/octet/writer": {"GET": 200, "HEAD": 200},
    "/v1/receipts/absent": {"GET": 404, "HEAD": 404},
    "/v1/receipts": {"GET": 200, "HEAD": 200},
    "/v1/receipts/absent/story": {"GET": 404, "HEAD": 404},
    "/v1/story": {"GET": 400, "HEAD": 400},
    "/v1/breakers": {"GET": 200, "HEAD": 200},
    "/v1/breakers/absent/hold": {"POST": 415},
    "/v1/breakers/absent/release": {"POST": 415},
    "/v1/knobs": {"GET": 200, "HEAD": 200},
    "/v1/knobs/set": {"POST": 415},
    "/v1/knobs/release": {"POST": 415},
    "/v1/lanes": {"GET": 200, "HEAD": 200},
    "/v1/lanes/absent/load": {"POST": 415},
    "/v1/lanes/absent/promote": {"POST": 415},
    "/v1/lanes/absent/roll_back": {"POST": 415},
    "/v1/replicas": {"GET": 200, "HEAD": 200},
    "/v1/replicas/absent/drain": {"POST": 415},
    "/v1/replicas/absent/undrain": {"POST": 415},
    "/v1/audit": {"GET": 200, "HEAD": 200},
    "/v1/slo": {"GET": 200, "HEAD": 200},
    "/v1/overview": {"GET": 200, "HEAD": 200},
    "/v1/overview/events": {"GET": ENDLESS, "HEAD": 200},
    "/v1/history": {"GET": 200, "HEAD": 200},
    "/metrics": {"GET": 200, "HEAD": 200},
    "/metrics/replicas": {"GET": 200, "HEAD": 200},
    "/openapi.json": {"GET": 200, "HEAD": 200},
    "/healthz": {"GET": 200, "HEAD": 200},
    "/readyz": {"GET": 200, "HEAD": 200},
    "/ping": {"GET": 200, "HEAD": 200},
    "/health": {"GET": 200, "HEAD": 200},
    "/version": {"GET": 200, "HEAD": 200},
    "/": {"GET": 307, "HEAD": 307},
    "/dashboard": {"GET": 200, "HEAD": 200},
    "/dashboard/absent": {"GET": 404, "HEAD": 404},
}
NOWHERE = (
    "/v1",
    "/v1/",
    "/v1/chat/completions/",
    "/v1/messages/",
    "/v1/messages/batches",
    "/healthz/",
    "/v1/receipts/",
    "/%00",
    "/../x",
)


async def test_every_route_accepts_exactly_its_methods() -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        known = {route.path.split("{")[0].rstrip("/") or "/" for route in fronted.app.routes}
        assert known == {path.replace("/octet/writer", "").split("/absent")[0] for path in ROUTES}
        for path, taken in ROUTES.items():
            for method in METHODS:
                if taken.get(method) == ENDLESS:
                    continue
                response = await fronted.send(method, path)
                assert response.status == taken.get(method, 405), (method, path)
                assert response.headers["x-request-id"]
                if response.status == 405:
                    assert set(response.headers["allow"].split(", ")) == set(taken)
                    assert method == "HEAD" or response.code == "method_not_allowed"
        for path in NOWHERE:
            response = await fronted.get(path)
            assert (response.status, response.code) == (404, "not_found"), path


async def test_health_is_good_under_full_load_and_readiness_follows_the_replicas() -> None:
    async with running_spy(hang) as spy:
        async with running_http_router({"writer": [spy.address], "poet": ["127.0.0.1:1"]}, warm=False) as fronted:
            await fronted.routed.until(lambda: fronted.routed.server.fleet.waiting_for == ["poet"])
            response = await fronted.get("/readyz")
            assert (response.status, response.json) == (503, {"status": "starting", "waiting_for": ["poet"]})
        async with running_http_router({"writer": [spy.address]}) as fronted:
            busy = [asyncio.create_task(fronted.ask()) for _ in range(20)]
            await fronted.routed.until(lambda: len(fronted.routed.server.live) == 20)
            async with asyncio.timeout(PATIENCE):
                assert (await fronted.get("/healthz")).json == {"status": "ok"}
                assert (await fronted.get("/readyz")).json == {"status": "ready"}
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)


async def test_failed_bind_names_the_option_that_helps() -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        with pytest.raises(BindRefused, match="--http-port"):
            HttpServer(fronted.app, HttpSettings(port=fronted.port))
        with pytest.raises(BindRefused, match="--insecure"):
            HttpServer(fronted.app, HttpSettings(host="0.0.0.0"))  # noqa: S104


async def test_router_without_http_has_no_http_server() -> None:
    async with running_replica(sim()) as served, running_router({"writer": [served.address]}) as routed:
        assert routed.server.http is None


async def test_models_follow_the_configuration_and_the_port_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ensemble.yaml"
    text = "specialists:\n  writer:\n    describe: words\n    engine: sim\n    addresses: ['127.0.0.1:1']\n"
    path.write_text(f"{text}router: {{http: {{port: 0}}}}\n")
    ensemble = read_ensemble(path)
    async with running_http_router({"writer": ["127.0.0.1:1"]}, ensemble=ensemble, warm=False) as fronted:
        fronted.routed.server.follow(ConfigWatch(path, ensemble, interval=0.02, settle=0.01))
        first = fronted.routed.server.service.policy.digest
        path.write_text(f"{text}router: {{http: {{port: 8099}}}}\n")
        await fronted.routed.until(lambda: "router.http" in caplog.text)
        assert fronted.routed.server.service.policy.digest == first
        path.write_text(f"{text}default: writer\nrouter: {{http: {{port: 0}}}}\n")
        await fronted.routed.until(lambda: fronted.routed.server.service.policy.digest != first)
        assert (await fronted.get("/v1/models")).status == 200


async def test_https_uses_the_routers_certificate(pki: Path) -> None:
    import ssl
    from dataclasses import replace

    async with running_replica(sim()) as served:
        door = HttpSettings(tls=replace(tls(pki), client_ca=None))
        async with running_router({"writer": [served.address]}, http=door) as routed:
            http = routed.server.http
            assert http is not None and http.url.startswith("https://")
            trust = ssl.create_default_context(cafile=str(pki / "ca.pem"))
            reader, writer = await asyncio.open_connection("127.0.0.1", http.port, ssl=trust)
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: octet\r\nconnection: close\r\n\r\n")
            assert b'{"status":"ok"}' in await reader.read()
            writer.close()


def test_internal_failure_is_500_in_the_error_envelope(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with running_replica(sim()) as replica, running_http_router({"writer": [replica.address]}) as fronted:

            async def fail(*_: object) -> None:
                raise ZeroDivisionError

            fronted.app._service.receipt = fail  # type: ignore[assignment,method-assign]
            response = await fronted.get("/v1/receipts/x")
            assert (response.status, response.error["code"]) == (500, "internal")
            assert "x-request-id" in response.headers

    run(story())
    assert "ZeroDivisionError" in caplog.text
