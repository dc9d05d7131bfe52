"""Somebody who asks, and what came of it."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import grpc

from bench.simulation.ensemble import SimEnsemble
from bench.simulation.process import Process
from bench.simulation.script import Asked
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire

GENERATE = "/octet.v1.Inference/Generate"
CANCEL = "/octet.v1.Inference/Cancel"
_CANCEL_SECONDS = 5.0
_CALL_SECONDS = 5.0
"""That a call lasts longer than what the request says."""


@dataclass(slots=True)
class Told:
    """What one request was told, in its order."""

    ask: Asked
    began: float
    routed: list[wire.Receipt] = field(default_factory=list)
    """By every replica that accepted it: more than one where the first was lost before it said anything."""
    tokens: list[int] = field(default_factory=list)
    first_at: float | None = None
    """When the first token came."""
    receipt: wire.Receipt | None = None
    receipt_at: float | None = None
    """When it came, of a whole answer."""
    code: grpc.StatusCode | None = None
    """None until it has ended."""
    error: error_pb2.Error | None = None
    ended: float | None = None
    num_ends: int = 0
    is_out_of_order: bool = False
    """Somebody accepted it though a token had come before."""
    cancelled_at: float | None = None
    """When the caller did not want it any more."""

    @property
    def cancelled(self) -> bool:
        return self.cancelled_at is not None

    def hear(self, event: wire.InferEvent, now: float) -> None:
        kind = event.WhichOneof("event")
        if kind == "routed":
            self.is_out_of_order = self.is_out_of_order or bool(self.tokens)
            self.routed.append(event.routed)
        elif kind == "chunk":
            self.first_at = self.first_at or now
            self.tokens += event.chunk.token_ids
        else:
            self.receipt, self.receipt_at = event.receipt, now

    def end(self, code: grpc.StatusCode, now: float, error: Any = None) -> None:
        self.num_ends += 1
        self.code, self.ended = code, now
        beside = {} if error is None else dict(error.trailing_metadata() or ())
        if "octet-error-bin" in beside:
            self.error = error_pb2.Error.FromString(beside["octet-error-bin"])
        if "octet-receipt-bin" in beside:
            self.receipt = wire.Receipt.FromString(beside["octet-receipt-bin"])


def request_of(ask: Asked) -> wire.InferRequest:
    return wire.InferRequest(
        request_id=ask.request_id,
        prompt=ask.text,
        force_specialists=ask.force,
        adapters=ask.adapters,
        max_tokens=ask.max_tokens,
        seed=ask.seed,
        priority=ask.priority,
        ignore_eos=ask.exact,
        session_id=ask.session,
        tenant_salt=ask.salt.encode(),
        timeout_ms=round(ask.timeout * 1000) if ask.in_request else None,
        first_token_timeout_ms=None if ask.first_timeout is None else round(ask.first_timeout * 1000),
    )


class Caller:
    """In a process of its own, with its own way to the router."""

    def __init__(self, sim: SimEnsemble, ask: Asked) -> None:
        self._sim = sim
        self._link = sim.caller_link()
        self._channel = sim.channel(self._link)
        self._process = Process(f"caller {ask.number}")
        self.told = Told(ask, sim.loop.time())
        self._call: Any = None

    def begin(self) -> "asyncio.Task[None]":
        return self._sim.loop.create_task(self._ask(), context=self._process.context.copy())

    async def _ask(self) -> None:
        told, loop, ask = self.told, self._sim.loop, self.told.ask
        told.began = loop.time()
        generate = self._channel.unary_stream(GENERATE, wire.InferRequest.SerializeToString, wire.InferEvent.FromString)
        self._call = generate(request_of(ask), timeout=ask.timeout + _CALL_SECONDS if ask.in_request else ask.timeout)
        if ask.cancel_after is not None:
            loop.call_later(ask.cancel_after, self._cancel)
        try:
            async for event in self._call:
                told.hear(event, loop.time())
                if ask.pause:
                    await asyncio.sleep(ask.pause)
        except grpc.aio.AioRpcError as error:
            told.end(error.code(), loop.time(), error)
        except asyncio.CancelledError:
            told.end(grpc.StatusCode.CANCELLED, loop.time())
        else:
            told.end(grpc.StatusCode.OK, loop.time())

    def _cancel(self) -> None:
        told = self.told
        if told.ended is not None:
            return
        told.cancelled_at = self._sim.loop.time()
        if told.ask.cancel_how == "call":
            self._call.cancel()
        elif told.ask.cancel_how == "leave":
            self._link.lose()
        else:
            self._sim.loop.create_task(self._cancel_by_call())

    async def _cancel_by_call(self) -> None:
        cancel = self._channel.unary_unary(CANCEL, wire.CancelRequest.SerializeToString, wire.CancelResponse.FromString)
        try:
            await cancel(wire.CancelRequest(request_id=self.told.ask.request_id), timeout=_CANCEL_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:  # it has ended meanwhile
                raise
