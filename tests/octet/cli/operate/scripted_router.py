"""A scripted operator service behind a real socket."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import grpc

from octet.v1 import error_pb2, specialist_pb2
from octet.v1 import inference_pb2 as call_wire
from octet.v1 import operator_pb2 as wire
from tests.patience import PATIENCE
from tests.ports import free_port

NOW_MS = 1_790_000_000_000
_UNARY: dict[str, tuple[Any, Any]] = {
    "GetSlo": (wire.GetSloRequest, wire.GetSloResponse),
    "GetOverview": (wire.GetOverviewRequest, wire.Overview),
    "GetHistory": (wire.GetHistoryRequest, wire.History),
    "Explain": (wire.ExplainRequest, wire.Story),
}
_STREAMS: dict[str, tuple[Any, Any]] = {
    "ListReceipts": (wire.ListReceiptsRequest, wire.Receipt),
    "WatchOverview": (wire.WatchOverviewRequest, wire.Overview),
}
Refused = tuple[grpc.StatusCode, error_pb2.Error | None]


def latency(p50: float, samples: int = 100) -> wire.Latency:
    return wire.Latency(samples=samples, p50=p50, p95=2 * p50, p99=3 * p50)


def slo(specialist: str = "stl", **changes: Any) -> wire.Slo:
    burns = [wire.Burn(window_seconds=300, samples=100, rate=0.4), wire.Burn(window_seconds=3600, samples=0)]
    objectives = [
        wire.Objective(name="ttft_p95", target=0.25, share=0.95, current=0.2, met=True, burns=burns),
        wire.Objective(name="correctness", target=0.9, share=0.9, current=0.85, met=False, burns=burns[:1]),
    ]
    return wire.Slo(
        **{
            "specialist": specialist,
            "window_seconds": 300,
            "ttft": latency(0.1),
            "itl": latency(0.011),
            "admission_to_first_token": latency(0.05),
            "pass_rate": 0.85,
            "judged": 240,
            "floor": 0.9,
            "correctness_window_seconds": 86_400,
            "answered": 812,
            "preempted_once": 0.01,
            "objectives": objectives,
            "relative_error": 0.01,
            "routers": 2,
            **changes,
        }
    )


def specialist_view(name: str, **changes: Any) -> wire.SpecialistView:
    load = specialist_pb2.LoadReport(
        waiting=3, running=2, max_running=8, max_waiting=64, blocks=specialist_pb2.Blocks(total=100, free=40, used=60)
    )
    info = wire.ReplicaInfo(name=f"{name}-0", specialist=name, status="serving", health_breaker="closed")
    breaker = wire.BreakerInfo(specialist=name, state="closed", samples=120, pass_rate=0.97, fallback="debug")
    lane = wire.LaneInfo(specialist=name, number=1, status="serving", adapter="my-lora", resident=1, replicas=1)
    return wire.SpecialistView(
        **{
            "name": name,
            "describe": f"answers about {name}",
            "slo": slo(name),
            "breaker": breaker,
            "lanes": [lane],
            "replicas": [wire.ReplicaView(info=info, load=load)],
            "rates": wire.Rates(requests=4.5, answered=4.0, refused=0.5, spilled=0.3, completion_tokens=312.0),
            "cache_reuse": 0.4,
            "usual_cache_reuse": 0.7,
            **changes,
        }
    )


def trouble(text: str = "stl refuses requests", **changes: Any) -> wire.Trouble:
    whole = {
        "severity": wire.Trouble.CRITICAL,
        "kind": "refusing",
        "subject": "stl",
        "text": text,
        "since_unix_ms": NOW_MS - 120_000,
        "runbook": "capacity",
    }
    return wire.Trouble(**{**whole, **changes})


def overview(*names: str, **changes: Any) -> wire.Overview:
    views = [specialist_view(name) for name in names or ("stl", "template")]
    receipts = [wire.ReceiptLine(request_id="r-1", specialist="stl", outcome="refused", at_unix_ms=NOW_MS - 4000)]
    whole = {"at_unix_ms": NOW_MS, "ensemble": "test", "version": "9.9", "specialists": views, "receipts": receipts}
    return wire.Overview(**{**whole, "troubles": [trouble()], **changes})


def receipt(request_id: str, **changes: Any) -> call_wire.Receipt:
    decision = call_wire.Decision(
        source=call_wire.DECISION_SOURCE_FORCED, primary="stl", why="the caller asked for stl"
    )
    timings = call_wire.RouterTimings(decided=0.001, dispatched=0.002, accepted=0.01, first_chunk=0.2, total=0.5)
    usage = call_wire.Usage(finish_reason=call_wire.FINISH_REASON_STOP, prompt_tokens=9, completion_tokens=20)
    whole = {"request_id": request_id, "decision": decision, "specialist": "stl", "replica": "stl-0", "usage": usage}
    more = {"timings": timings, "created_unix_ms": NOW_MS, "accepted": call_wire.Accepted(prompt_tokens=9)}
    return call_wire.Receipt(**{**whole, **more, **changes})


def receipts() -> list[call_wire.Receipt]:
    full = call_wire.Attempt(specialist="stl", replica="stl-0", reason=error_pb2.ERROR_REASON_QUEUE_FULL)
    answered = call_wire.Attempt(specialist="template", replica="template-0", seconds=0.4)
    shadow = call_wire.ShadowOrder(specialist="debug", why="low_confidence", outcome="sent", replica="debug-0")
    between = call_wire.Between(spilled=True, shadow=shadow, correctness="closed")
    spilled = receipt("spilled", specialist="template", attempts=[full, answered], between=between)
    spilled.usage.times_preempted = 2
    refused = receipt("refused", specialist="", replica="", attempts=[full])
    refused.ClearField("accepted")
    refused.ClearField("usage")
    refused.timings.ClearField("first_chunk")
    refused.error.CopyFrom(error_pb2.Error(reason=error_pb2.ERROR_REASON_QUEUE_FULL, message="8 wait"))
    return [spilled, refused]


class ScriptedRouter:
    def __init__(self) -> None:
        self.address = ""
        self.asked: list[Any] = []
        self.refusals: dict[str, Refused] = {}
        """Refusals by the name of the call."""
        self.overviews = [overview()]
        """The messages that a watch gets, in order. After the last, the stream is silent or ends."""
        self.ends = False
        self.lately = receipts()
        self.released = Event()
        self.server: Any = None

    def answer(self, name: str, request: Any, context: Any) -> Any:
        self._note(name, request, context)
        if name == "GetSlo":
            names = [request.specialist] if request.specialist else ["stl", "template"]
            return wire.GetSloResponse(slos=[slo(each) for each in names])
        if name == "GetOverview":
            return self.overviews[-1]
        if name == "GetHistory":
            return wire.History(step_seconds=5.0)
        change = wire.AuditEntry(
            who="ann", what="set_knob", subject="stl.priority_floor", why="storm", at_unix_ms=NOW_MS - 600_000
        )
        found = next(each for each in self.lately if each.request_id == request.request_id)
        return wire.Story(receipt=found, changes=[change])

    def stream(self, name: str, request: Any, context: Any) -> Iterator[Any]:
        self._note(name, request, context)
        if name == "ListReceipts":
            yield from self.lately
            return
        yield from self.overviews
        if not self.ends:
            gone = Event()
            context.add_callback(gone.set)
            while not gone.wait(0.05) and not self.released.is_set():
                pass

    def receipt(self, request: Any, context: Any) -> call_wire.Receipt:
        self._note("GetReceipt", request, context)
        return next(each for each in self.lately if each.request_id == request.request_id)

    def _note(self, name: str, request: Any, context: Any) -> None:
        self.asked.append(request)
        if name in self.refusals:
            code, error = self.refusals[name]
            if error is not None:
                context.set_trailing_metadata([("octet-error-bin", error.SerializeToString())])
            context.abort(code, "no" if error is None else error.message)


@contextmanager
def router_served(router: ScriptedRouter | None = None, port: int | None = None) -> Iterator[ScriptedRouter]:
    """Run a server. No other test takes its port after it has stopped."""
    router = router or ScriptedRouter()
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers(_handlers(router))
    router.server = server
    router.address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port or free_port()}')}"
    router.released.clear()
    server.start()
    try:
        yield router
    finally:
        router.released.set()
        server.stop(0).wait(PATIENCE)


def _handlers(router: ScriptedRouter) -> list[Any]:
    def unary(name: str, asked: Any, answer: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: router.answer(name, request, context), asked.FromString, answer.SerializeToString
        )

    def stream(name: str, asked: Any, answer: Any) -> Any:
        return grpc.unary_stream_rpc_method_handler(
            lambda request, context: router.stream(name, request, context), asked.FromString, answer.SerializeToString
        )

    operator = {name: unary(name, *kinds) for name, kinds in _UNARY.items()}
    operator |= {name: stream(name, *kinds) for name, kinds in _STREAMS.items()}
    caller = grpc.unary_unary_rpc_method_handler(
        router.receipt, call_wire.GetReceiptRequest.FromString, call_wire.Receipt.SerializeToString
    )
    return [
        grpc.method_handlers_generic_handler("octet.v1.Operator", operator),
        grpc.method_handlers_generic_handler("octet.v1.Inference", {"GetReceipt": caller}),
    ]
