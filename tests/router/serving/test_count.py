"""Token counts come from the replica that would answer, with the same refusals and deadlines as an answer."""

import asyncio
from typing import Any

import grpc
import pytest

from octet.rpc.refusal import Refusal, draining, engine_failed, invalid_field, queue_full
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from tests.router.serving.harness import CallResult, RouterHarness, infer_request, running_router
from tests.router.serving.spy import running_spy
from tests.specialist.server.harness import running_replica, sim


async def count(routed: RouterHarness, request: wire.InferRequest, **options: Any) -> wire.CountResponse:
    counted: wire.CountResponse = await routed.call("CountTokens", request, wire.CountResponse, **options)
    return counted


async def refused(routed: RouterHarness, request: wire.InferRequest, **options: Any) -> CallResult:
    return await routed.refused("CountTokens", request, wire.CountResponse, **options)


async def test_the_count_equals_the_prompt_tokens_of_the_answer() -> None:
    async with running_replica(sim()) as served, running_router({"writer": [served.address]}) as routed:
        for request in (
            infer_request("hello"),
            infer_request("", messages=[wire.Message(role="user", content="a" * 90)]),
        ):
            result = await routed.ask(request)
            assert result.receipt is not None
            counted = await count(routed, request)
            assert (counted.prompt_tokens, counted.specialist) == (result.receipt.usage.prompt_tokens, "writer")
        await routed.idle()
        named = infer_request(request_id="mine")
        await count(routed, named)
        lookup = wire.GetReceiptRequest(request_id="mine")
        assert (await routed.refused("GetReceipt", lookup, wire.Receipt)).code is grpc.StatusCode.NOT_FOUND


async def test_a_count_is_routed_and_retried_like_a_request() -> None:
    async with running_spy() as one, running_spy() as two:
        places = {"writer": [one.address, two.address], "poet": [two.address]}
        async with running_router(places) as routed:
            one.count = two.count = 7
            request = infer_request(specialist="poet")
            receipt = await routed.call("Route", request, wire.Receipt)
            assert (await count(routed, request)).specialist == receipt.decision.primary == "poet"
            for full, other in ((one, two), (two, one)):
                full.count, other.count = draining(), 9
                for _ in range(4):
                    assert (await count(routed, infer_request())).prompt_tokens == 9
                assert not full.asked and not other.asked, "no replica may generate"


@pytest.mark.parametrize(
    ("refusal", "code", "reason"),
    [
        (
            invalid_field("chat", "shorter", "long"),
            grpc.StatusCode.INVALID_ARGUMENT,
            error_pb2.ERROR_REASON_INVALID_FIELD,
        ),
        (queue_full("being tokenised", 2, None), grpc.StatusCode.RESOURCE_EXHAUSTED, error_pb2.ERROR_REASON_QUEUE_FULL),
        (draining(), grpc.StatusCode.UNAVAILABLE, error_pb2.ERROR_REASON_NO_REPLICA),
        (engine_failed("x"), grpc.StatusCode.INTERNAL, error_pb2.ERROR_REASON_ENGINE_FAILED),
    ],
)
async def test_a_replicas_refusal_of_a_count_is_passed_on(refusal: Refusal, code: grpc.StatusCode, reason: int) -> None:
    async with running_spy() as spy, running_router({"writer": [spy.address]}) as routed:
        spy.count = refusal
        result = await refused(routed, infer_request())
        assert (result.code, result.reason) == (code, reason)
        assert result.receipt is not None and result.receipt.decision.primary == "writer"
        if reason == error_pb2.ERROR_REASON_INVALID_FIELD:
            assert result.error is not None and result.error.field == "prompt", (
                "the refusal must use the caller's name for the field"
            )
        await routed.idle()


async def test_refused_request_reaches_no_replica() -> None:
    async with running_spy() as spy, running_router({"writer": [spy.address]}) as routed:
        spy.count = 1
        cases = {
            "sampling.temperature": infer_request(sampling=wire.Sampling(temperature=3)),
            "prompt": wire.InferRequest(force_specialists=["writer"]),
            "force_specialists": infer_request(specialist="absent"),
        }
        for field, request in cases.items():
            result = await refused(routed, request)
            assert result.error is not None and result.error.field == field
        routed.server.service.draining = True
        assert (await refused(routed, infer_request())).reason == error_pb2.ERROR_REASON_DRAINING
        assert not spy.counts


async def test_a_count_without_a_response_ends_at_its_deadline_or_by_cancel() -> None:
    async with running_spy() as spy, running_router({"writer": [spy.address]}) as routed:
        result = await refused(routed, infer_request(timeout_ms=200))
        assert result.code is grpc.StatusCode.DEADLINE_EXCEEDED
        num_counts = len(spy.counts)
        waiting = asyncio.create_task(refused(routed, infer_request(request_id="mine")))
        await routed.until(lambda: len(spy.counts) > num_counts)
        assert (await refused(routed, infer_request(request_id="mine"))).code is grpc.StatusCode.ALREADY_EXISTS
        await routed.call("Cancel", wire.CancelRequest(request_id="mine"), wire.CancelResponse)
        assert (await waiting).reason == error_pb2.ERROR_REASON_CANCELLED
        await routed.idle()
        (replica,) = routed.server.fleet.replicas
        assert replica.breaker.state == "closed", "a cancelled count must not count as a failure of the replica"
