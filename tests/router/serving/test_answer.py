"""A routed answer is the replica's answer with a receipt."""

import asyncio

import grpc
import pytest

from octet.v1 import error_pb2, specialist_pb2
from octet.v1 import inference_pb2 as wire
from tests.router.serving.harness import CallResult, infer_request, running_router
from tests.router.serving.test_propagation import STEADY
from tests.specialist.server import harness as replicas
from tests.specialist.server.harness import QUICK, running_replica, sim


async def test_a_stream_is_the_replicas_answer_with_a_complete_receipt() -> None:
    async with running_replica(sim(QUICK)) as served, running_router({"writer": [served.address]}) as routed:
        result = await routed.ask(
            infer_request("why?", request_id="r-1", max_tokens=24, seed=7, session_id="s", priority=3)
        )
        chat = specialist_pb2.Chat(messages=[specialist_pb2.Message(role="user", content="why?")])
        sampling = specialist_pb2.Sampling(temperature=0.0, top_p=1.0, repetition_penalty=1.0)
        plain = specialist_pb2.GenerateRequest(chat=chat, max_tokens=24, seed=7, sampling=sampling)
        direct = await replicas.ask(served.client, plain)
        assert result.code is grpc.StatusCode.OK
        assert (result.tokens, result.text) == (direct.tokens, direct.text)
        receipt = result.receipt
        assert receipt is not None and direct.usage is not None
        assert receipt.request_id == "r-1"
        assert (receipt.specialist, receipt.replica, receipt.breaker) == ("writer", "writer-0", "closed")
        assert receipt.usage.completion_tokens == direct.usage.completion_tokens
        assert receipt.lane.revision == served.replica.lane.revision
        assert [each.reason for each in receipt.attempts] == [error_pb2.ERROR_REASON_UNSPECIFIED]
        times = receipt.timings
        assert 0 <= times.decided <= times.dispatched <= times.accepted <= times.first_chunk <= times.total
        assert len(result.routed) == 1 and result.routed[0].decision == receipt.decision
        kept = await routed.call("GetReceipt", wire.GetReceiptRequest(request_id="r-1"), wire.Receipt)
        assert kept == receipt


async def test_the_answer_at_once_equals_the_stream() -> None:
    async with running_replica(sim(QUICK)) as served, running_router({"writer": [served.address]}) as routed:
        request = infer_request("why?", max_tokens=24, sampling=wire.Sampling(num_logprobs=1))
        result = await routed.ask(request)
        whole = await routed.call("Infer", request, wire.InferResponse)
        assert (whole.text, tuple(whole.token_ids)) == (result.text, result.tokens)
        assert list(whole.logprobs) == [each for chunk in result.chunks for each in chunk.logprobs]
        assert whole.receipt.usage.completion_tokens == len(whole.token_ids)


async def test_route_decides_like_generate_without_generating() -> None:
    async with running_replica(sim()) as served, running_router({"writer": [served.address]}) as routed:
        preview = await routed.call("Route", infer_request(), wire.Receipt)
        result = await routed.ask(infer_request())
        assert result.receipt is not None
        assert preview.decision == result.receipt.decision
        assert not preview.HasField("usage") and not preview.attempts


@pytest.mark.parametrize("method", ["Generate", "Infer", "Route"])
@pytest.mark.parametrize(
    ("request_", "code", "reason"),
    [
        (infer_request("  "), grpc.StatusCode.INVALID_ARGUMENT, error_pb2.ERROR_REASON_INVALID_FIELD),
        (infer_request(priority=10), grpc.StatusCode.INVALID_ARGUMENT, error_pb2.ERROR_REASON_INVALID_FIELD),
        (infer_request(specialist="unknown"), grpc.StatusCode.NOT_FOUND, error_pb2.ERROR_REASON_UNKNOWN_SPECIALIST),
    ],
)
async def test_every_refusal_carries_its_receipt(
    method: str, request_: wire.InferRequest, code: grpc.StatusCode, reason: int
) -> None:
    async with running_router({"writer": ["127.0.0.1:1"]}, warm=False) as routed:
        answer = wire.InferResponse if method == "Infer" else wire.Receipt
        result = await routed.ask(request_) if method == "Generate" else await routed.refused(method, request_, answer)
        assert (result.code, result.reason) == (code, reason)
        assert result.receipt is not None and result.receipt.error.reason == reason
        assert result.error is not None and result.error.field


async def test_a_replicas_refusal_is_passed_on_unchanged() -> None:
    async with running_replica(sim()) as served, running_router({"writer": [served.address]}) as routed:
        result = await routed.ask(infer_request(adapters=["absent"]))
        assert (result.code, result.reason) == (
            grpc.StatusCode.NOT_FOUND,
            error_pb2.ERROR_REASON_UNKNOWN_ADAPTER,
        )
        assert result.error is not None and "absent" in result.error.value
        assert result.receipt is not None and len(result.receipt.attempts) == 1
        too_long = await routed.ask(infer_request("word " * 800))
        assert too_long.reason == error_pb2.ERROR_REASON_PROMPT_TOO_LONG
        assert served.server.handler.num_live == 0


async def test_a_live_request_id_is_unique_and_cancel_ends_it_with_a_receipt() -> None:
    async with running_replica(sim(STEADY)) as served, running_router({"writer": [served.address]}) as routed:
        long = infer_request(request_id="mine", max_tokens=400, ignore_eos=True)
        first = asyncio.create_task(routed.ask(long))
        await routed.until(lambda: routed.num_inflight)
        again = await routed.ask(long)
        assert (again.code, again.reason) == (
            grpc.StatusCode.ALREADY_EXISTS,
            error_pb2.ERROR_REASON_DUPLICATE_REQUEST,
        )
        await routed.call("Cancel", wire.CancelRequest(request_id="mine"), wire.CancelResponse)
        result = await first
        assert (result.code, result.reason) == (grpc.StatusCode.CANCELLED, error_pb2.ERROR_REASON_CANCELLED)
        assert result.receipt is not None and result.receipt.error.reason == error_pb2.ERROR_REASON_CANCELLED
        kept = await routed.call("GetReceipt", wire.GetReceiptRequest(request_id="mine"), wire.Receipt)
        assert kept == result.receipt, "the refused duplicate must leave no receipt"
        await served.idle()
        served.check_whole()
        await routed.idle()
        for method, ask in (
            ("Cancel", wire.CancelRequest(request_id="mine")),
            ("GetReceipt", wire.GetReceiptRequest(request_id="other")),
        ):
            unknown = await routed.refused(method, ask, wire.Receipt)
            assert (unknown.code, unknown.reason) == (
                grpc.StatusCode.NOT_FOUND,
                error_pb2.ERROR_REASON_UNKNOWN_REQUEST,
            )


async def test_a_malformed_request_gets_a_receipt() -> None:
    async with running_replica(sim()) as served, running_router({"writer": [served.address]}) as routed:
        for method in ("Generate", "Infer", "Route"):
            result = CallResult()
            try:
                await routed.channel.unary_unary(f"/octet.v1.Inference/{method}")(b"\x12\x02\xff\xfe")
            except grpc.aio.AioRpcError as error:
                result.end(error)
            assert result.code is grpc.StatusCode.INVALID_ARGUMENT
            assert result.reason == error_pb2.ERROR_REASON_MALFORMED
            assert result.receipt is not None and result.receipt.error.reason == result.reason
