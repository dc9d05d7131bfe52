"""A request is one valid trace across all processes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from octet.config.ensemble import CorrectnessConfig, ShadowConfig, TelemetryConfig
from octet.rpc.handlers import Context
from octet.rpc.refusal import queue_full
from octet.v1 import specialist_pb2
from specialist.engines.sim.engine import CostModel
from tests.octet.telemetry.collector import Collector, ReceivedSpan, collecting
from tests.router.http.harness import HttpResponse, running_http_router
from tests.router.serving.harness import RouterHarness, ensemble_of, infer_request, patient_dispatch, running_router
from tests.router.serving.spy import answer, running_spy
from tests.specialist.server.harness import FREE, running_replica, sim
from tests.system.test_wiring import UnsureClassifier, has_lanes, set_knob, settings

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
LONG = CostModel(0.1, 0.0, 0.0, 0.02, 0.0, 0.0, 0.0, 0.0)
"""The first token takes a tenth of a second, then each token takes 20 ms."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@asynccontextmanager
async def ensemble(collector: Collector, cost: CostModel = FREE, **options: Any) -> AsyncIterator[RouterHarness]:
    async with (
        running_replica(sim(cost), otlp=collector.url) as served,
        running_router({"writer": [served.address]}, otlp=collector.url, **options) as routed,
    ):
        yield routed


async def spans_of(collector: Collector, trace_id: str, *names: str) -> dict[str, ReceivedSpan]:
    """Wait until the named spans have arrived. Return all spans of the trace, by name."""
    await asyncio.to_thread(collector.until, lambda: set(names) <= {span.name for span in collector.of(trace_id)})
    return {span.name: span for span in collector.of(trace_id)}


STAGES = (
    "octet.route",
    "octet.pick",
    "octet.admission",
    "octet.queue",
    "octet.prefill",
    "octet.decode",
    "octet.verify",
)


async def test_every_stage_has_its_parent_and_stages_add_up_to_the_whole(collector: Collector) -> None:
    """The stages must add up to the whole for four of at most 24 requests. On a busy machine, a request may have gaps
    between its stages."""
    shares: list[float] = []
    unjudged = CorrectnessConfig(sample_rate=0.0, fresh_sample_rate=0.0)  # a later verdict would add a span
    whole = replace(ensemble_of("writer"), correctness=unjudged)
    async with ensemble(collector, LONG, ensemble=whole) as routed:
        while sum(abs(share - 1) < 0.05 for share in shares) < 4:
            assert len(shares) < 24, f"the stages should add up to the whole request: {shares}"
            spans = await trace_one(routed, collector, len(shares))
            shares.append(sum(spans[name].seconds for name in STAGES) / spans["octet.front_door"].seconds)


async def trace_one(routed: RouterHarness, collector: Collector, number: int) -> dict[str, ReceivedSpan]:
    trace_id = f"{number + 1:x}{TRACE[2:]}".zfill(32)
    request = infer_request(max_tokens=50, ignore_eos=True, validate=True, request_id=f"whole-{number}")
    metadata = (("traceparent", f"00-{trace_id}-{PARENT}-01"), ("tracestate", "vendor=1"))
    answered = await routed.ask(request, metadata=metadata)
    spans = await spans_of(collector, trace_id, "octet.front_door", "chat writer", "octet.generate", *STAGES)
    front, attempt, generate = (spans[name] for name in ("octet.front_door", "chat writer", "octet.generate"))
    assert front.parent_id == PARENT and attempt.parent_id == front.span_id
    assert generate.parent_id == attempt.span_id, "the parent span is in another process"
    for name in STAGES:
        mine = name in ("octet.route", "octet.pick", "octet.verify")
        assert spans[name].parent_id == (front if mine else generate).span_id
    assert len(spans) == len(collector.of(trace_id)) == 3 + len(STAGES)
    for inner, outer in ((attempt, front), (generate, attempt), (spans["octet.decode"], generate)):
        assert outer.start <= inner.start <= inner.end <= outer.end, (
            "an inner span must lie within its outer span, also across processes"
        )
    check_attributes(spans, answered.receipt)
    assert {span.raw.trace_state for span in spans.values()} == {"vendor=1"}
    assert not any("hello" in str(span.attributes) for span in spans.values()), (
        "no attribute may contain text from the caller"
    )
    return spans


