"""`octet why` for requests that were refused, spilled, shadowed, preempted and failed over. Its text is compared with
the replicas' own records."""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest

from octet.cli import main
from octet.config.ensemble import (
    CorrectnessConfig,
    Ensemble,
    RouterConfig,
    ShadowConfig,
    SpecialistConfig,
    StoreConfig,
    TaskConfig,
)
from octet.rpc.handlers import Context
from octet.terminal import format_seconds
from octet.v1 import error_pb2, inference_pb2
from octet.v1 import operator_pb2 as wire
from octet.v1 import specialist_pb2 as replica_wire
from router.api.keys.key_file import StaticKeys
from specialist.engines.sim.engine import CostModel
from specialist.scheduling.step import Step
from tests.patience import PATIENCE
from tests.router.keys.keyed import issue_key, key_set
from tests.router.serving.harness import CallResult, RouterHarness, infer_request, running_router
from tests.router.serving.spy import ACCEPTED, SpyReplica, running_spy
from tests.specialist.server.harness import QUICK, SLOW, running_replica, serving_simulated, sim
from tests.system.harness import breaker, operate, until
from tests.system.test_wiring import UnsureClassifier

Captured = pytest.CaptureFixture[str]
UNKNOWN_WAIT = "; the duration is not on the receipt."
STEADY = CostModel(0.0, 0.0, 0.0, 0.02, 0.0, 0.0, 0.0, 0.0)
"""A step takes 20 ms, so that long answers take seconds."""


async def why(routed: RouterHarness, request_id: str, capsys: Captured) -> str:
    """Return the whole output of `octet why` as one line."""
    capsys.readouterr()
    assert await asyncio.to_thread(main, ["why", request_id, "--address", routed.address]) == 0
    return " ".join(capsys.readouterr().out.split())


async def why_json(routed: RouterHarness, request_id: str, capsys: Captured) -> Any:
    assert await asyncio.to_thread(main, ["why", request_id, "--json", "--address", routed.address]) == 0
    return json.loads(capsys.readouterr().out)


def unsure_ensemble(budget: float = 0.0) -> Ensemble:
    return Ensemble(
        specialists=(SpecialistConfig("writer"), SpecialistConfig("editor")),
        tasks=(TaskConfig("default", temperature=0.0, max_tokens=64, top_p=1.0, repetition_penalty=1.0),),
        router=RouterConfig(default_timeout=2 * PATIENCE),
        correctness=CorrectnessConfig(sample_rate=0.0, fresh_sample_rate=0.0),
        shadow=ShadowConfig(budget=budget, fresh_rate=0.0),
        store=StoreConfig(url="memory"),
    )


def ensemble_without_shadows() -> Ensemble:
    return replace(unsure_ensemble(), specialists=(SpecialistConfig("writer"),))


def receipt_of(reply: CallResult) -> inference_pb2.Receipt:
    assert reply.receipt is not None
    return reply.receipt


async def test_a_refused_request(capsys: Captured) -> None:
    async with running_replica(sim(SLOW)) as writer, running_router({"writer": [writer.address]}) as routed:
        ask = infer_request(request_id="late", max_tokens=400, timeout_ms=2000, ignore_eos=True, priority=3)
        reply = await routed.ask(ask)
        assert reply.error is not None and reply.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        text = await why(routed, "late", capsys)
        assert re.search(r"request late: refused after [\d.]+ ms: it could not have been answered before its", text)
        assert "with priority 3 (" in text and "It belongs to no conversation." in text
        assert "The caller named writer." in text
        assert re.search(r"1\. writer-0 of writer: no answer after [\d.]+ ms: it could not have .*unreachable\)", text)
        assert "No replica admitted it." in text
        assert f'The server\'s message: "{reply.error.message}".' in text and "400 tokens" in reply.error.message
        assert f"The invalid field was timeout_ms. Allowed: {reply.error.limit}" in text
        assert not reply.error.HasField("retry_after_ms") and "A retry" not in text
        assert "answered it" not in text and "It failed over" not in text and "was preempted" not in text
        assert writer.replica.scheduler.ledger.live == {} and not reply.chunks


