"""Calls to a replica or to a router, one for each offer, and what the caller learns."""

from collections.abc import Callable
from time import monotonic
from typing import Any

import grpc
from grpc import aio

from bench.admission.offer import Offer
from bench.admission.outcome import End, Outcome
from bench.admission.replica import LANE, name_of
from octet.rpc.http2.channel import Channel
from octet.rpc.refusal import METADATA_KEY
from octet.v1 import inference_pb2 as router_wire
from octet.v1 import specialist_pb2 as wire

Stream = Callable[[Offer], Any]
"""Starts a call: its events."""
_AFTER: dict[int, End] = {
    wire.ERROR_REASON_SHED: "shed",
    wire.ERROR_REASON_DEADLINE: "late",
    wire.ERROR_REASON_CANCELLED: "cancelled",
}
_CAPACITY = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED)


def to_replica(channel: aio.Channel | Channel) -> Stream:
    generate = channel.unary_stream(
        "/octet.v1.Specialist/Generate",
        request_serializer=wire.GenerateRequest.SerializeToString,
        response_deserializer=wire.GenerateEvent.FromString,
    )
    return lambda offer: generate(
        wire.GenerateRequest(
            request_id=name_of(offer),
            text=_text(offer),
            max_tokens=offer.max_tokens,
            ignore_eos=True,
            priority=offer.priority,
            timeout_ms=_timeout(offer),
        )
    )


def to_router(channel: aio.Channel) -> Stream:
    generate = channel.unary_stream(
        "/octet.v1.Inference/Generate",
        request_serializer=router_wire.InferRequest.SerializeToString,
        response_deserializer=router_wire.InferEvent.FromString,
    )
    return lambda offer: generate(
        router_wire.InferRequest(
            prompt=_text(offer),
            force_specialists=[LANE.specialist],
            max_tokens=offer.max_tokens,
            ignore_eos=True,
            priority=offer.priority,
            timeout_ms=_timeout(offer),
        )
    )


async def call(stream: Stream, offer: Offer, start: float) -> Outcome:
    """`start` is when the load began, on the monotonic clock."""
    asked, accepted, usage = monotonic(), False, None
    try:
        async for event in stream(offer):
            accepted = True
            usage = _usage(event) or usage
    except aio.AioRpcError as error:
        now = monotonic()
        return _accepted(offer, error, now - start) if accepted else _refused(offer, error, asked, now, start)
    in_time = usage is not None and usage.timings.total <= offer.patience
    return Outcome(offer, "in time" if in_time else "late", monotonic() - start)


def _accepted(offer: Offer, error: aio.AioRpcError, at: float) -> Outcome:
    detail = _detail(error)
    return Outcome(offer, _AFTER.get(detail.reason, "failed"), at, _reason(detail))


def _refused(offer: Offer, error: aio.AioRpcError, asked: float, now: float, start: float) -> Outcome:
    """Only want of capacity is a refusal; whatever else keeps a request out is a failure."""
    detail = _detail(error)
    if error.code() not in _CAPACITY:
        return Outcome(offer, "failed", now - start, _reason(detail))
    told = detail.retry_after_ms / 1000 if detail.HasField("retry_after_ms") else None
    behind = asked - start - offer.at
    return Outcome(offer, "refused", now - start, _reason(detail), told, now - asked, asked=asked, behind=behind)


def _reason(detail: wire.Error) -> str:
    name: str = wire.ErrorReason.Name(detail.reason)
    return name.removeprefix("ERROR_REASON_").lower().replace("_", " ")


def _detail(error: aio.AioRpcError) -> wire.Error:
    for key, value in error.trailing_metadata() or ():
        if key == METADATA_KEY and isinstance(value, bytes):
            detail: wire.Error = wire.Error.FromString(value)
            return detail
    return wire.Error()


def _usage(event: Any) -> wire.Usage | None:
    kind = event.WhichOneof("event")
    usage: wire.Usage | None = None
    if kind in ("usage", "receipt"):
        usage = event.usage if kind == "usage" else event.receipt.usage
    return usage


def _text(offer: Offer) -> str:
    """A byte is a token, and no two prompts begin alike."""
    return f"{offer.number:08d}".ljust(offer.prompt_tokens, ".")[-offer.prompt_tokens :]


def _timeout(offer: Offer) -> int:
    return max(1, round(offer.patience * 1000))
