"""One request is one trace, whoever has a hand in it, and the trace tells the truth of it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from octet.config.ensemble import ShadowConfig, TelemetryConfig
from octet.rpc.calls import Context
from octet.rpc.refusal import queue_full
from octet.v1 import specialist_pb2
from specialist.engines.sim import CostModel
from tests.router.http.harness import Heard as HeardHttp
from tests.router.http.harness import fronting
from tests.router.service.harness import Routed, asking, ensemble_of, quick, routing
from tests.router.service.spy import answer, spying
from tests.service.harness import FREE, run, serving, sim
from tests.story.test_wiring import Torn, has_lanes, settings, turn
from tests.telemetry.collector import Collector, Heard, collecting

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
LONG = CostModel(0.1, 0.0, 0.0, 0.02, 0.0, 0.0, 0.0, 0.0)
"""A tenth of a second to the first token, fifty a second from there: little beside it."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@asynccontextmanager
async def ensemble(collector: Collector, cost: CostModel = FREE, **options: Any) -> AsyncIterator[Routed]:
    async with (
        serving(sim(cost), otlp=collector.url) as served,
        routing({"writer": [served.address]}, otlp=collector.url, **options) as routed,
    ):
        yield routed


async def told(collector: Collector, trace_id: str, *names: str) -> dict[str, Heard]:
    """Its spans by name, once these are there."""
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


def test_every_stage_is_there_under_its_parent_and_they_add_up_to_the_whole(collector: Collector) -> None:
    async def story() -> None:
        async with ensemble(collector, LONG) as routed:
            request = asking(max_tokens=50, ignore_eos=True, validate=True, request_id="whole")
            state = ("tracestate", "vendor=1")
            heard = await routed.ask(request, metadata=(*SAMPLED, state))
            spans = await told(collector, TRACE, "octet.front_door", "chat writer", "octet.generate", *STAGES)
            front, attempt, generate = (spans[name] for name in ("octet.front_door", "chat writer", "octet.generate"))
            assert front.parent_id == PARENT and attempt.parent_id == front.span_id
            assert generate.parent_id == attempt.span_id, "across processes"
            for name in STAGES:
                mine = name in ("octet.route", "octet.pick", "octet.verify")
                assert spans[name].parent_id == (front if mine else generate).span_id
            assert len(spans) == len(collector.of(TRACE)) == 3 + len(STAGES)
            assert abs(sum(spans[name].seconds for name in STAGES) / front.seconds - 1) < 0.05
            for inner, outer in ((attempt, front), (generate, attempt), (spans["octet.decode"], generate)):
                assert outer.start <= inner.start <= inner.end <= outer.end, "one calendar for both clocks"
            check_words(spans, heard.receipt)
            assert {span.raw.trace_state for span in spans.values()} == {"vendor=1"}
            assert not any("hello" in str(span.attributes) for span in spans.values()), "nobody's words"

    run(story())


def check_words(spans: dict[str, Heard], receipt: Any) -> None:
    front, generate = spans["octet.front_door"], spans["octet.generate"]
    for span in (front, generate):
        assert span.attributes["octet.request_id"] == "whole"
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


def test_a_failover_is_an_attempt_each_with_its_own_error(collector: Collector) -> None:
    async def dies(_: specialist_pb2.GenerateRequest, context: Context) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    async def story() -> None:
        async with (
            spying(dies) as bad,
            spying(answer) as good,
            routing({"writer": [bad.address, good.address]}, dispatch=quick(choices=1), otlp=collector.url) as routed,
        ):
            trace_id = ""
            while not trace_id:  # until the dice fall on the bad one
                heard = await routed.ask(asking())
                assert heard.receipt is not None and heard.code is grpc.StatusCode.OK
                trace_id = heard.receipt.trace_id if len(heard.receipt.attempts) == 2 else ""
            await told(collector, trace_id, "octet.front_door")
            first, second = sorted(collector.named("chat writer", trace_id), key=lambda span: span.start)
            assert first.error is not None and first.attributes["error.type"] == first.error
            assert second.error is None and first.end <= second.start
            spoken = {header.split("-")[2] for spy in (bad, good) for header in heads(spy, trace_id)}
            assert spoken == {first.span_id, second.span_id}, "the replica hears the attempt's own id"
            assert collector.named("octet.front_door", trace_id)[0].error is None

    run(story())


def heads(spy: Any, trace_id: str) -> list[str]:
    return [each["traceparent"] for each in spy.metadata if trace_id in each["traceparent"]]


