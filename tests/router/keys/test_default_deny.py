"""Every call and every route asks for what it declares, and nothing that declares nothing is served."""

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
from router.http.app import App
from router.keys.access import ROUTES, RPCS, Access
from router.keys.gate import Gate
from router.keys.shown import from_metadata
from router.keys.source import GivenKeys
from router.keys.token import new_token
from tests.router.http.harness import Fronted, fronting
from tests.router.keys.keyed import Made, book_of, keyed, made
from tests.service.harness import run, serving, sim

CALLER, OPERATOR = made("ann"), made("ops", "operate")
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
"""None of them gets anybody in."""


async def services_of(fronted: Fronted) -> list[str]:
    """What the router itself says that it serves."""
    stub = reflection_pb2_grpc.ServerReflectionStub(fronted.routed.channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")

    async def questions() -> Any:
        yield asked

    async for answer in stub.ServerReflectionInfo(questions(), metadata=CALLER.metadata):
        return [service.name for service in answer.list_services_response.service]
    raise AssertionError("it says nothing")


def methods_of(service: str) -> Iterator[str]:
    for method in descriptor_pool.Default().FindServiceByName(service).methods:
        yield f"/{service}/{method.name}"


def is_for_operators(method: str) -> bool:
    return RPCS[method] is Access.OPERATE


def begun(channel: grpc.aio.Channel, method: str, metadata: Any, seconds: float) -> Any:
    """A call of the kind that its descriptor says; of one that nobody knows, the simplest."""
    service, name = method.strip("/").split("/")
    known = descriptor_pool.Default().FindServiceByName(service).methods_by_name.get(name)
    answers = "stream" if known is not None and known.server_streaming else "unary"
    if known is not None and known.client_streaming:
        asking, sent = f"stream_{answers}", iter([b""])
    else:
        asking, sent = f"unary_{answers}", b""  # type: ignore[assignment]
    return getattr(channel, asking)(method)(sent, metadata=metadata, timeout=seconds)


async def ended(fronted: Fronted, method: str, metadata: Any, seconds: float = 10) -> tuple[Any, int]:
    """How a call with nothing in it ends; not further than its first answer. One that is served and says nothing, as
    who watches events, is past its deadline."""
    call = begun(fronted.routed.channel, method, metadata, seconds)
    try:
        if isinstance(call, grpc.aio.UnaryUnaryCall):
            await call
        elif await call.read() is grpc.aio.EOF and await call.code() is not grpc.StatusCode.OK:
            raise AssertionError("gRPC raises what is not OK")
        return grpc.StatusCode.OK, 0
    except grpc.aio.AioRpcError as error:
        raw = dict(error.trailing_metadata() or ()).get("octet-error-bin", b"")
        return error.code(), error_pb2.Error.FromString(raw).reason
    finally:
        call.cancel()


def test_every_call_that_is_served_asks_for_what_it_declares() -> None:
    async def story() -> None:
        async with keyed([CALLER, OPERATOR]) as fronted:
            services = await services_of(fronted)
            assert {"octet.v1.Inference", "octet.v1.Operator", "grpc.health.v1.Health"} <= set(services)
            methods = [method for service in services for method in methods_of(service)]
            assert set(methods) <= set(RPCS)
            for method in methods:
                for shown in SHOWN[:4] if RPCS[method] is not Access.OPEN else []:
                    assert await ended(fronted, method, shown) == UNAUTHENTICATED, (method, shown)
                heard = await ended(fronted, method, CALLER.metadata, 10 if is_for_operators(method) else 1)
                if is_for_operators(method):
                    assert heard == FORBIDDEN, method
                    heard = await ended(fronted, method, OPERATOR.metadata, 1)
                assert heard not in (UNAUTHENTICATED, FORBIDDEN), method
            assert await ended(fronted, "/grpc.health.v1.Health/Check", ()) == (grpc.StatusCode.OK, 0)
            assert await ended(fronted, "/octet.v1.Inference/Nothing", ()) == UNAUTHENTICATED

    run(story())


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: f"{len(shown)}")
def test_nothing_but_one_known_key_gets_anybody_in(shown: tuple[tuple[str, str], ...]) -> None:
    gate = Gate(book_of(CALLER, OPERATOR), SystemClock(), lambda: 0)
    with pytest.raises(Refusal) as caught:
        gate.admit(Access.CALL, from_metadata(shown))
    assert (caught.value.code, caught.value.error.reason) == UNAUTHENTICATED
    assert CALLER.token not in str(caught.value) and OPERATOR.token not in str(caught.value)