def check_attributes(spans: dict[str, ReceivedSpan], receipt: Any) -> None:
    front, generate = spans["octet.front_door"], spans["octet.generate"]
    for span in (front, generate):
        assert span.attributes["octet.request_id"] == receipt.request_id
        assert span.attributes["gen_ai.operation.name"] == "chat" and span.attributes["gen_ai.provider.name"] == "octet"
        assert span.attributes["gen_ai.response.model"] == span.attributes["octet.specialist"] == "writer"
        assert span.attributes["gen_ai.usage.output_tokens"] == 50
        assert span.attributes["gen_ai.response.finish_reasons"] == ("length",)
        assert span.error is None
    assert front.attributes["octet.admission.result"] == "admitted" and front.attributes["octet.breaker"] == "closed"
    assert spans["octet.verify"].attributes["octet.outcome"] == receipt.validation.outcome
    assert (front.service, generate.service) == ("octet-router", "octet-replica")
    assert generate.resource["octet.specialist"] == "writer"
    assert front.resource["service.instance.id"] != generate.resource["service.instance.id"]
    assert receipt.span_id == front.span_id and receipt.attempts[0].span_id == spans["chat writer"].span_id
    assert receipt.timings.total == pytest.approx(front.seconds, abs=1e-6)


async def test_each_attempt_of_a_failover_has_its_own_span_and_error(collector: Collector) -> None:
    async def dies(_: specialist_pb2.GenerateRequest, context: Context) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    async with (
        running_spy(dies) as bad,
        running_spy(answer) as good,
        running_router(
            {"writer": [bad.address, good.address]}, dispatch=patient_dispatch(choices=1), otlp=collector.url
        ) as routed,
    ):
        trace_id = ""
        while not trace_id:  # repeat until the router picks the failing replica first
            answered = await routed.ask(infer_request())
            assert answered.receipt is not None and answered.code is grpc.StatusCode.OK
            trace_id = answered.receipt.trace_id if len(answered.receipt.attempts) == 2 else ""
        await spans_of(collector, trace_id, "octet.front_door")
        first, second = sorted(collector.named("chat writer", trace_id), key=lambda span: span.start)
        assert first.error is not None and first.attributes["error.type"] == first.error
        assert second.error is None and first.end <= second.start
        spoken = {header.split("-")[2] for spy in (bad, good) for header in trace_headers(spy, trace_id)}
        assert spoken == {first.span_id, second.span_id}, "the replica must receive the attempt's own span id"
        assert collector.named("octet.front_door", trace_id)[0].error is None


def trace_headers(spy: Any, trace_id: str) -> list[str]:
    return [each["traceparent"] for each in spy.metadata if trace_id in each["traceparent"]]


async def test_a_refusal_is_in_the_spans_of_every_process(collector: Collector) -> None:
    async with ensemble(collector) as routed:
        answered = await routed.ask(infer_request(adapters=["absent"]))
        assert answered.receipt is not None
        trace_id = answered.receipt.trace_id
        spans = await spans_of(collector, trace_id, "octet.front_door", "octet.admission")
        for name in ("octet.front_door", "chat writer", "octet.generate", "octet.admission"):
            assert spans[name].error == "unknown_adapter", name
        assert spans["octet.front_door"].attributes["octet.admission.result"] == "unknown_adapter"
        assert spans["octet.admission"].attributes["octet.admission.result"] == "unknown_adapter"
        assert not {"octet.queue", "octet.prefill", "octet.decode"} & set(spans)
        unknown = await routed.ask(infer_request(specialist="poet"))
        assert unknown.receipt is not None
        spans = await spans_of(collector, unknown.receipt.trace_id, "octet.front_door", "octet.route")
        assert spans["octet.route"].error == spans["octet.front_door"].error is not None
        assert len(spans) == 2


