"""Tenants do not meet: not in what is cached, not in what is kept, not in what is being answered."""

import asyncio
import json
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.v1 import error_pb2, operator_pb2
from octet.v1 import inference_pb2 as wire
from router.reception.caller import ANYONE, Caller, calling, current_caller
from tests.router.decisions.asking import reception
from tests.router.http.harness import SLOW, Fronted
from tests.router.keys.keyed import Made, keyed, made
from tests.router.service.harness import asking
from tests.service.harness import run

ANN, ALSO_ANN, BOB, OPS = made("ann"), made("ann-2", tenant="ann"), made("bob"), made("ops", "operate")
LONG = "tell me of the long way home " * 8


async def looked_up(fronted: Fronted, request_id: str, key: Made, tenant: str = "") -> str:
    """The caller it names, over both doors alike; empty where nothing is known."""
    ask = wire.GetReceiptRequest(request_id=request_id, tenant=tenant)
    try:
        receipt = await fronted.routed.call("GetReceipt", ask, wire.Receipt, metadata=key.metadata)
        found = f"{receipt.caller}/{receipt.tenant}"
    except grpc.aio.AioRpcError as error:
        raw = dict(error.trailing_metadata() or ())["octet-error-bin"]
        assert error_pb2.Error.FromString(raw).reason == error_pb2.ERROR_REASON_UNKNOWN_REQUEST
        found = ""
    query = f"?tenant={tenant}" if tenant else ""
    heard = await fronted.send("GET", f"/v1/receipts/{request_id}{query}", b"", key.headers)
    assert (heard.status == 404) == (not found)
    if found:
        assert f"{heard.json['caller']}/{heard.json['tenant']}" == found
    return found


def test_a_receipt_is_its_tenants_and_an_operators_who_names_them() -> None:
    async def story() -> None:
        async with keyed([ANN, ALSO_ANN, BOB, OPS]) as fronted:
            ask = fronted.routed.ask
            heard = await ask(asking(request_id="mine"), metadata=ANN.metadata)
            assert heard.receipt is not None and (heard.receipt.caller, heard.receipt.tenant) == ("ann", "ann")
            assert await looked_up(fronted, "mine", ANN) == "ann/ann"
            assert await looked_up(fronted, "mine", ALSO_ANN) == "ann/ann"
            for key, tenant in ((BOB, ""), (BOB, "ann"), (BOB, "bob"), (ANN, "bob"), (OPS, ""), (OPS, "bob")):
                assert await looked_up(fronted, "mine", key, tenant) == "", (key.key.name, tenant)
            assert await looked_up(fronted, "mine", OPS, "ann") == "ann/ann"
            await ask(asking(request_id="mine"), metadata=BOB.metadata)
            assert await looked_up(fronted, "mine", ANN) == "ann/ann"
            assert await looked_up(fronted, "mine", BOB) == "bob/bob"
            await ask(asking(request_id="ann:mine"), metadata=BOB.metadata)
            assert await looked_up(fronted, "mine", ANN) == "ann/ann"

    run(story())


def test_what_is_being_answered_is_its_tenants_alone() -> None:
    async def story() -> None:
        async with keyed([ANN, ALSO_ANN, BOB, OPS], cost=SLOW) as fronted:
            routed = fronted.routed
            long = asking(request_id="x", max_tokens=400, ignore_eos=True)
            running = asyncio.create_task(routed.ask(long, metadata=ANN.metadata))
            await routed.until(lambda: len(routed.server.live) == 1)
            ask = wire.CancelRequest(request_id="x")
            for key in (BOB, OPS):
                heard = await routed.refused("Cancel", ask, wire.CancelResponse, metadata=key.metadata)
                assert heard.reason == error_pb2.ERROR_REASON_UNKNOWN_REQUEST
            again = await routed.ask(long, metadata=ALSO_ANN.metadata)
            assert again.reason == error_pb2.ERROR_REASON_DUPLICATE_REQUEST
            other = await routed.ask(asking(request_id="x", max_tokens=2), metadata=BOB.metadata)
            assert other.code is grpc.StatusCode.OK
            await routed.call("Cancel", ask, wire.CancelResponse, metadata=ALSO_ANN.metadata)
            assert (await running).code is grpc.StatusCode.CANCELLED

    run(story())