async def test_a_spilled_request(capsys: Captured) -> None:
    async with (
        serving_simulated(STEADY, max_running=1, max_waiting=1) as (writer, clock),
        running_replica(sim(name="editor")) as editor,
        running_router(
            {"writer": [writer.address], "editor": [editor.address]},
            ensemble=unsure_ensemble(),
            opinions=UnsureClassifier(),
        ) as routed,
    ):
        clock.pause()  # so that neither filler ends
        fillers, bookings = [], writer.server.controller.bookings
        for name in ("first", "second"):
            ask = infer_request(request_id=name, max_tokens=300, ignore_eos=True)
            fillers.append(asyncio.create_task(routed.ask(ask)))
            await until(lambda: clock.holds_a_step and len(bookings.active) == len(fillers))
        reply = await routed.ask(inference_pb2.InferRequest(request_id="over", prompt="hello", max_tokens=4))
        receipt = receipt_of(reply)
        assert (reply.code, receipt.specialist) == (grpc.StatusCode.OK, "editor"), reply
        text = await why(routed, "over", capsys)
        assert re.search(
            r"request over: editor on editor-0 answered it in [\d.]+ ms, spilled over for lack of capacity", text
        )
        assert "The classifier chose writer." in text
        assert "confidence in writer was 0.55. Next came editor with 0.40 and reject with 0.05." in text
        assert "The second choice was editor." in text
        assert "It spilled over: writer had no capacity, and editor accepted it." in text
        assert re.search(r"1\. writer-0 of writer: no answer after .* the queue was full \(queue_full\)", text)
        assert re.search(r"2\. editor-0 of editor: answered in [\d.]+ ms\.", text)
        assert "It failed over from writer-0 to editor-0 before any of the answer was sent." in text
        for name in ("second", "first"):
            await routed.call("Cancel", inference_pb2.CancelRequest(request_id=name), inference_pb2.CancelResponse)
        clock.resume()
        await asyncio.gather(*fillers)
        cancelled = await why(routed, "second", capsys)
        assert "cancelled after" in cancelled and "it was cancelled, or its caller disconnected" in cancelled
        assert "spilled" not in cancelled


async def test_a_shadowed_request(capsys: Captured) -> None:
    async with (
        running_replica(sim()) as writer,
        running_replica(sim(name="editor")) as editor,
        running_router(
            {"writer": [writer.address], "editor": [editor.address]},
            ensemble=unsure_ensemble(1.0),
            opinions=UnsureClassifier(),
        ) as routed,
    ):
        await until(lambda: has_lanes(routed))
        plain = await routed.ask(inference_pb2.InferRequest(request_id="alone", prompt="hello", max_tokens=4))
        assert not receipt_of(plain).between.HasField("shadow")
        assert "No shadow was planned." in await why(routed, "alone", capsys)
        change = wire.Change(who="alice", why="a test")
        ask = wire.SetKnobRequest(name="unspecified.shadow_threshold", value=0.6, change=change)
        await operate(routed, "SetKnob", ask, wire.KnobInfo)
        await routed.ask(inference_pb2.InferRequest(request_id="both", prompt="hello", max_tokens=4))
        await until(lambda: sent_shadows(routed))
        text = await why(routed, "both", capsys)
        assert "writer on writer-0 answered it" in text and "with a shadow" in text
        ordered = "A shadow was planned for editor, because the confidence of 0.55 was below the"
        assert f"{ordered} threshold of 0.6 (low_confidence). It was sent to editor-0" in text
        knobs = "a shadow threshold of 0.6 and a priority floor of 0, last set by operator."
        assert knobs in text
        assert "spilled" not in text and "2. " not in text.partition("admission")[0]


async def has_lanes(routed: RouterHarness) -> bool:
    return all([(await breaker(routed, name)).lane > 0 for name in ("writer", "editor")])


async def sent_shadows(routed: RouterHarness) -> bool:
    report = await operate(routed, "ShadowReport", wire.ShadowReportRequest(), wire.ShadowReportResponse)
    return bool(report.counts.sent == 1)


async def test_preempted_requests(capsys: Captured) -> None:
    are_all_live = Event()
    are_all_live.set()  # The warm-up request does not wait.

    def wait_for_all(_: Step) -> None:
        are_all_live.wait(PATIENCE)

    async with (
        running_replica(sim(QUICK, faults=wait_for_all, num_blocks=20, max_running=4), max_waiting=50) as writer,
        running_router({"writer": [writer.address]}) as routed,
    ):
        asks = [
            infer_request(f"{n} " * 20, request_id=f"r{n}", max_tokens=60, ignore_eos=True, priority=n % 3)
            for n in range(12)
        ]
        are_all_live.clear()
        calls = [asyncio.create_task(routed.ask(each)) for each in asks]
        await until(lambda: writer.server.handler.num_live == len(asks))
        are_all_live.set()
        reply = await asyncio.gather(*calls)
        await writer.idle()
        assert all(each.code is grpc.StatusCode.OK for each in reply)
        counted = {
            each.request_id: receipt_of(one).usage.times_preempted for each, one in zip(asks, reply, strict=True)
        }
        reports = writer.client.watch_load(min_interval_ms=5)
        assert sum(counted.values()) == (await anext(reports)).times_preempted > 0
        never = next(name for name, times in counted.items() if times == 0)
        often = max(counted, key=counted.__getitem__)
        text = await why(routed, often, capsys)
        times = {1: "once", 2: "twice"}.get(counted[often], f"{counted[often]} times")
        assert f"It was preempted {times}" in text
        timings = next(receipt_of(one).usage.timings for one in reply if receipt_of(one).request_id == often)
        waited = (
            f", for {format_seconds(timings.preempted)} in total." if timings.HasField("preempted") else UNKNOWN_WAIT
        )
        assert f"It was preempted {times}{waited}" in text
        assert f"answered it in {printed_total(text)}, preempted {times}" in text
        assert "It was never preempted." not in text
        other_text = await why(routed, never, capsys)
        assert "It was never preempted." in other_text and "preempted" not in other_text.partition("It was never")[0]
        await check_sums(routed, asks, capsys)


