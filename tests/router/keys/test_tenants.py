"""Tenants are isolated in caches, in stored data and in running requests."""

import asyncio
import json
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.v1 import error_pb2, operator_pb2
from octet.v1 import inference_pb2 as wire
from router.request import ANONYMOUS, CallerIdentity, current_caller, use_caller
from tests.router.http.harness import SLOW, HttpHarness
from tests.router.keys.keyed import IssuedKey, issue_key, running_keyed_router
from tests.router.routing.sample_requests import new_validator
from tests.router.serving.harness import infer_request

ANN, ALSO_ANN, BOB, OPS = (
    issue_key("ann"),
    issue_key("ann-2", tenant="ann"),
    issue_key("bob"),
    issue_key("ops", "operate"),
)
LONG = "tell me of the long way home " * 8


async def looked_up(fronted: HttpHarness, request_id: str, key: IssuedKey, tenant: str = "") -> str:
    """Return `caller/tenant` of the receipt, or an empty string if the key finds no receipt. gRPC and HTTP must
    agree."""
    ask = wire.GetReceiptRequest(request_id=request_id, tenant=tenant)
    try:
        receipt = await fronted.routed.call("GetReceipt", ask, wire.Receipt, metadata=key.metadata)
        found = f"{receipt.caller}/{receipt.tenant}"
    except grpc.aio.AioRpcError as error:
        raw = dict(error.trailing_metadata() or ())["octet-error-bin"]
        assert error_pb2.Error.FromString(raw).reason == error_pb2.ERROR_REASON_UNKNOWN_REQUEST
        found = ""
    query = f"?tenant={tenant}" if tenant else ""
    received = await fronted.send("GET", f"/v1/receipts/{request_id}{query}", b"", key.headers)
    assert (received.status == 404) == (not found)
    if found:
        assert f"{received.json['caller']}/{received.json['tenant']}" == found
    return found


async def test_receipt_is_visible_to_its_tenant_and_to_operators_by_name() -> None:
    async with running_keyed_router([ANN, ALSO_ANN, BOB, OPS]) as fronted:
        ask = fronted.routed.ask
        received = await ask(infer_request(request_id="mine"), metadata=ANN.metadata)
        assert received.receipt is not None and (received.receipt.caller, received.receipt.tenant) == ("ann", "ann")
        assert await looked_up(fronted, "mine", ANN) == "ann/ann"
        assert await looked_up(fronted, "mine", ALSO_ANN) == "ann/ann"
        for key, tenant in ((BOB, ""), (BOB, "ann"), (BOB, "bob"), (ANN, "bob"), (OPS, ""), (OPS, "bob")):
            assert await looked_up(fronted, "mine", key, tenant) == "", (key.key.name, tenant)
        assert await looked_up(fronted, "mine", OPS, "ann") == "ann/ann"
        await ask(infer_request(request_id="mine"), metadata=BOB.metadata)
        assert await looked_up(fronted, "mine", ANN) == "ann/ann"
        assert await looked_up(fronted, "mine", BOB) == "bob/bob"
        await ask(infer_request(request_id="ann:mine"), metadata=BOB.metadata)
        assert await looked_up(fronted, "mine", ANN) == "ann/ann"


async def test_running_request_is_visible_to_its_tenant_only() -> None:
    async with running_keyed_router([ANN, ALSO_ANN, BOB, OPS], cost=SLOW) as fronted:
        routed = fronted.routed
        long = infer_request(request_id="x", max_tokens=400, ignore_eos=True)
        running = asyncio.create_task(routed.ask(long, metadata=ANN.metadata))
        await routed.until(lambda: len(routed.server.live) == 1)
        ask = wire.CancelRequest(request_id="x")
        for key in (BOB, OPS):
            received = await routed.refused("Cancel", ask, wire.CancelResponse, metadata=key.metadata)
            assert received.reason == error_pb2.ERROR_REASON_UNKNOWN_REQUEST
        again = await routed.ask(long, metadata=ALSO_ANN.metadata)
        assert again.reason == error_pb2.ERROR_REASON_DUPLICATE_REQUEST
        other = await routed.ask(infer_request(request_id="x", max_tokens=2), metadata=BOB.metadata)
        assert other.code is grpc.StatusCode.OK
        await routed.call("Cancel", ask, wire.CancelResponse, metadata=ALSO_ANN.metadata)
        assert (await running).code is grpc.StatusCode.CANCELLED


