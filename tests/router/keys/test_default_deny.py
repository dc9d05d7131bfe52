"""Every call and route requires its declared access. Calls and routes without a declaration are refused."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from octet.clock import SystemClock
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from router.api.http.app import App
from router.api.keys.gate import AccessGate, headers_from_metadata
from router.api.keys.key_file import StaticKeys
from router.api.keys.keys import ROUTE_ACCESS, RPC_ACCESS, Access, new_token
from tests.patience import PATIENCE
from tests.router.http.harness import HttpHarness, running_http_router
from tests.router.keys.keyed import IssuedKey, issue_key, key_set, running_keyed_router
from tests.specialist.server.harness import running_replica, sim

CALLER, OPERATOR = issue_key("ann"), issue_key("ops", "operate")
WRONG = new_token()
UNAUTHENTICATED = (grpc.StatusCode.UNAUTHENTICATED, error_pb2.ERROR_REASON_UNAUTHENTICATED)
FORBIDDEN = (grpc.StatusCode.PERMISSION_DENIED, error_pb2.ERROR_REASON_FORBIDDEN)
SHOWN: list[tuple[tuple[str, str], ...]] = [
    (),
    (("authorization", ""),),
    (("authorization", "Bearer"),),
    (("authorization", f"Bearer {WRONG}"),),
    (("authorization", CALLER.token),),
    (("authorization", f"Basic {CALLER.token}"),),
    (("authorization", f"Bearer {CALLER.token}x"),),
    (("authorization", f"Bearer {CALLER.token[:-1]}"),),
    (("x-api-key", WRONG),),
    (("authorization", f"Bearer {CALLER.token}"), ("authorization", f"Bearer {CALLER.token}")),
    (("authorization", f"Bearer {CALLER.token}"), ("x-api-key", OPERATOR.token)),
]
"""Credentials that must all be refused."""


async def services_of(fronted: HttpHarness) -> list[str]:
    """Return the services that the router lists through reflection."""
    stub = reflection_pb2_grpc.ServerReflectionStub(fronted.routed.channel)
    requested = reflection_pb2.ServerReflectionRequest(list_services="")

    async def questions() -> Any:
        yield requested

    async for answer in stub.ServerReflectionInfo(questions(), metadata=CALLER.metadata):
        return [service.name for service in answer.list_services_response.service]
    raise AssertionError("reflection returned nothing")


def methods_of(service: str) -> Iterator[str]:
    for method in descriptor_pool.Default().FindServiceByName(service).methods:
        yield f"/{service}/{method.name}"


def is_for_operators(method: str) -> bool:
    return RPC_ACCESS[method] is Access.OPERATE


def begun(channel: grpc.aio.Channel, method: str, metadata: Any, seconds: float) -> Any:
    """Start a call that is unary or streaming, as its descriptor declares. An unknown method is called as unary."""
    service, name = method.strip("/").split("/")
    known = descriptor_pool.Default().FindServiceByName(service).methods_by_name.get(name)
    answers = "stream" if known is not None and known.server_streaming else "unary"
    if known is not None and known.client_streaming:
        asking, sent = f"stream_{answers}", iter([b""])
    else:
        asking, sent = f"unary_{answers}", b""  # type: ignore[assignment]
    return getattr(channel, asking)(method)(sent, metadata=metadata, timeout=seconds)


async def ended(fronted: HttpHarness, method: str, metadata: Any, seconds: float = PATIENCE) -> tuple[Any, int]:
    """Call the method with an empty request. Return the status code and the error reason. The code is OK as soon as a
    message arrives. A stream that is served but sends nothing ends at its deadline."""
    call = begun(fronted.routed.channel, method, metadata, seconds)
    try:
        if isinstance(call, grpc.aio.UnaryUnaryCall):
            await call
        elif await call.read() is grpc.aio.EOF and await call.code() is not grpc.StatusCode.OK:
            raise AssertionError("gRPC raises an error for every other status")
        return grpc.StatusCode.OK, 0
    except grpc.aio.AioRpcError as error:
        raw = dict(error.trailing_metadata() or ()).get("octet-error-bin", b"")
        return error.code(), error_pb2.Error.FromString(raw).reason
    finally:
        call.cancel()


async def test_every_served_call_requires_its_declared_access() -> None:
    async with running_keyed_router([CALLER, OPERATOR]) as fronted:
        services = await services_of(fronted)
        assert {"octet.v1.Inference", "octet.v1.Operator", "grpc.health.v1.Health"} <= set(services)
        methods = [method for service in services for method in methods_of(service)]
        assert set(methods) <= set(RPC_ACCESS)
        for method in methods:
            for shown in SHOWN[:4] if RPC_ACCESS[method] is not Access.OPEN else []:
                assert await ended(fronted, method, shown) == UNAUTHENTICATED, (method, shown)
            received = await ended(fronted, method, CALLER.metadata, PATIENCE if is_for_operators(method) else 1)
            if is_for_operators(method):
                assert received == FORBIDDEN, method
                received = await ended(fronted, method, OPERATOR.metadata, 1)
            assert received not in (UNAUTHENTICATED, FORBIDDEN), method
        assert await ended(fronted, "/grpc.health.v1.Health/Check", ()) == (grpc.StatusCode.OK, 0)
        assert await ended(fronted, "/octet.v1.Inference/Nothing", ()) == UNAUTHENTICATED


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: f"{len(shown)}")
def test_only_exactly_one_known_key_is_accepted(shown: tuple[tuple[str, str], ...]) -> None:
    gate = AccessGate(key_set(CALLER, OPERATOR), SystemClock(), lambda: 0)
    with pytest.raises(Refusal) as caught:
        gate.authorize(Access.CALL, headers_from_metadata(shown))
    assert (caught.value.code, caught.value.error.reason) == UNAUTHENTICATED
    assert CALLER.token not in str(caught.value) and OPERATOR.token not in str(caught.value)


def test_undeclared_calls_are_refused() -> None:
    for book, shown in ((key_set(OPERATOR), OPERATOR.metadata), (None, ())):
        with pytest.raises(Refusal) as caught:
            AccessGate(book, SystemClock(), lambda: 0).authorize(None, headers_from_metadata(shown))
        assert (caught.value.code, caught.value.error.reason) == FORBIDDEN


def test_open_calls_need_no_key() -> None:
    table = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    (row,) = re.findall(r"^\| nothing \| (.*) \|$", table, re.MULTILINE)
    named = set(re.findall(r"`([^`]+)`", row))
    assert {name for name in named if not name.startswith("/")} == {"grpc.health.v1.Health/Check", "Watch"}
    assert named & set(ROUTE_ACCESS) == {path for path, access in ROUTE_ACCESS.items() if access is Access.OPEN}


def paths_of(app: App) -> list[tuple[str, str, str]]:
    """Return, for every route, its method, its declared path, and a concrete path that can be requested."""
    return [
        (method, route.path, route.path.replace("{model:path}", "octet/writer").replace("{", "").replace("}", ""))
        for route in app.routes
        for method in sorted(route.methods or ())
    ]


async def requested(fronted: HttpHarness, method: str, path: str, key: IssuedKey | None, **headers: str) -> Any:
    given = {**({} if key is None else key.headers), **headers}
    return await fronted.send(method, path, b"", given)


async def test_every_route_requires_its_declared_access() -> None:
    async with running_keyed_router([CALLER, OPERATOR]) as fronted:
        for method, declared, path in paths_of(fronted.app):
            assert declared in ROUTE_ACCESS
            refusals = [
                await requested(fronted, method, path, None),
                await requested(fronted, method, path, None, authorization=f"Bearer {WRONG}"),
                await requested(fronted, method, f"{path}?api_key={CALLER.token}&key={CALLER.token}", None),
            ]
            for received in refusals if ROUTE_ACCESS[declared] is not Access.OPEN else []:
                assert (received.status, received.headers["www-authenticate"]) == (401, "Bearer"), path
                assert method == "HEAD" or received.json["error"]["type"] == "authentication_error"
                assert WRONG.encode() not in received.body
            is_for_all = ROUTE_ACCESS[declared] is not Access.OPERATE
            if not is_for_all:
                assert (await requested(fronted, method, path, CALLER)).status == 403, path
            token = CALLER.token if is_for_all else OPERATOR.token
            if (method, declared) == ("GET", "/v1/overview/events"):
                continue  # The endless stream has a test of its own.
            for key_header in ({"authorization": f"bearer {token}"}, {"x_api_key": token}):
                received = await requested(fronted, method, path, None, **key_header)
                assert received.status not in (401, 403), (method, path)
        for path in ("/healthz", "/readyz"):
            assert (await requested(fronted, "GET", path, None)).status == 200
        head = b"POST /v1/completions HTTP/1.1\r\nhost: octet\r\ncontent-type: application/json\r\n"
        async with fronted.connected(head + b"content-length: 1000000\r\n\r\n{") as reader, asyncio.timeout(PATIENCE):
            assert b" 401 " in await reader.readline(), "the call must be refused before the body arrives"


async def test_undeclared_route_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.api.http.access_control.ROUTE_ACCESS", {"/healthz": Access.OPEN})
    async with running_keyed_router([CALLER]) as fronted:
        received = await requested(fronted, "GET", "/v1/models", CALLER)
        assert (received.status, received.error["code"], received.error["type"]) == (
            403,
            "forbidden",
            "permission_error",
        )


async def test_readiness_names_no_specialists_without_a_key() -> None:
    keys = StaticKeys(key_set(CALLER))
    async with running_http_router({"writer": ["127.0.0.1:1"]}, warm=False, keys=keys) as fronted:
        received = await requested(fronted, "GET", "/readyz", None)
        assert (received.status, received.json) == (503, {"status": "starting"})


async def test_without_keys_credentials_are_ignored() -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        received = await fronted.post(
            json.dumps({"model": "octet/writer", "prompt": "x", "max_tokens": 2}).encode(),
            "/v1/completions",
            authorization="Bearer none",
        )
        assert received.status == 200
        assert await ended(fronted, "/octet.v1.Operator/ListBreakers", ()) == (grpc.StatusCode.OK, 0)