def printed_total(text: str) -> str:
    found = re.search(r"answered it in ([\d.]+ m?s)", text)
    assert found is not None
    return found[1]


async def check_sums(routed: RouterHarness, asks: Sequence[inference_pb2.InferRequest], capsys: Captured) -> None:
    """Check that the displayed stages add up to the total."""
    for each in asks:
        document = await why_json(routed, each.request_id, capsys)
        lines = [line for line in document["told"]["lines"] if not line.startswith("by the")]
        rows = [re.match(r"(.+?) +([\d.]+) ms(  \||$)", line) for line in lines]
        figures = [(found[1], round(10 * float(found[2]))) for found in rows if found is not None]
        (name, total), stages = figures[-1], [each for each in figures[:-1] if not each[0].startswith(" ")]
        assert name == "total" and sum(figure for _, figure in stages) == total
        assert [name for name, _ in stages][:5] == ["decision", "dispatch", "admission", "first token", "answer"]
        parts = {each["name"]: each["parts"] for each in document["stages"]["parts"]}
        assert "prefill" in [part["name"] for part in parts["first token"]]
        assert len(figures) == 1 + len(parts) + sum(map(len, parts.values()))
        assert abs(total / 10_000 - document["receipt"]["timings"]["total"]) < 0.0001


async def accept_and_fail(_: replica_wire.GenerateRequest, context: Context) -> None:
    await context.write(ACCEPTED)
    await context.abort(grpc.StatusCode.UNAVAILABLE, "struck by lightning")


async def test_a_failed_over_request(capsys: Captured) -> None:
    async def check_explanation(routed: RouterHarness, failing: SpyReplica) -> None:
        number = await ask_until(routed, lambda: bool(failing.asked))
        text = await why(routed, f"r{number}", capsys)
        assert re.search(rf"request r{number}: writer on writer-1 answered it in .*, after writer-0 failed", text)
        assert re.search(r"1\. writer-0 of writer: no answer after .*: the replica was lost \(replica_lost\)", text)
        assert re.search(r"2\. writer-1 of writer: answered in", text)
        assert "It failed over from writer-0 to writer-1 before any of the answer was sent." in text
        assert "writer-1 served it" in text and "spilled" not in text and "The caller received an error" not in text
        assert len(failing.asked) == 1
        if number:
            other_text = await why(routed, "r0", capsys)
            assert "1. writer-1 of writer: answered" in other_text and "writer-0" not in other_text

    async with (
        running_spy(accept_and_fail) as failing,
        running_replica(sim()) as healthy,
    ):
        failing.revision = healthy.replica.lane.revision
        places = {"writer": [failing.address, healthy.address]}
        async with running_router(places, ensemble=ensemble_without_shadows()) as routed:
            await check_explanation(routed, failing)


