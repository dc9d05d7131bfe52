"""The HTTP routes for operators make the same changes as gRPC and record the same author and reason. Invalid changes
are refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from octet.rpc.messages import message_to_json
from octet.v1 import error_pb2
from octet.v1 import operator_pb2 as wire
from router.api.http.operator_routes import OPERATOR_CHANGES
from tests.router.http.harness import HttpHarness, HttpResponse, running_http_router
from tests.router.keys.keyed import issue_key, running_keyed_router
from tests.router.operator.fake_control import FakeControl

OPS, CALLER = issue_key("ops", "operate"), issue_key("ann")
SIGNED = {"who": "ann", "why": "drill"}
STEPS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("hold_breaker", "HoldBreaker", {"specialist": "stl"}, {"hold": "open"}),
    ("release_breaker", "ReleaseBreaker", {"specialist": "stl"}, {}),
    ("relearn_floor", "RelearnFloor", {"specialist": "stl"}, {}),
    ("set_knob", "SetKnob", {}, {"name": "review.priority_floor", "value": 5}),
    ("release_knob", "ReleaseKnob", {}, {"name": "review.priority_floor"}),
    ("load_adapter", "LoadAdapter", {"specialist": "stl"}, {"path": "a/lora", "name": "lora"}),
    ("promote", "PromoteLane", {"specialist": "stl"}, {"name": "lora"}),
    ("roll_back", "RollBackLane", {"specialist": "stl"}, {}),
    ("refresh", "RefreshModel", {"specialist": "stl"}, {"model": "/models/new"}),
    ("drain", "DrainReplica", {"replica": "template-0"}, {}),
    ("undrain", "UndrainReplica", {"replica": "template-0"}, {}),
]
"""All changes, in an order in which each of them is possible."""


@asynccontextmanager
async def operating(*keys: Any) -> AsyncIterator[tuple[HttpHarness, FakeControl]]:
    """Yield a router whose operator API controls a state in memory."""
    settings = running_keyed_router(keys) if keys else running_http_router({"writer": ["127.0.0.1:1"]}, warm=False)
    async with settings as fronted:
        memory = FakeControl()
        fronted.routed.server.operator_api.controls = memory  # type: ignore[assignment]
        yield fronted, memory


async def post(fronted: HttpHarness, path: str, body: Any, **headers: str) -> HttpResponse:
    return await fronted.post(json.dumps(body).encode(), path, **headers)


async def over_grpc(fronted: HttpHarness, name: str, fields: dict[str, Any], change: Any) -> Any:
    ask = OPERATOR_CHANGES[name].message(**fields, change=change)
    rpc = next(step[1] for step in STEPS if step[0] == name)
    breaker = {"Breaker": wire.BreakerInfo, "Floor": wire.BreakerInfo}
    answers: dict[str, Any] = {**breaker, "Knob": wire.KnobInfo, "Replica": wire.ReplicaInfo}
    answer: Any = next((kind for word, kind in answers.items() if word in rpc), wire.LaneInfo)
    method = fronted.routed.channel.unary_unary(
        f"/octet.v1.Operator/{rpc}", OPERATOR_CHANGES[name].message.SerializeToString, answer.FromString
    )
    return await method(ask)


async def test_change_is_the_same_over_http_and_grpc() -> None:
    async with operating() as (fronted, here):
        assert [step[0] for step in STEPS] == list(OPERATOR_CHANGES)
        result = [
            (await post(fronted, OPERATOR_CHANGES[name].path.format(**place), {**body, **SIGNED})).json
            for name, _, place, body in STEPS
        ]
        there = FakeControl()
        fronted.routed.server.operator_api.controls = there  # type: ignore[assignment]
        for (name, _, place, body), response in zip(STEPS, result, strict=True):
            assert message_to_json(await over_grpc(fronted, name, {**place, **body}, SIGNED)) == response, name
        assert here.entries == there.entries and len(here.entries) == len(STEPS)
        for path, kind in (("breakers", here.breakers()), ("knobs", here.knobs()), ("replicas", here.replicas())):
            assert (await fronted.get(f"/v1/{path}")).json[path] == list(map(message_to_json, kind))
        listed = (await fronted.get("/v1/lanes?specialist=stl")).json["lanes"]
        assert listed == [message_to_json(lane) for lane in here.lanes("stl")]
        assert (await fronted.get("/v1/lanes")).json["lanes"] == [message_to_json(lane) for lane in here.lanes()]
        audit = await fronted.get("/v1/audit?most=2&subject=stl")
        assert [each["what"] for each in audit.json["entries"]] == ["refresh", "roll_back"]
        assert audit.headers["cache-control"] == "no-store"


_STL = {"specialist": "stl"}
_FLOOR = "review.priority_floor"
REFUSED: list[tuple[str, dict[str, str], dict[str, Any], tuple[int, str, str | None], str]] = [
    ("hold_breaker", {"specialist": "slt"}, {"hold": "open"}, (404, "unknown_name", "specialist"), "did you mean stl?"),
    ("hold_breaker", _STL, {"hold": "ajar"}, (400, "invalid_field", "hold"), "open or closed"),
    ("hold_breaker", _STL, {}, (400, "invalid_field", "hold"), "open or closed"),
    ("hold_breaker", _STL, {"hold": 1}, (400, "invalid_field", "hold"), "text"),
    ("hold_breaker", _STL, {"hodl": "open"}, (400, "unknown_field", "hodl"), "not a field"),
    ("hold_breaker", _STL, {"hold": "open", "why": "x" * 2049}, (400, "invalid_field", "why"), "2,048"),
    ("hold_breaker", _STL, {"hold": "open", "why": "a\nb"}, (400, "invalid_field", "why"), "printable"),
    ("release_breaker", _STL, {}, (422, "conflict", "specialist"), "is not held"),
    ("set_knob", {}, {"name": f"x{_FLOOR}", "value": 1}, (404, "unknown_name", "name"), f"did you mean {_FLOOR}?"),
    ("set_knob", {}, {"name": _FLOOR}, (400, "missing_field", "value"), "missing"),
    ("set_knob", {}, {"name": _FLOOR, "value": 1e9}, (400, "invalid_field", "value"), "1,000,000"),
    ("promote", _STL, {}, (422, "conflict", None), "no candidate"),
    ("drain", {"replica": "stll"}, {}, (404, "unknown_name", "replica"), "did you mean stl?"),
]


async def test_invalid_change_is_refused_with_field_and_limit() -> None:
    async with operating() as (fronted, memory):
        for name, place, body, refusal, says in REFUSED:
            response = await post(fronted, OPERATOR_CHANGES[name].path.format(**place), {**SIGNED, **body})
            assert (response.status, response.error["code"], response.error["param"]) == refusal, (name, body)
            assert says in response.error["message"] and not memory.entries
        large = await post(fronted, "/v1/knobs/release", {"name": "x" * (64 << 10), **SIGNED})
        assert large.status == 413


async def test_key_signs_changes_and_must_be_an_operators() -> None:
    async with operating(OPS, CALLER) as (fronted, memory):
        path, body = "/v1/breakers/stl/hold", {"hold": "open", "why": "drill"}
        for key, status in ((CALLER, 403), (None, 401)):
            for asked in (("POST", path), ("GET", "/v1/audit"), ("GET", "/v1/receipts")):
                response = await fronted.send(*asked, b"", {} if key is None else key.headers)
                assert response.status == status, asked
        assert (await post(fronted, path, body, **OPS.headers)).json["hold_by"] == "ops"
        assert (await post(fronted, path, {**body, "who": "ann@laptop"}, **OPS.headers)).status == 200
        assert [entry.who for entry in memory.entries] == ["ops", "ops as ann@laptop"]


async def test_started_change_finishes_after_the_caller_disconnects() -> None:
    async with operating() as (fronted, memory):
        memory.slow = asyncio.Event()
        body = json.dumps({"hold": "open", **SIGNED}).encode()
        head = f"POST /v1/breakers/stl/hold HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
        api = fronted.routed.server.operator_api
        async with fronted.connected(f"{head}content-type: application/json\r\n\r\n".encode() + body):
            await fronted.routed.until(lambda: api.num_changes == 1)
        await fronted.routed.until(lambda: fronted.connections == 0)
        memory.slow.set()
        await fronted.routed.until(lambda: not api.num_changes)
        assert [entry.what for entry in memory.entries] == ["hold_breaker"]


async def test_no_change_without_the_store() -> None:
    async with operating() as (fronted, memory):
        memory.store_trouble = "gone"
        response = await post(fronted, "/v1/breakers/stl/hold", {"hold": "open", **SIGNED})
        assert (response.status, response.error["code"]) == (503, "store_unavailable")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await over_grpc(fronted, "hold_breaker", {"specialist": "stl", "hold": "open"}, SIGNED)
        raw = dict(caught.value.trailing_metadata() or ())["octet-error-bin"]
        assert error_pb2.Error.FromString(raw).reason == error_pb2.ERROR_REASON_STORE_UNAVAILABLE
        assert (await fronted.get("/v1/breakers")).json["store_trouble"] == "gone"
