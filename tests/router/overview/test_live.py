"""Operators get the overview over gRPC and HTTP as long as their keys are valid."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from octet.rpc.handlers import ConcurrencyLimit
from octet.rpc.messages import message_to_json
from octet.v1 import error_pb2
from octet.v1 import operator_pb2 as wire
from router.api.keys.key_file import StaticKeys
from tests.patience import PATIENCE
from tests.router.http.harness import HttpHarness, running_http_router
from tests.router.keys.keyed import IssuedKey, issue_key, key_set
from tests.router.serving.harness import infer_request
from tests.specialist.server.harness import running_replica, sim

ANN, OPS, BOSS = issue_key("ann"), issue_key("ops", "operate"), issue_key("boss", "operate")


@asynccontextmanager
async def running_overview(*keys: IssuedKey, **settings: Any) -> AsyncIterator[HttpHarness]:
    source = StaticKeys(key_set(*keys)) if keys else None
    async with (
        running_replica(sim()) as replica,
        running_http_router({"writer": [replica.address]}, keys=source, **settings) as fronted,
        asyncio.timeout(PATIENCE),
    ):
        yield fronted


def call(fronted: HttpHarness, name: str, ask: Any, answer: Any, key: IssuedKey | None = None) -> Any:
    metadata = () if key is None else key.metadata
    kind = fronted.routed.channel.unary_stream if name.startswith("Watch") else fronted.routed.channel.unary_unary
    method = kind(f"/octet.v1.Operator/{name}", type(ask).SerializeToString, answer.FromString)
    return method(ask, metadata=metadata)


class Events:
    """The events of a stream, in order of arrival."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self.head = b""

    async def open(self) -> "Events":
        self.head = await self._reader.readuntil(b"\r\n\r\n")
        return self

    async def next(self) -> tuple[str, Any]:
        size = int((await self._reader.readline()).strip() or b"0", 16)
        if not size:
            return "", None
        event = (await self._reader.readexactly(size)).decode()
        await self._reader.readexactly(2)
        head, _, data = event.partition("\n")
        assert event.count("\n") == 3 and event.endswith("\n\n"), "the event must have one line of data"
        return head.removeprefix("event: "), json.loads(data.removeprefix("data: "))


@asynccontextmanager
async def watching(fronted: HttpHarness, key: IssuedKey | None = None) -> AsyncIterator[Events]:
    shown = "" if key is None else f"authorization: {key.headers['authorization']}\r\n"
    asked = f"GET /v1/overview/events HTTP/1.1\r\nhost: 127.0.0.1:{fronted.port}\r\n{shown}\r\n".encode()
    async with fronted.connected(asked) as reader:
        yield await Events(reader).open()


async def test_grpc_and_http_show_the_same_overview() -> None:
    async with running_overview() as fronted:
        for number in range(3):
            await fronted.routed.ask(infer_request(request_id=f'<b>"{number}'))
        await fronted.routed.until(lambda: len(fronted.routed.server.view.now().overview.receipts) == 3)
        overview = await call(fronted, "GetOverview", wire.GetOverviewRequest(), wire.Overview)
        response = await fronted.get("/v1/overview")
        assert response.status == 200 and response.headers["content-type"] == "application/json"
        shown = response.json
        assert {*shown} == {*message_to_json(overview)}
        assert [line["request_id"] for line in shown["receipts"]] == [f'<b>"{number}' for number in (2, 1, 0)]
        assert shown["specialists"][0]["rates"]["answered"] > 0
        assert shown["specialists"][0]["replicas"][0]["info"]["status"] == "serving"
        assert shown["headline"] == "All well: 1 specialist serves." == overview.headline
        for path in ("/v1/overview", "/v1/history"):
            assert (await fronted.get(path)).headers["cache-control"] == "no-store"
        history = await call(fronted, "GetHistory", wire.GetHistoryRequest(), wire.History)
        assert (await fronted.get("/v1/history")).json == message_to_json(history)
        assert history.specialists[0].points and history.step_seconds == 5
        none = await fronted.get("/v1/history?last_seconds=0.001")
        assert none.json["specialists"] == [{"name": "writer", "points": []}]


