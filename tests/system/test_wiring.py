"""Every control of a router takes effect on real requests."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from octet.config.ensemble import (
    CorrectnessConfig,
    Ensemble,
    EscalationConfig,
    IntentConfig,
    RouterConfig,
    ShadowConfig,
    SpecialistConfig,
    StoreConfig,
    TaskConfig,
)
from octet.rpc.handlers import Context
from octet.rpc.refusal import queue_full
from octet.v1 import error_pb2, inference_pb2
from octet.v1 import operator_pb2 as wire
from octet.v1 import specialist_pb2 as replica_wire
from router.routing.classifier.base import Distribution
from tests.patience import PATIENCE
from tests.router.serving.harness import CallResult, RouterHarness, running_router
from tests.router.serving.spy import hang
from tests.system.harness import BAD, Replicas, ask, breaker, operate, running_replicas, until

CHANGE = wire.Change(who="alice", why="a test")
LOW, BELOW_FLOOR = 5, error_pb2.ERROR_REASON_BELOW_FLOOR
ALL = CorrectnessConfig(sample_rate=1.0, fresh_sample_rate=1.0)


class UnsureClassifier:
    """A classifier whose confidence is always low: 0.55 for writer, 0.4 for editor."""

    digest = "1" * 64

    def cached(self, text: str, tenant: str = "") -> Distribution:
        return Distribution((("writer", 0.55), ("editor", 0.4), ("reject", 0.05)))

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        return self.cached(text)


def settings(**changes: Any) -> Ensemble:
    whole = Ensemble(
        specialists=(SpecialistConfig("writer", fallback="editor"), SpecialistConfig("editor")),
        tasks=(TaskConfig("default", temperature=0.0, max_tokens=64, top_p=1.0, repetition_penalty=1.0),),
        router=RouterConfig(default_timeout=2 * PATIENCE),
        correctness=ALL,
        shadow=ShadowConfig(budget=0.0),
        store=StoreConfig(url="memory"),
    )
    return replace(whole, **changes)


def run_scenario(scenario: Callable[[Replicas, RouterHarness], Awaitable[None]], ensemble: Ensemble) -> None:
    async def play() -> None:
        async with (
            running_replicas("writer", "editor") as replicas,
            running_router(replicas.addresses, ensemble=ensemble, opinions=UnsureClassifier()) as routed,
        ):
            await until(lambda: has_lanes(routed))
            await scenario(replicas, routed)

    asyncio.run(play())


async def has_lanes(routed: RouterHarness) -> bool:
    """Return whether the router knows the lanes of the replicas."""
    return all([(await breaker(routed, name)).lane > 0 for name in ("writer", "editor")])


async def set_knob(routed: RouterHarness, name: str, value: float) -> None:
    await operate(routed, "SetKnob", wire.SetKnobRequest(name=name, value=value, change=CHANGE), wire.KnobInfo)


async def knob(routed: RouterHarness, name: str) -> wire.KnobInfo | None:
    listed = await operate(routed, "ListKnobs", wire.ListKnobsRequest(), wire.ListKnobsResponse)
    return next((each for each in listed.knobs if each.name == name), None)


async def counts(routed: RouterHarness) -> wire.ShadowCounts:
    report = await operate(routed, "ShadowReport", wire.ShadowReportRequest(), wire.ShadowReportResponse)
    found: wire.ShadowCounts = report.counts
    return found


async def is_reported(routed: RouterHarness, expected: tuple[str, str, int]) -> bool:
    report = await operate(routed, "ShadowReport", wire.ShadowReportRequest(), wire.ShadowReportResponse)
    return [(row.primary, row.shadow, row.compared) for row in report.rows] == [expected]


def receipt_of(received: CallResult) -> inference_pb2.Receipt:
    assert received.receipt is not None
    return received.receipt


def test_a_request_below_the_threshold_is_shadowed_and_compared() -> None:
    async def scenario(replicas: Replicas, routed: RouterHarness) -> None:
        await set_knob(routed, "unspecified.shadow_threshold", 0.5)
        assert not receipt_of(await ask(routed)).between.HasField("shadow")
        await set_knob(routed, "unspecified.shadow_threshold", 0.6)
        for _ in range(5):
            receipt = receipt_of(await ask(routed))
            assert (receipt.specialist, receipt.between.shadow.specialist) == ("writer", "editor")
            assert receipt.between.shadow.why == "low_confidence"
        await until(lambda: replicas.scripts["editor"].num_shadows == 5)
        await until(lambda: routed.server.services.evaluations.counters.compared == 5)
        await until(lambda: is_reported(routed, ("writer", "editor", 5)))

    run_scenario(scenario, settings(shadow=ShadowConfig(budget=1.0)))


def test_shadow_budget_grows_with_answers() -> None:
    async def scenario(replicas: Replicas, routed: RouterHarness) -> None:
        await set_knob(routed, "unspecified.shadow_threshold", 0.6)
        for _ in range(40):
            await ask(routed)
        sent = (await counts(routed)).sent
        assert 40 * 0.1 - 1 <= sent <= 40 * 0.1 + 2, "the budget grants one shadow per ten answers, plus the first"

    run_scenario(scenario, settings(shadow=ShadowConfig(budget=0.1)))


def test_sample_rate_of_a_tenth_evaluates_about_a_tenth() -> None:
    async def scenario(replicas: Replicas, routed: RouterHarness) -> None:
        for _ in range(150):
            await ask(routed)
        await until(lambda: not routed.server.services.evaluations.num_waiting)
        judged = (await breaker(routed)).samples
        assert 2 <= judged <= 45, "some requests must be evaluated, but not all"

    run_scenario(scenario, settings(correctness=CorrectnessConfig(sample_rate=0.1, fresh_sample_rate=0.1)))


def test_undelivered_answer_is_not_evaluated() -> None:
    async def scenario(replicas: Replicas, routed: RouterHarness) -> None:
        await set_knob(routed, "unspecified.shadow_threshold", 0.6)
        release = asyncio.Event()

        async def half(_: replica_wire.GenerateRequest, context: Context) -> None:
            accepted = replica_wire.Accepted(lane=replica_wire.Lane(specialist="writer", revision="0" * 64))
            await context.write(replica_wire.GenerateEvent(accepted=accepted))
            await context.write(replica_wire.GenerateEvent(chunk=replica_wire.Chunk(text="x", token_ids=[1])))
            await release.wait()

        replicas.spies["writer"].behave = half
        call = routed.generate(inference_pb2.InferRequest(prompt="?", max_tokens=4))
        async for event in call:
            if event.WhichOneof("event") == "chunk":
                break
        await until(lambda: replicas.spies["editor"].asked)
        call.cancel()
        await routed.idle()
        services = routed.server.services
        await until(lambda: not services.shadows.num_inflight and not services.evaluations.num_waiting)
        assert (services.evaluations.counters.submitted, services.evaluations.budget.taken) == (0, 0)

    run_scenario(scenario, settings(shadow=ShadowConfig(budget=1.0)))


def test_a_hung_shadow_delays_no_request_and_ends_with_the_router() -> None:
    async def scenario(replicas: Replicas, routed: RouterHarness) -> None:
        replicas.spies["editor"].behave = hang
        await set_knob(routed, "unspecified.shadow_threshold", 0.6)
        for _ in range(100):
            assert (await ask(routed)).code is grpc.StatusCode.OK, "a request that waited for its shadow never ends"
        assert 4 <= (await counts(routed)).sent <= 8, "hanging shadows stay in flight, and their number is limited"

    run_scenario(scenario, settings(shadow=ShadowConfig(budget=1.0, max_inflight=8)))


async def no_room(_: replica_wire.GenerateRequest, context: Context) -> None:
    raise queue_full("waiting", 8, 2.0)


def test_lasting_refusals_escalate_the_intent_that_overloads_and_no_other() -> None:
    """The first specialist refuses the low priority of `surge`. Both intents are routed with the same confidence."""

    async def scenario(replicas: Replicas, routed: RouterHarness) -> None:
        writer, editor = replicas.spies["writer"], replicas.spies["editor"]
        behave = writer.behave

        async def busy(request: replica_wire.GenerateRequest, context: Context) -> None:
            if request.priority == LOW:
                raise queue_full("waiting", 8, 2.0)
            await behave(request, context)

        writer.behave = busy
        receipt = receipt_of(await ask(routed, intent="surge", priority=LOW))
        assert (receipt.specialist, receipt.between.spilled) == ("editor", True), "the other specialist had room"

        async def has_level(name: str, least: float, **fields: Any) -> bool:
            await ask(routed, intent="steady", priority=9)
            for priority in (LOW, LOW, 7, 7):
                await ask(routed, intent="surge", priority=priority, **fields)
            info = await knob(routed, f"surge/writer.{name}")
            for each in ("shadow_threshold", "priority_floor"):
                assert await knob(routed, f"steady/writer.{each}") is None, "the other intent does not move"
            return info is not None and info.set_by == "escalation" and info.value >= least

        await until(lambda: has_level("shadow_threshold", 0.6))
        await until(lambda: _moved(routed))
        forced: dict[str, Any] = {"force_specialists": ["writer"]}  # the editor must not answer these requests
        await until(lambda: has_level("priority_floor", 6, **forced))
        below = await ask(routed, intent="surge", priority=LOW, **forced)
        assert (below.code, below.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, BELOW_FLOOR)
        offered = receipt_of(await ask(routed, intent="surge", priority=LOW))
        assert offered.specialist == "editor" and "below the floor" in offered.between.why
        editor_behaves, editor.behave = editor.behave, no_room
        assert (await ask(routed, intent="surge", priority=LOW)).reason == BELOW_FLOOR, "the second choice is full"
        editor.behave, writer.behave = editor_behaves, behave

        async def is_back() -> bool:
            threshold = await knob(routed, "surge/writer.shadow_threshold")
            floor = await knob(routed, "surge/writer.priority_floor")
            return floor is None and threshold is None

        await until(is_back)
        assert receipt_of(await ask(routed, intent="surge", priority=LOW)).specialist == "writer"

    quick = EscalationConfig(
        refused=0.05, min_requests=4, sustain=1.5, relax=1.5, threshold_step=0.4, floor_step=6, max_floor=6
    )
    run_scenario(scenario, settings(escalation=quick, intents=(IntentConfig("surge"), IntentConfig("steady"))))


async def _moved(routed: RouterHarness) -> bool:
    """Return whether a request went to the second choice directly, without trying the first."""
    receipt = receipt_of(await ask(routed, intent="surge"))
    return receipt.specialist == "editor" and not receipt.between.spilled


def test_a_reload_reaches_every_part() -> None:
    async def scenario(replicas: Replicas, routed: RouterHarness) -> None:
        await set_knob(routed, "unspecified.shadow_threshold", 0.6)
        await ask(routed)
        assert (await counts(routed)).sent == 0, "the shadow budget is zero"
        changed = replace(
            settings(shadow=ShadowConfig(budget=1.0)),
            specialists=(
                SpecialistConfig("writer", fallback="editor", floor=0.9, verify="none"),
                SpecialistConfig("editor"),
            ),
        )
        before = routed.server.services.evaluations.counters.judged
        await routed.server.reload(changed)
        for _ in range(3):
            await ask(routed)
        await until(lambda: replicas.scripts["editor"].num_shadows)
        info = await breaker(routed)
        assert (info.floor, info.verifier) == (0.9, "none")
        await until(lambda: not routed.server.services.evaluations.num_waiting)
        assert routed.server.services.evaluations.counters.judged == before, "the verifier `none` evaluates nothing"

    run_scenario(scenario, settings())


def test_a_receipt_outlives_its_router(tmp_path: Path) -> None:
    ensemble = settings(store=StoreConfig(url=f"sqlite:{tmp_path / 'state.db'}"))
    ids: list[str] = []

    async def first(replicas: Replicas, routed: RouterHarness) -> None:
        ids.append(receipt_of(await ask(routed)).request_id)

    async def second(replicas: Replicas, routed: RouterHarness) -> None:
        request = inference_pb2.GetReceiptRequest(request_id=ids[0])
        receipt = await routed.call("GetReceipt", request, inference_pb2.Receipt)
        assert (receipt.request_id, receipt.specialist) == (ids[0], "writer")
        missing = await routed.refused(
            "GetReceipt", inference_pb2.GetReceiptRequest(request_id="x"), inference_pb2.Receipt
        )
        assert missing.reason == error_pb2.ERROR_REASON_UNKNOWN_REQUEST

    run_scenario(first, ensemble)
    run_scenario(second, ensemble)


def test_drained_replica_gets_no_request() -> None:
    async def scenario(replicas: Replicas, routed: RouterHarness) -> None:
        request = wire.DrainReplicaRequest(replica="writer-0", change=CHANGE)
        await operate(routed, "DrainReplica", request, wire.ReplicaInfo)
        before = len(replicas.spies["writer"].asked)
        received = await ask(routed)
        assert receipt_of(received).specialist == "editor"
        assert len(replicas.spies["writer"].asked) == before

    run_scenario(scenario, settings())


def test_route_reports_what_generate_would_do() -> None:
    async def scenario(replicas: Replicas, routed: RouterHarness) -> None:
        await set_knob(routed, "unspecified.priority_floor", 6)
        shown = await routed.call("Route", inference_pb2.InferRequest(prompt="x"), inference_pb2.Receipt)
        received = await ask(routed)
        assert shown.error.reason == received.reason == error_pb2.ERROR_REASON_BELOW_FLOOR
        assert shown.decision.primary == "writer" and shown.between.priority_floor == 6
        assert shown.between.knobs_by and not replicas.spies["writer"].asked

    run_scenario(scenario, settings())


def test_a_bad_answer_counts_for_the_lane_that_gave_it() -> None:
    async def scenario(replicas: Replicas, routed: RouterHarness) -> None:
        replicas.scripts["writer"].text = BAD
        for _ in range(6):
            await ask(routed)
        await until(lambda: not routed.server.services.evaluations.num_waiting)
        assert ((await breaker(routed)).samples, (await breaker(routed)).pass_rate) == (6, 0.0)
        assert (await breaker(routed, "editor")).samples == 0

    run_scenario(scenario, settings())
