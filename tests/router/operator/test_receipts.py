"""Receipts of all tenants and the explanation of a request, over gRPC and HTTP, at every router that shares the
store."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import grpc
import pytest

from octet.client.receipts import Receipt
from octet.client.stages import request_stages
from octet.config.ensemble import REJECT, CorrectnessConfig, DispatchConfig, StoreConfig
from octet.rpc.messages import message_to_json
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as inference
from octet.v1 import operator_pb2 as wire
from router.api.keys.key_file import StaticKeys
from router.api.operations import _MAX_READERS
from router.receipt_log import audit_subjects
from router.routing.classifier.base import Distribution
from tests.patience import PATIENCE
from tests.router.http.harness import HttpHarness, running_http_router
from tests.router.keys.keyed import IssuedKey, issue_key, key_set
from tests.router.operator.harness import error_of
from tests.router.serving.harness import ensemble_of, infer_request
from tests.specialist.server.harness import running_replica, sim

ANN, BOB, OPS = issue_key("ann"), issue_key("bob"), issue_key("ops", "operate")
ENDING = {"max_tokens": 200, "stop": list("aeiouAEIOU")}
"""Stop strings that soon end an answer, because the simulated engine answers with random letters."""
UNREACHABLE = "127.0.0.1:1"


class UnsureClassifier:
    """A classifier whose confidence is low enough for a shadow."""

    digest = "0" * 64

    def cached(self, text: str, tenant: str = "") -> Distribution:
        return Distribution((("writer", 0.45), ("poet", 0.4), (REJECT, 0.15)))

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        return self.cached(text)


@asynccontextmanager
async def routers(url: str, number: int = 2, *keys: IssuedKey) -> AsyncIterator[list[HttpHarness]]:
    """Run routers with a writer, a poet as its shadow, and a specialist without replicas."""
    evaluated = CorrectnessConfig(sample_rate=1.0)
    ensemble = replace(
        ensemble_of("writer", "poet", "away", dispatch=DispatchConfig(wait_share=0.0)),
        store=StoreConfig(url=url),
        correctness=evaluated,
    )
    async with AsyncExitStack() as stack:
        writer = await stack.enter_async_context(running_replica(sim()))
        poet = await stack.enter_async_context(running_replica(sim(name="poet")))
        places = {"writer": [writer.address], "poet": [poet.address], "away": [UNREACHABLE]}
        source = StaticKeys(key_set(*keys)) if keys else None
        fronted = [
            await stack.enter_async_context(
                running_http_router(places, warm=False, ensemble=ensemble, opinions=UnsureClassifier(), keys=source)
            )
            for _ in range(number)
        ]
        for each in fronted:
            await each.routed.until(lambda each=each: has_lanes(each))
        yield fronted


def in_json(receipt: inference.Receipt) -> Any:
    return json.loads(json.dumps(Receipt.from_wire(receipt).to_dict()))


def has_lanes(fronted: HttpHarness) -> bool:
    """Return whether every specialist with replicas has a serving lane. Until then, answers are not counted."""
    server = fronted.routed.server
    lanes = {lane.specialist for lane in server.services.control.lanes() if lane.status == "serving"}
    return {"writer", "poet"} <= lanes and tuple(server.fleet.waiting_for) == ("away",)


async def listed(fronted: HttpHarness, key: IssuedKey = OPS, **asked: Any) -> list[inference.Receipt]:
    """Return the receipts that gRPC lists, and check that HTTP lists the same."""
    ask = wire.ListReceiptsRequest(**asked)
    call = fronted.routed.channel.unary_stream(
        "/octet.v1.Operator/ListReceipts", wire.ListReceiptsRequest.SerializeToString, inference.Receipt.FromString
    )
    found = [each async for each in call(ask, metadata=key.metadata)]
    names = {"most": "limit", "before_unix_ms": "before"}
    query = "&".join(f"{names.get(name, name)}={value}" for name, value in asked.items())
    response = await fronted.send("GET", f"/v1/receipts?{query}", b"", key.headers)
    assert response.status == 200
    assert response.json == {"receipts": [in_json(each) for each in found]}
    return found


async def explained(fronted: HttpHarness, request_id: str, tenant: str = "") -> wire.Story:
    method = fronted.routed.channel.unary_unary(
        "/octet.v1.Operator/Explain", wire.ExplainRequest.SerializeToString, wire.Story.FromString
    )
    ask = wire.ExplainRequest(request_id=request_id, tenant=tenant)
    story: wire.Story = await method(ask, metadata=OPS.metadata)
    return story


async def explain(fronted: HttpHarness, request_id: str, tenant: str = "") -> wire.Story:
    """Return the explanation over gRPC, and check that HTTP returns the same."""
    story = await explained(fronted, request_id, tenant)
    for path in paths_of(request_id, tenant):
        response = await fronted.send("GET", path, b"", OPS.headers)
        own = {"receipt": in_json(story.receipt), "stages": request_stages(Receipt.from_wire(story.receipt)).to_dict()}
        assert response.json == {**message_to_json(story), **own}, path
    return story


def paths_of(request_id: str, tenant: str) -> list[str]:
    """Return all URLs of a request's explanation. An id that cannot be part of a path is passed only as a query
    parameter."""
    asked = f"/v1/story?{urlencode({'request_id': request_id, 'tenant': tenant})}"
    if "/" in request_id or request_id == "..":
        return [asked]
    return [asked, f"/v1/receipts/{quote(request_id)}/story?tenant={tenant}"]


async def written(fronted: HttpHarness) -> None:
    store = fronted.routed.server.services.store
    await fronted.routed.until(lambda: store.counters().held_receipts == 0)


async def explain_error(fronted: HttpHarness, request_id: str, tenant: str = "") -> error_pb2.Error:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await explain(fronted, request_id, tenant)
    error = error_of(caught.value)
    for path in paths_of(request_id, tenant):
        response = await fronted.send("GET", path, b"", OPS.headers)
        assert (response.error["message"], response.error["param"]) == (error.message, error.field or None), path
    return error


async def whole(fronted: HttpHarness, request_id: str, tenant: str = "") -> wire.Story:
    """Wait until the explanation contains the comparison with the shadow. Return the explanation."""
    async with asyncio.timeout(PATIENCE):
        while not (await explained(fronted, request_id, tenant)).HasField("comparison"):
            await asyncio.sleep(0.05)
    return await explain(fronted, request_id, tenant)


async def evaluated(fronted: HttpHarness, request_id: str, tenant: str) -> wire.Story:
    async with asyncio.timeout(PATIENCE):
        while not (await explained(fronted, request_id, tenant)).judged:
            await asyncio.sleep(0.05)
    return await explain(fronted, request_id, tenant)


async def ask(fronted: HttpHarness, key: IssuedKey, request_id: str, **fields: Any) -> None:
    await asyncio.sleep(0.002)  # Requests are at least one millisecond apart.
    await fronted.routed.ask(infer_request(request_id=request_id, **fields), metadata=key.metadata)


async def test_another_router_explains_a_request_only_to_its_tenant(tmp_path: Path) -> None:
    async with routers(f"sqlite:{tmp_path / 'x.db'}", 2, ANN, BOB, OPS) as (first, second):
        body = json.dumps({"hold": "closed", "why": "drill"}).encode()
        for specialist in ("writer", "away"):
            held = await first.post(body, f"/v1/breakers/{specialist}/hold", **OPS.headers)
            assert held.status == 200
        await ask(first, ANN, "mine", force_specialists=[], **ENDING)
        await written(first)
        one = await whole(second, "mine")
        assert (one.receipt.request_id, one.receipt.tenant, one.receipt.specialist) == ("mine", "ann", "writer")
        beside = one.comparison
        assert (beside.request_id, beside.primary, beside.shadow) == ("mine", "writer", "poet")
        assert one.judged == beside.primary_outcome in ("passed", "failed")
        changes = [(entry.who, entry.what, entry.subject) for entry in one.changes]
        assert ("ops", "hold_breaker", "writer") in changes
        assert "away" not in {subject for _, _, subject in changes}
        assert one == await whole(first, "mine", "ann")

        await ask(first, BOB, "mine", force_specialists=["poet"], **ENDING)
        await written(first)
        error = await explain_error(second, "mine")
        assert (error.reason, error.field) == (error_pb2.ERROR_REASON_INVALID_FIELD, "tenant")
        assert "one of ann, bob" in error.message
        theirs = await evaluated(second, "mine", "bob")
        assert theirs.receipt.specialist == "poet" and not theirs.HasField("comparison")
        assert (await explain(second, "chatcmpl-mine", "bob")).receipt == theirs.receipt
        await ask(first, OPS, "mine", force_specialists=["poet"])
        await written(first)
        assert (await explain(second, "mine")).receipt.tenant == "ops", "the operator's own request must come first"
        for name, tenant in (("mine", "eve"), ("absent", ""), ("absent", "ann")):
            assert (await explain_error(second, name, tenant)).reason == error_pb2.ERROR_REASON_UNKNOWN_REQUEST


async def test_receipts_are_listed_by_tenant_specialist_and_outcome(tmp_path: Path) -> None:
    async with routers(f"sqlite:{tmp_path / 'x.db'}", 2, ANN, BOB, OPS) as (first, second):
        await ask(first, ANN, "first")
        await ask(second, BOB, "second", specialist="poet")
        await ask(first, ANN, "third", specialist="absent")
        await ask(first, BOB, "fourth", specialist="away")
        assert [one.request_id for one in await listed(first, tenant="ann")] == ["third", "first"], (
            "receipts must be listed before and after they are stored"
        )
        await asyncio.gather(written(first), written(second))
        for each in (first, second):
            newest = await listed(each)
            assert [one.request_id for one in newest] == ["fourth", "third", "second", "first"]
            for asked, found in (
                ({"most": 2}, ["fourth", "third"]),
                ({"before_unix_ms": newest[1].created_unix_ms}, ["second", "first"]),
                ({"specialist": "writer"}, ["first"]),
                ({"tenant": "bob"}, ["fourth", "second"]),
                ({"tenant": "bob", "outcome": "failed"}, ["fourth"]),
                ({"outcome": "refused"}, ["third"]),
                ({"outcome": "cancelled"}, []),
                ({"tenant": "eve"}, []),
            ):  # fmt: skip
                assert [one.request_id for one in await listed(each, **asked)] == found, asked
        for key in (ANN, BOB):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await listed(first, key)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            for path in ("/v1/receipts", "/v1/receipts/first/story", "/v1/story?request_id=first"):
                assert (await first.send("GET", path, b"", key.headers)).status == 403


async def test_invalid_request_is_refused_with_field_and_limit(tmp_path: Path) -> None:
    async with routers("memory", 1, OPS) as (first,):
        for asked, reason, field, says in (
            ({"most": 501}, error_pb2.ERROR_REASON_INVALID_FIELD, "most", "500"),
            ({"most": -1}, error_pb2.ERROR_REASON_INVALID_FIELD, "most", "[0"),
            ({"before_unix_ms": -5}, error_pb2.ERROR_REASON_INVALID_FIELD, "before_unix_ms", "[0"),
            ({"outcome": "fine"}, error_pb2.ERROR_REASON_INVALID_FIELD, "outcome", "answered, refused"),
            ({"tenant": "x" * 300}, error_pb2.ERROR_REASON_INVALID_FIELD, "tenant", "256"),
            ({"specialist": "writr"}, error_pb2.ERROR_REASON_UNKNOWN_NAME, "specialist", "did you mean writer?"),
        ):  # fmt: skip
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await listed(first, **asked)
            error = error_of(caught.value)
            assert (error.reason, error.field) == (reason, field) and says in error.message
        for query in ("limit=x", "limit=501", "before=-1", "outcome=x"):
            response = await first.send("GET", f"/v1/receipts?{query}", b"", OPS.headers)
            assert (response.status, response.error["param"]) == (400, query.partition("=")[0])
        for path in ("/v1/story", "/v1/story?request_id=&tenant=ann"):
            response = await first.send("GET", path, b"", OPS.headers)
            assert (response.status, response.error["param"]) == (400, "request_id")


async def test_request_is_explained_by_any_of_its_ids(tmp_path: Path) -> None:
    async with routers("memory", 1, ANN, OPS) as (first,):
        names = ("team/a/17", "..", "a?b=c&d#e%2f", "<script>x</script>", "é ✓", "story")
        for name in names:
            await ask(first, ANN, name, force_specialists=["poet"], max_tokens=1)
        await written(first)
        for name in names:
            for tenant in ("", "ann"):
                assert (await explain(first, name, tenant)).receipt.request_id == name


async def test_unavailable_store_is_reported_over_grpc_and_http(tmp_path: Path) -> None:
    async with routers(f"sqlite:{tmp_path}", 1, ANN, OPS) as (first,):  # A folder is not a database.
        await ask(first, ANN, "mine")
        for path in ("/v1/receipts", "/v1/receipts/mine/story?tenant=ann", "/v1/receipts/mine/story", "/v1/audit"):
            response = await first.send("GET", path, b"", OPS.headers)
            assert (response.status, response.error["code"]) == (503, "store_unavailable"), path
        for call in (listed(first), explain(first, "mine", "ann")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert error_of(caught.value).reason == error_pb2.ERROR_REASON_STORE_UNAVAILABLE


async def test_readers_are_bounded(tmp_path: Path) -> None:
    async with routers("memory", 1, OPS) as (first,):
        with ExitStack() as taken:
            for _ in range(_MAX_READERS):
                taken.enter_context(first.routed.server.operator_api.readers.enter())
            response = await first.send("GET", "/v1/receipts", b"", OPS.headers)
            assert (response.status, response.error["code"]) == (429, "queue_full")
        assert (await first.send("GET", "/v1/receipts", b"", OPS.headers)).status == 200


def test_audit_subjects_cover_everything_that_concerns_a_request() -> None:
    receipt = inference.Receipt(
        specialist="debug",
        replica="debug-1",
        decision=inference.Decision(primary="stl", intent="review", second_choice="algo"),
        between=inference.Between(instead_of="stl", shadow=inference.ShadowOrder(specialist="template")),
        attempts=[inference.Attempt(specialist="debug", replica="debug-0")],
    )
    found = audit_subjects(receipt, "general")
    assert {"algo", "general", "review/general.priority_floor"} <= set(found), (
        "the possible fallbacks must be among the subjects"
    )
    assert {"debug", "stl", "template", "debug-0", "debug-1", "store", "review.priority_floor"} <= set(found)
    assert {"review/debug.shadow_threshold", "review/stl.priority_floor"} <= set(found)
    assert len(found) == len(set(found)) and "" not in found
    assert "unspecified.shadow_threshold" in audit_subjects(inference.Receipt())