async def test_an_invalid_duration_is_refused_by_name() -> None:
    async with running_overview() as fronted:
        for seconds in ("x", "-1", "nan", "inf", "1e99", "9" * 99, "", "%F0%9F%90%99"):
            response = await fronted.get(f"/v1/history?last_seconds={seconds}")
            assert (response.status, response.error["param"]) == (400, "last_seconds"), seconds
            assert response.error["limit"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(fronted, "GetHistory", wire.GetHistoryRequest(last_seconds=-1), wire.History)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_every_watcher_sees_a_change() -> None:
    async with running_overview() as fronted, watching(fronted) as events:
        watch = call(fronted, "WatchOverview", wire.WatchOverviewRequest(), wire.Overview)
        assert (await events.next())[0] == "history"
        name, first = await events.next()
        assert name == "overview" and not first["troubles"] and not (await watch.read()).troubles
        assert b"text/event-stream" in events.head and b"no-cache" in events.head
        await fronted.routed.server.services.control.hold_breaker("writer", "closed", who="ann", why="a test")
        while not (overview := (await events.next())[1])["troubles"]:
            pass
        (trouble,) = overview["troubles"]
        assert (trouble["kind"], trouble["severity"], trouble["subject"]) == ("breaker_held", "note", "writer")
        while not (seen := await watch.read()).troubles:
            pass
        assert seen.troubles[0].kind == "breaker_held"
        while "hold_breaker" not in {entry["what"] for entry in overview["audit"]}:
            overview = (await events.next())[1]
        watch.cancel()


async def test_shadow_agreement_is_counted_with_each_comparison() -> None:
    async with running_overview() as fronted:
        server = fronted.routed.server
        one = wire.Comparison(at_unix_ms=1 << 42, primary="writer", shadow="coder", why="low_confidence")
        server.services.evaluations._evaluator._listener.compared(one, "", "")
        await fronted.routed.until(lambda: len(server.view.now().overview.shadow_rows) == 1)
        (row,) = server.view.now().overview.shadow_rows
        assert (row.primary, row.shadow, row.compared) == ("writer", "coder", 1)


async def test_a_lost_replica_is_a_finding() -> None:
    async with (
        running_replica(sim()) as other,
        running_http_router({"writer": [other.address]}) as fronted,
        asyncio.timeout(PATIENCE),
    ):
        async with watching(fronted) as events:
            assert (await events.next())[0] == "history"
            await other.server.stop(0)
            while len((overview := (await events.next())[1])["troubles"]) < 2:
                pass
        first, trouble = overview["troubles"]
        assert (first["kind"], first["severity"]) == ("nobody_serves", "critical")
        assert (trouble["kind"], trouble["severity"]) == ("no_replica", "critical")
        refused = "its only replica is down; it has no fallback: requests are refused"
        assert trouble["text"] == f"writer: {refused} since {trouble['text'][-9:]}"
        assert overview["headline"] == f"{first['text']} (and 1 more)"


async def test_only_operators_with_valid_keys_see_the_overview() -> None:
    async with running_overview(ANN, OPS, BOSS) as fronted:
        for path in ("/v1/overview", "/v1/history", "/v1/overview/events"):
            assert (await fronted.send("GET", path, b"", ANN.headers)).status == 403
            assert (await fronted.send("GET", path)).status == 401
        assert (await fronted.send("GET", "/v1/overview", b"", OPS.headers)).status == 200
        watch = call(fronted, "WatchOverview", wire.WatchOverviewRequest(), wire.Overview, OPS)
        await watch.read()
        async with watching(fronted, OPS) as events, watching(fronted, BOSS) as others:
            assert [(await events.next())[0] for _ in range(2)] == ["history", "overview"]
            fronted.routed.server.gate.replace(key_set(ANN, BOSS))
            while (event := await events.next())[0] == "overview":
                pass
            assert event[0] == "error" and event[1]["error"]["code"] == "invalid_api_key"
            assert (await events.next())[0] == "", "the stream must end"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while True:
                    await watch.read()
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert [(await others.next())[0] for _ in range(3)] == ["history", "overview", "overview"]
        await fronted.routed.until(lambda: not fronted.routed.server.view.watchers.num_open.total())


async def test_too_many_watchers_get_a_typed_refusal() -> None:
    async with running_overview() as fronted:
        view = fronted.routed.server.view
        view.watchers = ConcurrencyLimit(1, "watching the overview")
        async with watching(fronted) as events:
            await events.next()
            response = await fronted.get("/v1/overview/events")
            assert (response.status, response.error["param"]) == (429, "watching the overview")
            assert "at most 1" in response.error["limit"]
            watch = call(fronted, "WatchOverview", wire.WatchOverviewRequest(), wire.Overview)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await watch.read()
            raw = dict(caught.value.trailing_metadata() or ())["octet-error-bin"]
            assert error_pb2.Error.FromString(raw).reason == error_pb2.ERROR_REASON_QUEUE_FULL
            assert (await fronted.send("HEAD", "/v1/overview/events")).status == 200
            assert (await fronted.get("/v1/overview")).status == 200, "a single read must not count as a watch"
        await fronted.routed.until(lambda: not view.watchers.num_open.total())
        async with watching(fronted) as events:
            assert (await events.next())[0] == "history"


async def test_a_watcher_that_never_reads_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.api.http.operator_routes.OVERVIEW_STALL_SECONDS", 2.0)
    monkeypatch.setattr("router.observe.overview.overview.TICK_SECONDS", 0.005)
    async with running_overview() as fronted:
        for number in range(50):
            await fronted.routed.ask(infer_request(request_id=f"{number:0100}"))
        view = fronted.routed.server.view
        asked = f"GET /v1/overview/events HTTP/1.1\r\nhost: 127.0.0.1:{fronted.port}\r\n\r\n".encode()
        async with fronted.connected(asked) as reader:
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            await fronted.routed.until(lambda: view.watchers.num_open.total() == 1)
            async with watching(fronted) as events:
                seen = 0
                while view.watchers.num_open.total() > 1 or not seen:
                    seen += (await events.next())[0] == "overview"
                assert seen > 1
        await fronted.routed.until(lambda: not view.watchers.num_open.total())