def test_what_nobody_has_declared_nobody_may_do() -> None:
    for book, shown in ((book_of(OPERATOR), OPERATOR.metadata), (None, ())):
        with pytest.raises(Refusal) as caught:
            Gate(book, SystemClock(), lambda: 0).admit(None, from_metadata(shown))
        assert (caught.value.code, caught.value.error.reason) == FORBIDDEN


def test_what_needs_no_key_is_said_to() -> None:
    table = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    (row,) = re.findall(r"^\| nothing \| (.*) \|$", table, re.MULTILINE)
    named = set(re.findall(r"`([^`]+)`", row))
    assert {name for name in named if not name.startswith("/")} == {"grpc.health.v1.Health/Check", "Watch"}
    assert named & set(ROUTES) == {path for path, access in ROUTES.items() if access is Access.OPEN}


def paths_of(app: App) -> list[tuple[str, str, str]]:
    """Method, path as declared, path as asked for."""
    return [
        (method, route.path, route.path.replace("{model:path}", "octet/writer").replace("{", "").replace("}", ""))
        for route in app.routes
        for method in sorted(route.methods or ())
    ]


async def asked(fronted: Fronted, method: str, path: str, key: Made | None, **headers: str) -> Any:
    given = {**({} if key is None else key.headers), **headers}
    return await fronted.send(method, path, b"", given)


def test_every_route_of_the_table_asks_for_what_it_declares() -> None:
    async def story() -> None:
        async with keyed([CALLER, OPERATOR]) as fronted:
            for method, declared, path in paths_of(fronted.app):
                assert declared in ROUTES
                refusals = [
                    await asked(fronted, method, path, None),
                    await asked(fronted, method, path, None, authorization=f"Bearer {WRONG}"),
                    await asked(fronted, method, f"{path}?api_key={CALLER.token}&key={CALLER.token}", None),
                ]
                for heard in refusals if ROUTES[declared] is not Access.OPEN else []:
                    assert (heard.status, heard.headers["www-authenticate"]) == (401, "Bearer"), path
                    assert method == "HEAD" or heard.json["error"]["type"] == "authentication_error"
                    assert WRONG.encode() not in heard.body
                is_for_all = ROUTES[declared] is not Access.OPERATE
                if not is_for_all:
                    assert (await asked(fronted, method, path, CALLER)).status == 403, path
                token = CALLER.token if is_for_all else OPERATOR.token
                if (method, declared) == ("GET", "/v1/overview/events"):
                    continue  # it has no end, and a test of its own
                for key_header in ({"authorization": f"bearer {token}"}, {"x_api_key": token}):
                    heard = await asked(fronted, method, path, None, **key_header)
                    assert heard.status not in (401, 403), (method, path)
            for path in ("/healthz", "/readyz"):
                assert (await asked(fronted, "GET", path, None)).status == 200
            head = b"POST /v1/completions HTTP/1.1\r\nhost: octet\r\ncontent-type: application/json\r\n"
            async with fronted.connected(head + b"content-length: 1000000\r\n\r\n{") as reader, asyncio.timeout(5):
                assert b" 401 " in await reader.readline(), "who is refused is not waited for"

    run(story())


def test_a_route_that_is_only_added_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.http.guard.ROUTES", {"/healthz": Access.OPEN})

    async def story() -> None:
        async with keyed([CALLER]) as fronted:
            heard = await asked(fronted, "GET", "/v1/models", CALLER)
            assert (heard.status, heard.error["code"], heard.error["type"]) == (403, "forbidden", "permission_error")

    run(story())


def test_a_start_that_takes_long_names_nobody_to_strangers() -> None:
    async def story() -> None:
        keys = GivenKeys(book_of(CALLER))
        async with fronting({"writer": ["127.0.0.1:1"]}, warm=False, keys=keys) as fronted:
            heard = await asked(fronted, "GET", "/readyz", None)
            assert (heard.status, heard.json) == (503, {"status": "starting"})

    run(story())


def test_without_keys_whatever_is_shown_is_not_looked_at() -> None:
    async def story() -> None:
        async with serving(sim()) as served, fronting({"writer": [served.address]}) as fronted:
            heard = await fronted.post(
                json.dumps({"model": "octet/writer", "prompt": "x", "max_tokens": 2}).encode(),
                "/v1/completions",
                authorization="Bearer none",
            )
            assert heard.status == 200
            assert await ended(fronted, "/octet.v1.Operator/ListBreakers", ()) == (grpc.StatusCode.OK, 0)

    run(story())