async def test_a_spilled_request_shows_both_specialists(collector: Collector) -> None:
    async def full(_: specialist_pb2.GenerateRequest, context: Context) -> None:
        raise queue_full("waiting", 1, 2.0)

    async with running_spy(full) as one, running_spy(answer) as two:
        places = {"writer": [one.address], "editor": [two.address]}
        async with running_router(places, otlp=collector.url) as routed:
            answered = await routed.ask(infer_request(force_specialists=["writer", "editor"]))
            assert answered.receipt is not None and answered.receipt.between.spilled
            spans = await spans_of(collector, answered.receipt.trace_id, "octet.front_door")
            assert spans["chat writer"].error == "queue_full" and spans["chat editor"].error is None
            front = spans["octet.front_door"].attributes
            assert front["octet.spilled"] is True
            assert (front["gen_ai.request.model"], front["gen_ai.response.model"]) == ("writer", "editor")


async def test_a_cancelled_request_ends_at_its_stage(collector: Collector) -> None:
    async with ensemble(collector, LONG) as routed:
        trace_id = "1" * 32
        header = ("traceparent", f"00-{trace_id}-{PARENT}-01")
        call = routed.generate(infer_request(max_tokens=400, ignore_eos=True), metadata=(header,))
        for _ in range(4):
            await call.read()
        call.cancel()
        spans = await spans_of(collector, trace_id, "octet.front_door", "octet.decode")
        for name in ("octet.front_door", "chat writer", "octet.generate", "octet.decode"):
            assert spans[name].error == "cancelled", name
        assert spans["octet.prefill"].error is None
        assert 0 < spans["octet.decode"].attributes["gen_ai.usage.output_tokens"] < 400


async def test_a_request_of_a_dead_engine_was_admitted(collector: Collector) -> None:
    async with (
        running_replica(sim(LONG), otlp=collector.url) as served,
        running_router({"writer": [served.address]}, otlp=collector.url) as routed,
    ):
        trace_id = "2" * 32
        header = ("traceparent", f"00-{trace_id}-{PARENT}-01")
        call = routed.generate(infer_request(max_tokens=400, ignore_eos=True), metadata=(header,))
        for _ in range(4):
            await call.read()

        def broken() -> None:
            raise AssertionError("a bug in the scheduler")

        served.replica.scheduler.assemble_step = broken  # type: ignore[method-assign]
        spans = await spans_of(collector, trace_id, "octet.front_door", "octet.generate", "octet.admission")
        generate, admission = spans["octet.generate"], spans["octet.admission"]
        assert generate.error == spans["octet.front_door"].error == "replica_failed"
        assert admission.error is None and admission.attributes["octet.admission.result"] == "admitted"
        assert admission.end < generate.end, "the request continued after its admission"
        assert not {"octet.queue", "octet.prefill", "octet.decode"} & set(spans), (
            "a failed replica must not report these stages"
        )


async def test_shadows_and_late_verdicts_join_the_trace(collector: Collector) -> None:
    async with (
        running_replica(sim(), otlp=collector.url) as one,
        running_replica(sim(name="editor"), otlp=collector.url) as two,
    ):
        whole = settings(shadow=ShadowConfig(budget=1.0))
        places = {"writer": [one.address], "editor": [two.address]}
        async with running_router(places, ensemble=whole, opinions=UnsureClassifier(), otlp=collector.url) as routed:
            while not await has_lanes(routed):
                await asyncio.sleep(0.02)
            await set_knob(routed, "unspecified.shadow_threshold", 0.9)
            request = infer_request(max_tokens=500)
            del request.force_specialists[:]
            answered = await routed.ask(request)
            assert answered.receipt is not None and answered.receipt.between.HasField("shadow")
            trace_id = answered.receipt.trace_id
            spans = await spans_of(collector, trace_id, "octet.front_door", "chat editor", "octet.verify")
            await asyncio.to_thread(collector.until, lambda: len(collector.named("octet.generate", trace_id)) == 2)
            shadow, front = spans["chat editor"], spans["octet.front_door"]
            assert shadow.parent_id == front.span_id and shadow.attributes["octet.shadow"] is True
            assert shadow.attributes["octet.shadow.ending"] == "answered"
            below = [each for each in collector.of(trace_id) if each.parent_id == shadow.span_id]
            assert [each.attributes["octet.shadow"] for each in below] == [True]
            assert front.attributes["octet.shadow.specialist"] == "editor"
            verdict = spans["octet.verify"]
            assert verdict.parent_id == front.span_id and verdict.start >= front.end - 1_000_000
            assert verdict.attributes["octet.afterwards"] is True
            assert verdict.attributes["octet.outcome"] in ("passed", "failed")