def test_a_refused_one_says_so_in_every_process(collector: Collector) -> None:
    async def story() -> None:
        async with ensemble(collector) as routed:
            heard = await routed.ask(asking(adapters=["absent"]))
            assert heard.receipt is not None
            trace_id = heard.receipt.trace_id
            spans = await told(collector, trace_id, "octet.front_door", "octet.admission")
            for name in ("octet.front_door", "chat writer", "octet.generate", "octet.admission"):
                assert spans[name].error == "unknown_adapter", name
            assert spans["octet.front_door"].attributes["octet.admission.result"] == "unknown_adapter"
            assert spans["octet.admission"].attributes["octet.admission.result"] == "unknown_adapter"
            assert not {"octet.queue", "octet.prefill", "octet.decode"} & set(spans)
            unknown = await routed.ask(asking(specialist="poet"))
            assert unknown.receipt is not None
            spans = await told(collector, unknown.receipt.trace_id, "octet.front_door", "octet.route")
            assert spans["octet.route"].error == spans["octet.front_door"].error is not None
            assert len(spans) == 2

    run(story())


def test_a_spilled_one_shows_who_was_full_and_who_answered(collector: Collector) -> None:
    async def full(_: specialist_pb2.GenerateRequest, context: Context) -> None:
        raise queue_full("waiting", 1, 2.0)

    async def story() -> None:
        async with spying(full) as one, spying(answer) as two:
            places = {"writer": [one.address], "editor": [two.address]}
            async with routing(places, otlp=collector.url) as routed:
                heard = await routed.ask(asking(force_specialists=["writer", "editor"]))
                assert heard.receipt is not None and heard.receipt.between.spilled
                spans = await told(collector, heard.receipt.trace_id, "octet.front_door")
                assert spans["chat writer"].error == "queue_full" and spans["chat editor"].error is None
                front = spans["octet.front_door"].attributes
                assert front["octet.spilled"] is True
                assert (front["gen_ai.request.model"], front["gen_ai.response.model"]) == ("writer", "editor")

    run(story())


def test_one_whose_caller_goes_away_ends_where_it_was(collector: Collector) -> None:
    async def story() -> None:
        async with ensemble(collector, LONG) as routed:
            trace_id = "1" * 32
            header = ("traceparent", f"00-{trace_id}-{PARENT}-01")
            call = routed.generate(asking(max_tokens=400, ignore_eos=True), metadata=(header,))
            for _ in range(4):
                await call.read()
            call.cancel()
            spans = await told(collector, trace_id, "octet.front_door", "octet.decode")
            for name in ("octet.front_door", "chat writer", "octet.generate", "octet.decode"):
                assert spans[name].error == "cancelled", name
            assert spans["octet.prefill"].error is None
            assert 0 < spans["octet.decode"].attributes["gen_ai.usage.output_tokens"] < 400

    run(story())


def test_one_whose_engine_dies_under_it_was_admitted_all_the_same(collector: Collector) -> None:
    async def story() -> None:
        async with (
            serving(sim(LONG), otlp=collector.url) as served,
            routing({"writer": [served.address]}, otlp=collector.url) as routed,
        ):
            trace_id = "2" * 32
            header = ("traceparent", f"00-{trace_id}-{PARENT}-01")
            call = routed.generate(asking(max_tokens=400, ignore_eos=True), metadata=(header,))
            for _ in range(4):
                await call.read()

            def broken() -> None:
                raise AssertionError("a bug in the scheduler")

            served.replica.scheduler.assemble_step = broken  # type: ignore[method-assign]
            spans = await told(collector, trace_id, "octet.front_door", "octet.generate", "octet.admission")
            generate, admission = spans["octet.generate"], spans["octet.admission"]
            assert generate.error == spans["octet.front_door"].error == "replica_failed"
            assert admission.error is None and admission.attributes["octet.admission.result"] == "admitted"
            assert admission.end < generate.end, "it ran from there on"
            assert not {"octet.queue", "octet.prefill", "octet.decode"} & set(spans), "nobody knows"

    run(story())


def test_shadows_and_later_verdicts_are_told_in_the_same_trace(collector: Collector) -> None:
    async def story() -> None:
        async with serving(sim(), otlp=collector.url) as one, serving(sim(name="editor"), otlp=collector.url) as two:
            whole = settings(shadow=ShadowConfig(budget=1.0))
            places = {"writer": [one.address], "editor": [two.address]}
            async with routing(places, ensemble=whole, opinions=Torn(), otlp=collector.url) as routed:
                while not await has_lanes(routed):
                    await asyncio.sleep(0.02)
                await turn(routed, "unspecified.shadow_threshold", 0.9)
                request = asking(max_tokens=500)
                del request.force_specialists[:]
                heard = await routed.ask(request)
                assert heard.receipt is not None and heard.receipt.between.HasField("shadow")
                trace_id = heard.receipt.trace_id
                spans = await told(collector, trace_id, "octet.front_door", "chat editor", "octet.verify")
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

    run(story())