def test_no_prefix_and_no_conversation_is_found_across_tenants() -> None:
    async def story() -> None:
        async with keyed([ANN, ALSO_ANN, BOB, OPS]) as fronted:

            async def hits(key: Made, **fields: Any) -> tuple[int, int]:
                heard = await fronted.routed.ask(asking(LONG, **fields), metadata=key.metadata)
                assert heard.receipt is not None and heard.receipt.HasField("usage")
                return heard.receipt.usage.cache_hit_tokens, heard.receipt.usage.miss_reason

            assert (await hits(ANN, session_id="talk"))[0] == 0
            assert (await hits(ANN, session_id="talk"))[0] > 100
            assert (await hits(ALSO_ANN, session_id="talk"))[0] > 100
            for salt in (b"", b"ann", Caller("ann").salt(b"")):
                found = await hits(BOB, session_id="talk", tenant_salt=salt)
                assert found == (0, wire.MISS_REASON_FIRST_TIME), salt
            assert (await hits(ANN, tenant_salt=b"own"))[0] == 0

            body = {"model": "octet/writer", "prompt": LONG, "max_tokens": 4}
            sizes = []
            for key in (OPS, OPS, made("stranger")):
                raw = json.dumps(body).encode()
                heard = await fronted.post(raw, "/v1/completions", **key.headers)
                sizes.append(heard.json.get("usage", {}).get("prompt_tokens_details", {}).get("cached_tokens"))
            assert sizes[0] == 0 and sizes[1] > 100 and sizes[2] is None

    run(story())


def test_the_audit_names_the_key_of_whoever_made_a_change() -> None:
    async def story() -> None:
        async with keyed([ANN, OPS]) as fronted:
            hold = fronted.routed.channel.unary_unary(
                "/octet.v1.Operator/HoldBreaker",
                operator_pb2.HoldBreakerRequest.SerializeToString,
                operator_pb2.BreakerInfo.FromString,
            )
            for who in ("ann", "ops", ""):
                change = operator_pb2.Change(who=who, why="because")
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

    run(story())


TENANTS = st.text("abc", max_size=3)
SALTS = st.binary(max_size=4)


@given(TENANTS, SALTS, TENANTS, SALTS)
def test_salts_are_the_same_only_where_tenant_and_salt_are(one: str, a: bytes, other: str, b: bytes) -> None:
    is_same = Caller(one).salt(a) == Caller(other).salt(b)
    assert is_same == ((one, a) == (other, b))


@given(TENANTS, TENANTS, st.sampled_from(["session_id", "user_id"]))
def test_a_conversation_has_a_key_of_its_tenant(one: str, other: str, field: str) -> None:
    message = wire.InferRequest(prompt="x")
    setattr(message, field, "talk")
    keys = [reception().receive(message, None, None, "", Caller(tenant)).session.key for tenant in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


def test_nobody_is_taken_for_somebody_else_after_a_call() -> None:
    assert current_caller() is ANYONE
    with pytest.raises(RuntimeError), calling(Caller("ann", "ann")):
        assert current_caller().tenant == "ann"
        raise RuntimeError
    assert current_caller() is ANYONE


def test_opinions_are_not_shared_between_tenants() -> None:
    from octet.clock import SystemClock
    from router.classify.queue import ClassifierQueue
    from tests.router.classify.test_queue import Recorder

    async def story() -> None:
        queue = ClassifierQueue(Recorder(), SystemClock())
        await queue.classify("the same words", "ann")
        assert queue.cached("the same words", "ann") is not None
        assert queue.cached("the same words", "bob") is None and queue.cached("the same words") is None
        queue.close()

    run(story())