HOSTILE = (
    "00-" + "0" * 32 + f"-{PARENT}-01",
    f"00-{TRACE}-{PARENT}-01" * 40,
    f"ff-{TRACE}-{PARENT}-01",
    "'; drop table spans; --",
)


async def test_the_callers_flag_decides_and_an_invalid_header_starts_a_new_trace(collector: Collector) -> None:
    telemetry = TelemetryConfig(sample=0.0)
    plain = replace(ensemble_of("writer"), telemetry=telemetry)
    async with (
        running_spy() as spy,
        running_router({"writer": [spy.address]}, ensemble=plain, otlp=collector.url) as routed,
    ):
        for header in HOSTILE:
            answered = await routed.ask(
                infer_request(), metadata=(("traceparent", header), ("tracestate", "a=1 ,,=,b"))
            )
            assert answered.receipt is not None and not answered.receipt.span_id
            assert answered.receipt.trace_id != TRACE
        await routed.ask(infer_request(), metadata=(("traceparent", f"00-{TRACE[::-1]}-{PARENT}-00"),))
        assert all(each["traceparent"].endswith("-00") for each in spy.metadata)
        sampled = "2" * 32
        await routed.ask(infer_request(), metadata=(("traceparent", f"00-{sampled}-{PARENT}-01"),))
        await spans_of(collector, sampled, "octet.front_door")
        assert not collector.of(TRACE[::-1]), "an unsampled request must not be traced"
        await routed.server.reload(replace(plain, telemetry=TelemetryConfig(sample=1.0)))
        answered = await routed.ask(infer_request())
        assert answered.receipt is not None and spy.metadata[-1]["traceparent"].endswith("-01")
        await spans_of(collector, answered.receipt.trace_id, "octet.front_door")


async def test_without_an_endpoint_nothing_is_recorded_and_the_callers_trace_passes_through() -> None:
    async with running_spy() as spy, running_router({"writer": [spy.address]}) as routed:
        answered = await routed.ask(infer_request(), metadata=SAMPLED)
        assert answered.receipt is not None
        assert (answered.receipt.trace_id, answered.receipt.span_id) == (TRACE, "")
        assert not answered.receipt.attempts[0].span_id
        assert spy.metadata[0]["traceparent"].startswith(f"00-{TRACE}-")
        assert spy.metadata[0]["traceparent"].endswith("-01")
        assert routed.server.traces.exporter is None


async def test_http_responses_name_the_trace(collector: Collector) -> None:
    async with running_spy() as spy, running_http_router({"writer": [spy.address]}, otlp=collector.url) as fronted:
        mine = "3" * 32
        given = {"content-type": "application/json", "traceparent": f"00-{mine}-{PARENT}-01"}
        body = b'{"model": "octet/writer", "messages": [{"role": "user", "content": "x"}], "stream": true}'
        path = "/v1/chat/completions"
        answered = await fronted.send("POST", path, body, {**given, "content-length": str(len(body))})
        _, trace_id, span_id, flags = response_of(answered)
        assert (trace_id, flags) == (mine, "01")
        spans = await spans_of(collector, mine, "octet.front_door")
        assert span_id == spans["octet.front_door"].span_id
        refused = await fronted.ask(model="octet/writer", priority=3, octet={"adapters": ["x" * 500]})
        assert refused.status == 400 and "traceresponse" not in refused.headers, (
            "the request must be refused before it is read"
        )
        assert "traceresponse" not in (await fronted.get("/healthz")).headers


def response_of(answered: HttpResponse) -> list[str]:
    assert answered.status == 200
    return answered.headers["traceresponse"].split("-")


async def test_an_unavailable_collector_affects_no_request() -> None:
    with collecting() as gone:
        url = gone.url
    async with (
        running_replica(sim(), otlp=url) as served,
        running_router({"writer": [served.address]}, otlp=url) as routed,
    ):
        for answered in await asyncio.gather(*(routed.ask(infer_request()) for _ in range(20))):
            assert answered.code is grpc.StatusCode.OK
    assert served.server.exporter is not None and served.server.exporter.num_waiting == 0
    assert routed.server.traces.exporter is not None and routed.server.traces.exporter.num_waiting == 0