HOSTILE = (
    "00-" + "0" * 32 + f"-{PARENT}-01",
    f"00-{TRACE}-{PARENT}-01" * 40,
    f"ff-{TRACE}-{PARENT}-01",
    "'; drop table spans; --",
)


def test_the_callers_flag_decides_and_nonsense_begins_anew(collector: Collector) -> None:
    async def story() -> None:
        telemetry = TelemetryConfig(sample=0.0)
        plain = replace(ensemble_of("writer"), telemetry=telemetry)
        async with spying() as spy, routing({"writer": [spy.address]}, ensemble=plain, otlp=collector.url) as routed:
            for header in HOSTILE:
                heard = await routed.ask(asking(), metadata=(("traceparent", header), ("tracestate", "a=1 ,,=,b")))
                assert heard.receipt is not None and not heard.receipt.span_id
                assert heard.receipt.trace_id != TRACE
            await routed.ask(asking(), metadata=(("traceparent", f"00-{TRACE[::-1]}-{PARENT}-00"),))
            assert all(each["traceparent"].endswith("-00") for each in spy.metadata)
            sampled = "2" * 32
            await routed.ask(asking(), metadata=(("traceparent", f"00-{sampled}-{PARENT}-01"),))
            await told(collector, sampled, "octet.front_door")
            assert not collector.of(TRACE[::-1]), "whoever does not want it traced is not"
            await routed.server.reload(replace(plain, telemetry=TelemetryConfig(sample=1.0)))
            heard = await routed.ask(asking())
            assert heard.receipt is not None and spy.metadata[-1]["traceparent"].endswith("-01")
            await told(collector, heard.receipt.trace_id, "octet.front_door")

    run(story())


def test_without_an_endpoint_nothing_is_recorded_and_the_callers_trace_passes_through() -> None:
    async def story() -> None:
        async with spying() as spy, routing({"writer": [spy.address]}) as routed:
            heard = await routed.ask(asking(), metadata=SAMPLED)
            assert heard.receipt is not None
            assert (heard.receipt.trace_id, heard.receipt.span_id) == (TRACE, "")
            assert not heard.receipt.attempts[0].span_id
            assert spy.metadata[0]["traceparent"].startswith(f"00-{TRACE}-")
            assert spy.metadata[0]["traceparent"].endswith("-01")
            assert routed.server.traces.outbox is None

    run(story())


def test_http_callers_are_told_which_trace_it_was(collector: Collector) -> None:
    async def story() -> None:
        async with spying() as spy, fronting({"writer": [spy.address]}, otlp=collector.url) as fronted:
            mine = "3" * 32
            given = {"content-type": "application/json", "traceparent": f"00-{mine}-{PARENT}-01"}
            body = b'{"model": "octet/writer", "messages": [{"role": "user", "content": "x"}], "stream": true}'
            path = "/v1/chat/completions"
            heard = await fronted.send("POST", path, body, {**given, "content-length": str(len(body))})
            _, trace_id, span_id, flags = response_of(heard)
            assert (trace_id, flags) == (mine, "01")
            spans = await told(collector, mine, "octet.front_door")
            assert span_id == spans["octet.front_door"].span_id
            refused = await fronted.ask(model="octet/writer", priority=3, octet={"adapters": ["x" * 500]})
            assert refused.status == 400 and "traceresponse" not in refused.headers, "nobody has read it"
            assert "traceresponse" not in (await fronted.get("/healthz")).headers

    run(story())


def response_of(heard: HeardHttp) -> list[str]:
    assert heard.status == 200
    return heard.headers["traceresponse"].split("-")


def test_a_collector_that_is_away_is_nobodys_trouble() -> None:
    async def story() -> None:
        with collecting() as gone:
            url = gone.url
        async with serving(sim(), otlp=url) as served, routing({"writer": [served.address]}, otlp=url) as routed:
            for heard in await asyncio.gather(*(routed.ask(asking()) for _ in range(20))):
                assert heard.code is grpc.StatusCode.OK
        assert served.server.outbox is not None and served.server.outbox.num_waiting == 0
        assert routed.server.traces.outbox is not None and routed.server.traces.outbox.num_waiting == 0

    run(story())