async def test_requests_with_and_without_a_fallback(capsys: Captured) -> None:
    """Two specialists are each other's fallback. First the writer's only replica is drained, then both breakers are
    held open."""
    ann = wire.Change(who="ann", why="maintenance")
    specialists = (SpecialistConfig("writer", fallback="editor"), SpecialistConfig("editor", fallback="writer"))

    async def ask(routed: RouterHarness, name: str) -> inference_pb2.Receipt:
        return receipt_of(await routed.ask(inference_pb2.InferRequest(request_id=name, prompt="hello", max_tokens=4)))

    async def overview(routed: RouterHarness) -> wire.Overview:
        found: wire.Overview = await operate(routed, "GetOverview", wire.GetOverviewRequest(), wire.Overview)
        return found

    async with (
        running_replica(sim()) as writer,
        running_replica(sim(name="editor")) as editor,
        running_router(
            {"writer": [writer.address], "editor": [editor.address]},
            ensemble=replace(unsure_ensemble(), specialists=specialists),
            opinions=UnsureClassifier(),
        ) as routed,
    ):
        drain = wire.DrainReplicaRequest(replica="writer-0", change=ann)
        await operate(routed, "DrainReplica", drain, wire.ReplicaInfo)
        receipt = await ask(routed, "taken")
        assert (receipt.specialist, receipt.between.instead_of) == ("editor", "writer")
        text = await why(routed, "taken", capsys)
        assert re.search(r"taken: editor on editor-0 answered it in [\d.]+ ms, in place of writer", text)
        assert "in place of writer: no replica of writer could answer." in text
        assert await asyncio.to_thread(main, ["receipts", "--address", routed.address]) == 0
        assert "stood in for writer" in capsys.readouterr().out
        await until(lambda: any(each.kind == "no_replica" for each in routed.server.view.now().overview.troubles))
        (trouble,) = (await overview(routed)).troubles
        assert trouble.severity == wire.Trouble.WARNING
        assert trouble.text.startswith("writer: its only replica is drained; editor answers instead")

        undrain = wire.UndrainReplicaRequest(replica="writer-0", change=ann)
        await operate(routed, "UndrainReplica", undrain, wire.ReplicaInfo)
        for name in ("writer", "editor"):
            hold = wire.HoldBreakerRequest(specialist=name, hold="open", change=ann)
            await operate(routed, "HoldBreaker", hold, wire.BreakerInfo)
        receipt = await ask(routed, "left")
        assert (receipt.error.reason, receipt.between.instead_of) == (error_pb2.ERROR_REASON_DEMOTED, "")
        text = await why(routed, "left", capsys)
        assert "the specialist is demoted and no fallback can answer (an operator held its breaker open)" in text
        assert "wrong too often" not in text and "ann: hold breaker editor" in text
        await until(lambda: len(routed.server.view.now().overview.receipts) == 2)
        seen = await overview(routed)
        assert [each.rates.unserved > 0 for each in seen.specialists] == [True, False]
        assert seen.specialists[0].rates.refused == seen.specialists[0].rates.unserved
        assert seen.headline.startswith("router: no specialist serves, so all requests are refused")
        held = [each for each in seen.troubles if each.kind == "breaker_held"]
        assert [each.severity for each in held] == [wire.Trouble.CRITICAL] * 2
        assert "its fallback editor is not serving either: requests are refused" in held[1].text


async def ask_until(routed: RouterHarness, condition: Callable[[], bool]) -> int:
    """Send requests until the condition is true, and return the number of the last one. Several may be needed, because
    the router picks replicas at random."""
    for number in range(200):
        reply = await routed.ask(infer_request(request_id=f"r{number}"))
        assert reply.code is grpc.StatusCode.OK
        if condition():
            return number
    raise AssertionError("the condition never became true")


async def test_cut_off_answer_and_unknown_request(capsys: Captured) -> None:
    async def answer_and_fail(_: replica_wire.GenerateRequest, context: Context) -> None:
        await context.write(ACCEPTED)
        await context.write(replica_wire.GenerateEvent(chunk=replica_wire.Chunk(text="x", token_ids=[1])))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "struck by lightning")

    async with running_spy(answer_and_fail) as failing, running_router({"writer": [failing.address]}) as routed:
        reply = await routed.ask(infer_request(request_id="cut"))
        assert reply.text == "x" and reply.error is not None
        text = await why(routed, "cut", capsys)
        assert re.search(r"request cut: its answer was cut off after [\d.]+ ms: the replica was lost", text)
        assert "writer-0 admitted it with nothing ahead in the queue" in text
        assert "Its token counts are not on the receipt." in text
        assert await asyncio.to_thread(main, ["why", "absent", "--address", routed.address]) == 2
        assert "octet why: unknown request id" in capsys.readouterr().err


async def test_caller_sees_only_its_own_requests(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OCTET_API_KEY", raising=False)
    caller, other = issue_key("ann", tenant="acme"), issue_key("bob", tenant="other")
    files = {}
    for each in (caller, other):
        files[each.key.name] = tmp_path / each.key.name
        files[each.key.name].write_text(each.token)
    keys = StaticKeys(key_set(caller, other))
    async with running_replica(sim()) as writer, running_router({"writer": [writer.address]}, keys=keys) as routed:
        reply = await routed.ask(infer_request(request_id="mine"), metadata=caller.metadata)
        assert reply.code is grpc.StatusCode.OK
        asked = ["why", "mine", "--address", routed.address, "--api-key-file"]
        assert await asyncio.to_thread(main, [*asked, str(files["ann"])]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "Its caller used the key ann of the tenant acme." in text and "this key may not operate" in text
        assert await asyncio.to_thread(main, [*asked, str(files["bob"])]) == 2
        assert await asyncio.to_thread(main, [*asked, str(files["bob"]), "--tenant", "acme"]) == 2
        assert capsys.readouterr().out == ""
