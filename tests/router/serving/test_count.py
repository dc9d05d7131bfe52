"""Counting tokens through the router: asked of whoever would answer, with the same refusals, and soon over."""

import asyncio
from typing import Any

import grpc
import pytest

from octet.rpc.refusal import Refusal, draining, engine_failed, invalid_field, queue_full
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from tests.router.serving.harness import Heard, Routed, asking, routing
from tests.router.serving.spy import spying
from tests.specialist.server.harness import serving, sim


async def count(routed: Routed, request: wire.InferRequest, **options: Any) -> wire.CountResponse:
    counted: wire.CountResponse = await routed.call("CountTokens", request, wire.CountResponse, **options)
    return counted


async def refused(routed: Routed, request: wire.InferRequest, **options: Any) -> Heard:
    return await routed.refused("CountTokens", request, wire.CountResponse, **options)


async def test_it_is_the_prompt_of_the_answer_that_would_come() -> None:
    async with serving(sim()) as served, routing({"writer": [served.address]}) as routed:
        for request in (asking("hello"), asking("", messages=[wire.Message(role="user", content="a" * 90)])):
            heard = await routed.ask(request)
            assert heard.receipt is not None
            counted = await count(routed, request)
            assert (counted.prompt_tokens, counted.specialist) == (heard.receipt.usage.prompt_tokens, "writer")
        await routed.idle()
        named = asking(request_id="mine")
        await count(routed, named)
        lookup = wire.GetReceiptRequest(request_id="mine")
        assert (await routed.refused("GetReceipt", lookup, wire.Receipt)).code is grpc.StatusCode.NOT_FOUND


async def test_it_goes_where_route_says_and_on_to_the_next_replica() -> None:
    async with spying() as one, spying() as two:
        places = {"writer": [one.address, two.address], "poet": [two.address]}
        async with routing(places) as routed:
            one.count = two.count = 7
            request = asking(specialist="poet")
            receipt = await routed.call("Route", request, wire.Receipt)
            assert (await count(routed, request)).specialist == receipt.decision.primary == "poet"
            for shy, other in ((one, two), (two, one)):
                shy.count, other.count = draining(), 9
                for _ in range(4):
                    assert (await count(routed, asking())).prompt_tokens == 9
                assert not shy.asked and not other.asked, "nobody generates"


@pytest.mark.parametrize(
    ("said", "code", "reason"),
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
async def test_what_a_replica_says_is_passed_on(said: Refusal, code: grpc.StatusCode, reason: int) -> None:
    async with spying() as spy, routing({"writer": [spy.address]}) as routed:
        spy.count = said
        heard = await refused(routed, asking())
        assert (heard.code, heard.reason) == (code, reason)
        assert heard.receipt is not None and heard.receipt.decision.primary == "writer"
        if reason == error_pb2.ERROR_REASON_INVALID_FIELD:
            assert heard.error is not None and heard.error.field == "prompt", "as the caller calls it"
        await routed.idle()


async def test_refused_request_reaches_no_replica() -> None:
    async with spying() as spy, routing({"writer": [spy.address]}) as routed:
        spy.count = 1
        cases = {
            "sampling.temperature": asking(sampling=wire.Sampling(temperature=3)),
            "prompt": wire.InferRequest(force_specialists=["writer"]),
            "force_specialists": asking(specialist="absent"),
        }
        for field, request in cases.items():
            heard = await refused(routed, request)
            assert heard.error is not None and heard.error.field == field
        routed.server.service.draining = True
        assert (await refused(routed, asking())).reason == error_pb2.ERROR_REASON_DRAINING
        assert not spy.counts


async def test_a_replica_that_says_nothing_is_waited_for_until_the_deadline_and_can_be_cancelled() -> None:
    async with spying() as spy, routing({"writer": [spy.address]}) as routed:
        heard = await refused(routed, asking(timeout_ms=200))
        assert heard.code is grpc.StatusCode.DEADLINE_EXCEEDED
        waiting = asyncio.create_task(refused(routed, asking(request_id="mine")))
        await routed.until(lambda: len(spy.counts) == 2)
        assert (await refused(routed, asking(request_id="mine"))).code is grpc.StatusCode.ALREADY_EXISTS
        await routed.call("Cancel", wire.CancelRequest(request_id="mine"), wire.CancelResponse)
        assert (await waiting).reason == error_pb2.ERROR_REASON_CANCELLED
        await routed.idle()
        (replica,) = routed.server.fleet.replicas
        assert replica.breaker.state == "closed", "it says nothing about its health"