async def test_prefixes_and_conversations_are_not_shared_across_tenants() -> None:
    async with running_keyed_router([ANN, ALSO_ANN, BOB, OPS]) as fronted:

        async def hits(key: IssuedKey, **fields: Any) -> tuple[int, int]:
            received = await fronted.routed.ask(infer_request(LONG, **fields), metadata=key.metadata)
            assert received.receipt is not None and received.receipt.HasField("usage")
            return received.receipt.usage.cache_hit_tokens, received.receipt.usage.miss_reason

        assert (await hits(ANN, session_id="talk"))[0] == 0
        assert (await hits(ANN, session_id="talk"))[0] > 100
        assert (await hits(ALSO_ANN, session_id="talk"))[0] > 100
        for salt in (b"", b"ann", CallerIdentity("ann").salt(b"")):
            found = await hits(BOB, session_id="talk", tenant_salt=salt)
            assert found == (0, wire.MISS_REASON_FIRST_TIME), salt
        assert (await hits(ANN, tenant_salt=b"own"))[0] == 0

        body = {"model": "octet/writer", "prompt": LONG, "max_tokens": 4}
        sizes = []
        for key in (OPS, OPS, issue_key("stranger")):
            raw = json.dumps(body).encode()
            received = await fronted.post(raw, "/v1/completions", **key.headers)
            sizes.append(received.json.get("usage", {}).get("prompt_tokens_details", {}).get("cached_tokens"))
        assert sizes[0] == 0 and sizes[1] > 100 and sizes[2] is None


async def test_audit_names_the_key_behind_a_change() -> None:
    async with running_keyed_router([ANN, OPS]) as fronted:
        hold = fronted.routed.channel.unary_unary(
            "/octet.v1.Operator/HoldBreaker",
            operator_pb2.HoldBreakerRequest.SerializeToString,
            operator_pb2.BreakerInfo.FromString,
        )
        for name in ("ann", "ops", ""):
            change = operator_pb2.Change(who=name, why="because")
            ask = operator_pb2.HoldBreakerRequest(specialist="writer", hold="open", change=change)
            await hold(ask, metadata=OPS.metadata)
        audit = fronted.routed.channel.unary_stream(
            "/octet.v1.Operator/ListAudit",
            operator_pb2.ListAuditRequest.SerializeToString,
            operator_pb2.AuditEntry.FromString,
        )
        ask_audit = operator_pb2.ListAuditRequest(subject="writer")
        entries = [entry async for entry in audit(ask_audit, metadata=OPS.metadata)]
        assert {entry.who for entry in entries if entry.what == "hold_breaker"} == {"ops as ann", "ops"}


TENANTS = st.text("abc", max_size=3)
SALTS = st.binary(max_size=4)


@given(TENANTS, SALTS, TENANTS, SALTS)
def test_salts_are_equal_only_for_equal_tenant_and_salt(one: str, a: bytes, other: str, b: bytes) -> None:
    is_same = CallerIdentity(one).salt(a) == CallerIdentity(other).salt(b)
    assert is_same == ((one, a) == (other, b))


@given(TENANTS, TENANTS, st.sampled_from(["session_id", "user_id"]))
def test_session_key_depends_on_the_tenant(one: str, other: str, field: str) -> None:
    message = wire.InferRequest(prompt="x")
    setattr(message, field, "talk")
    keys = [
        new_validator().validate(message, None, None, "", CallerIdentity(tenant)).session.key for tenant in (one, other)
    ]
    assert (keys[0] == keys[1]) == (one == other)


def test_caller_identity_does_not_leak_between_calls() -> None:
    assert current_caller() is ANONYMOUS
    with pytest.raises(RuntimeError), use_caller(CallerIdentity("ann", "ann")):
        assert current_caller().tenant == "ann"
        raise RuntimeError
    assert current_caller() is ANONYMOUS


async def test_classifier_results_are_not_shared_between_tenants() -> None:
    from octet.clock import SystemClock
    from router.routing.classifier.queue import ClassifierQueue
    from tests.router.classifier.test_queue import Recorder

    queue = ClassifierQueue(Recorder(), SystemClock())
    await queue.classify("the same words", "ann")
    assert queue.cached("the same words", "ann") is not None
    assert queue.cached("the same words", "bob") is None and queue.cached("the same words") is None
    queue.close()
