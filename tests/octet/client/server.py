"""A scripted router that can refuse a call, leave it hanging or end it early."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import grpc

from octet.v1 import inference_pb2 as wire
from tests.patience import PATIENCE
from tests.ports import free_port

_NUM_THREADS = 16


@dataclass(frozen=True)
class ScriptedCall:
    """The script for a call."""

    words: tuple[str, ...] = ("one ", "two ", "three")
    code: grpc.StatusCode = grpc.StatusCode.OK
    error: wire.Error | None = None
    with_receipt: bool = True
    """Whether the last event, or the error, carries a receipt."""
    is_routed: bool = True
    has_no_specialist: bool = False
    """Whether the router decides that no specialist should answer."""
    hangs: bool = False
    """Whether the call hangs after its text until the caller disconnects."""


def refuse(
    code: grpc.StatusCode, reason: wire.ErrorReason | None = None, after_ms: int | None = None, **more: Any
) -> ScriptedCall:
    """Return the script of a refusal. Without a reason, the gRPC status has no details."""
    error = wire.Error(reason=reason, message="no", retry_after_ms=after_ms, **more) if reason is not None else None
    return ScriptedCall(words=(), code=code, error=error, is_routed=False, with_receipt=reason is not None)


def busy(after_ms: int | None = 1) -> ScriptedCall:
    return refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, wire.ERROR_REASON_QUEUE_FULL, after_ms)


@dataclass
class Call:
    """A received call and how it ended."""

    request: Any
    metadata: dict[str, Any]
    seconds: float | None
    arrival: float
    ended: Event = field(default_factory=Event)
    """Set when the call has ended; a hanging call ends when its caller disconnects."""


class Script:
    def __init__(self, acts: tuple[ScriptedCall, ...]) -> None:
        self._acts = list(acts)
        self.calls: list[Call] = []
        self.address = ""
        self.stop: Callable[[], None] = lambda: None
        self.live = Event()  # Set while a call hangs.

    def generate(self, request: wire.InferRequest, context: Any) -> Iterator[wire.InferEvent]:
        act, call = self._next(request, context)
        receipt = receipt_of(request, act)
        if act.is_routed:
            yield wire.InferEvent(routed=receipt)
        for number, text in enumerate(act.words):
            yield wire.InferEvent(chunk=wire.Chunk(text=text, token_ids=[number]))
        self._finish(act, call, receipt, context)
        if act.with_receipt:
            yield wire.InferEvent(receipt=receipt)

    def infer(self, request: wire.InferRequest, context: Any) -> wire.InferResponse:
        act, call = self._next(request, context)
        receipt = receipt_of(request, act)
        self._finish(act, call, receipt, context)
        return wire.InferResponse(text="".join(act.words), token_ids=range(len(act.words)), receipt=receipt)

    def route(self, request: wire.InferRequest, context: Any) -> wire.Receipt:
        act, call = self._next(request, context)
        receipt = receipt_of(request, act)
        self._finish(act, call, receipt, context)
        return receipt

    def count_tokens(self, request: wire.InferRequest, context: Any) -> wire.CountResponse:
        act, call = self._next(request, context)
        self._finish(act, call, receipt_of(request, act), context)
        return wire.CountResponse(prompt_tokens=7, specialist="stl")

    def get_receipt(self, request: wire.GetReceiptRequest, context: Any) -> wire.Receipt:
        act, call = self._next(request, context)
        receipt = receipt_of(wire.InferRequest(request_id=request.request_id), act)
        self._finish(act, call, receipt, context)
        return receipt

    def cancel(self, request: wire.CancelRequest, context: Any) -> wire.CancelResponse:
        act, call = self._next(request, context)
        self._finish(act, call, wire.Receipt(), context)
        return wire.CancelResponse()

    def _next(self, request: Any, context: Any) -> tuple[ScriptedCall, Call]:
        left = context.time_remaining()
        seconds = None if left is None or left > 10**8 else left
        call = Call(request, dict(context.invocation_metadata()), seconds, time.monotonic())
        self.calls.append(call)
        context.add_callback(call.ended.set)
        return self._acts.pop(0) if self._acts else ScriptedCall(), call

    def _finish(self, act: ScriptedCall, call: Call, receipt: wire.Receipt, context: Any) -> None:
        if act.hangs:
            self.live.set()
            call.ended.wait(PATIENCE)
        if act.code != grpc.StatusCode.OK:
            beside: list[tuple[str, bytes]] = []
            if act.error is not None:
                beside.append(("octet-error-bin", act.error.SerializeToString()))
            if act.with_receipt:
                receipt.error.CopyFrom(act.error or wire.Error(message="cut"))
                beside.append(("octet-receipt-bin", receipt.SerializeToString()))
            context.set_trailing_metadata(tuple(beside))
            context.abort(act.code, "no")


def receipt_of(request: wire.InferRequest, act: ScriptedCall) -> wire.Receipt:
    decision = wire.Decision(
        source=wire.DECISION_SOURCE_CLASSIFIER,
        decided_by="c" * 64,
        classifier_digest="c" * 64,
        why="the classifier is sure",
        primary="stl",
        second_choice="template",
        distribution=[wire.Score(specialist=name, probability=p) for name, p in (("stl", 0.81), ("template", 0.19))],
        confidence=0.81,
        task="explain",
        max_tokens=64,
        notes=["rule cmake matched and was overruled"],
        request_digest="a" * 64,
    )
    if act.has_no_specialist:
        decision = wire.Decision(why="this is not about C++", distribution=decision.distribution)
    return wire.Receipt(
        request_id=request.request_id,
        decision=decision,
        specialist="stl",
        replica="stl-0",
        lane=wire.Lane(specialist="stl", revision="b" * 64, adapter_digests=["d" * 64]),
        accepted=wire.Accepted(prompt_tokens=7, queue_position=2, max_tokens=64, seed=1),
        usage=wire.Usage(
            finish_reason=wire.FINISH_REASON_STOP,
            prompt_tokens=7,
            completion_tokens=len(act.words),
            timings=wire.Timings(queued=0.0, prefill=0.01, decode=0.1, total=0.11),
        ),
        timings=wire.RouterTimings(decided=0.0004, first_chunk=0.02, total=1.5),
    )


@contextmanager
def scripted(*acts: ScriptedCall, address: str | None = None) -> Iterator[Script]:
    """Run a server. Each call follows the next script; when none is left, calls are answered normally. No other test
    takes its port after it has stopped."""
    address = address or f"127.0.0.1:{free_port()}"
    script = Script(acts)
    server = grpc.server(ThreadPoolExecutor(_NUM_THREADS), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers([handler(script)])
    bound = server.add_insecure_port(address)
    script.address = address if address.startswith("unix:") else f"127.0.0.1:{bound}"
    script.stop = lambda: _stop(server)
    server.start()
    try:
        yield script
    finally:
        script.stop()


def _stop(server: Any) -> None:
    server.stop(0).wait(PATIENCE)


def handler(script: Script) -> Any:
    serialize = wire.InferEvent.SerializeToString
    parse = wire.InferRequest.FromString
    unary = {
        "Infer": (script.infer, parse, wire.InferResponse.SerializeToString),
        "Route": (script.route, parse, wire.Receipt.SerializeToString),
        "CountTokens": (script.count_tokens, parse, wire.CountResponse.SerializeToString),
        "GetReceipt": (script.get_receipt, wire.GetReceiptRequest.FromString, wire.Receipt.SerializeToString),
        "Cancel": (script.cancel, wire.CancelRequest.FromString, wire.CancelResponse.SerializeToString),
    }
    methods = {name: grpc.unary_unary_rpc_method_handler(*parts) for name, parts in unary.items()}
    methods["Generate"] = grpc.unary_stream_rpc_method_handler(script.generate, parse, serialize)
    return grpc.method_handlers_generic_handler("octet.v1.Inference", methods)
