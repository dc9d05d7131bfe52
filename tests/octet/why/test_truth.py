"""`octet why` on requests that were really refused, spilled, shadowed, preempted and failed over: every sentence beside
what the replicas themselves know of it."""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
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
from octet.rpc.calls import Context
from octet.v1 import error_pb2, inference_pb2
from octet.v1 import operator_pb2 as wire
from octet.v1 import specialist_pb2 as replica_wire
from octet.why.words import time
from router.keys.source import GivenKeys
from specialist.engines.sim import CostModel
from tests.router.keys.keyed import book_of, made
from tests.router.service.harness import Heard, Routed, asking, routing
from tests.router.service.spy import ACCEPTED, Spy, spying
from tests.service.harness import QUICK, run, serving, sim
from tests.service.test_admission import SLOW
from tests.story.cast import breaker, operate, until
from tests.story.test_wiring import Torn

Captured = pytest.CaptureFixture[str]
UNKNOWN_WAIT = "how long that took is not on the receipt."
STEADY = CostModel(0.0, 0.0, 0.0, 0.02, 0.0, 0.0, 0.0, 0.0)
"""A step takes 20 ms: an answer of many tokens is long under way."""


async def why(routed: Routed, request_id: str, capsys: Captured) -> str:
    """All it says, on one line."""
    capsys.readouterr()
    assert await asyncio.to_thread(main, ["why", request_id, "--address", routed.address]) == 0
    return " ".join(capsys.readouterr().out.split())


async def why_json(routed: Routed, request_id: str, capsys: Captured) -> Any:
    assert await asyncio.to_thread(main, ["why", request_id, "--json", "--address", routed.address]) == 0
    return json.loads(capsys.readouterr().out)


def torn_ensemble(budget: float = 0.0) -> Ensemble:
    return Ensemble(
        specialists=(SpecialistConfig("writer"), SpecialistConfig("editor")),
        tasks=(TaskConfig("default", temperature=0.0, max_tokens=64, top_p=1.0, repetition_penalty=1.0),),
        router=RouterConfig(default_timeout=30.0),
        correctness=CorrectnessConfig(sample_rate=0.0, fresh_sample_rate=0.0),
        shadow=ShadowConfig(budget=budget, fresh_rate=0.0),
        store=StoreConfig(url="memory"),
    )


def ensemble_without_shadows() -> Ensemble:
    return replace(torn_ensemble(), specialists=(SpecialistConfig("writer"),))


def receipt_of(heard: Heard) -> inference_pb2.Receipt:
    assert heard.receipt is not None
    return heard.receipt


def test_a_refused_request(capsys: Captured) -> None:
    async def scenario() -> None:
        async with serving(sim(SLOW)) as writer, routing({"writer": [writer.address]}) as routed:
            ask = asking(request_id="late", max_tokens=400, timeout_ms=2000, ignore_eos=True, priority=3)
            heard = await routed.ask(ask)
            assert heard.error is not None and heard.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            said = await why(routed, "late", capsys)
            assert re.search(r"request late: refused after [\d.]+ ms: it could not have been answered before its", said)
            assert "with priority 3;" in said and "It belongs to no conversation." in said
            assert "The caller named writer." in said
            assert re.search(
                r"1\. writer-0, of writer: no answer after [\d.]+ ms: it could not have .*unreachable\)", said
            )
            assert "No replica let it in." in said
            assert f'In the server\'s words: "{heard.error.message}".' in said and "400 tokens" in heard.error.message
            assert f"The field to blame was timeout_ms. The limit: {heard.error.limit}" in said
            assert not heard.error.HasField("retry_after_ms") and "Trying again" not in said
            assert "answered it" not in said and "So it went" not in said and "preempted" not in said
            assert writer.replica.scheduler.ledger.live == {} and not heard.chunks

    run(scenario())


def test_a_spilled_request(capsys: Captured) -> None:
    async def scenario() -> None:
        async with (
            serving(sim(STEADY, max_running=1), max_waiting=1) as writer,
            serving(sim(name="editor")) as editor,
            routing(
                {"writer": [writer.address], "editor": [editor.address]}, ensemble=torn_ensemble(), opinions=Torn()
            ) as routed,
        ):
            fillers, live = [], writer.replica.scheduler.ledger.live
            for name in ("first", "second"):
                ask = asking(request_id=name, max_tokens=300, ignore_eos=True)
                fillers.append(asyncio.create_task(routed.ask(ask)))
                await until(lambda: len(live) == len(fillers))
            heard = await routed.ask(inference_pb2.InferRequest(request_id="over", prompt="hello", max_tokens=4))
            receipt = receipt_of(heard)
            assert (heard.code, receipt.specialist) == (grpc.StatusCode.OK, "editor"), heard
            said = await why(routed, "over", capsys)
            assert re.search(r"request over: editor on editor-0 answered it in [\d.]+ ms, spilled over for want", said)
            assert "The classifier chose writer." in said
            assert "confidence in writer was 0.55. Next came editor with 0.40 and reject with 0.05." in said
            assert "The second choice, where that is not possible, was editor." in said
            assert "It spilled over: writer had no room, and editor took it." in said
            assert re.search(r"1\. writer-0, of writer: no answer after .* too many were waiting \(queue_full\)", said)
            assert re.search(r"2\. editor-0, of editor: answered; that took [\d.]+ ms\.", said)
            assert "So it went from writer-0 to editor-0; nothing of the answer had been said before." in said
            for name in ("second", "first"):
                await routed.call("Cancel", inference_pb2.CancelRequest(request_id=name), inference_pb2.CancelResponse)
            await asyncio.gather(*fillers)
            cancelled = await why(routed, "second", capsys)
            assert "cancelled after" in cancelled and "it was cancelled, or its caller was gone" in cancelled
            assert "spilled" not in cancelled

    run(scenario())


def test_a_shadowed_request(capsys: Captured) -> None:
    async def scenario() -> None:
        async with (
            serving(sim()) as writer,
            serving(sim(name="editor")) as editor,
            routing(
                {"writer": [writer.address], "editor": [editor.address]}, ensemble=torn_ensemble(1.0), opinions=Torn()
            ) as routed,
        ):
            await until(lambda: has_lanes(routed))
            plain = await routed.ask(inference_pb2.InferRequest(request_id="alone", prompt="hello", max_tokens=4))
            assert not receipt_of(plain).between.HasField("shadow")
            assert "No copy of it was ordered of anybody." in await why(routed, "alone", capsys)
            change = wire.Change(who="alice", why="a test")
            ask = wire.SetKnobRequest(name="unspecified.shadow_threshold", value=0.6, change=change)
            await operate(routed, "SetKnob", ask, wire.KnobInfo)
            await routed.ask(inference_pb2.InferRequest(request_id="both", prompt="hello", max_tokens=4))
            await until(lambda: sent_shadows(routed))
            said = await why(routed, "both", capsys)
            assert "writer on writer-0 answered it" in said and "with a shadow" in said
            ordered = "A copy that nobody waits for was ordered of editor, because the confidence of 0.55 was below the"
            assert f"{ordered} threshold of 0.6 (low_confidence)." in said
            knobs = "a shadow threshold of 0.6 and a priority floor of 0, last turned by operator."
            assert knobs in said
            assert "spilled" not in said and "2. " not in said.partition("admission")[0]

    run(scenario())


async def has_lanes(routed: Routed) -> bool:
    return all([(await breaker(routed, name)).lane > 0 for name in ("writer", "editor")])


async def sent_shadows(routed: Routed) -> bool:
    report = await operate(routed, "ShadowReport", wire.ShadowReportRequest(), wire.ShadowReportResponse)
    return bool(report.counts.sent == 1)


def test_preempted_requests(capsys: Captured) -> None:
    async def scenario() -> None:
        async with (
            serving(sim(QUICK, num_blocks=20, max_running=4), max_waiting=50) as writer,
            routing({"writer": [writer.address]}) as routed,
        ):
            asks = [
                asking(f"{n} " * 20, request_id=f"r{n}", max_tokens=60, ignore_eos=True, priority=n % 3)
                for n in range(12)
            ]
            heard = await asyncio.gather(*(routed.ask(each) for each in asks))
            await writer.idle()
            assert all(each.code is grpc.StatusCode.OK for each in heard)
            counted = {
                each.request_id: receipt_of(one).usage.times_preempted for each, one in zip(asks, heard, strict=True)
            }
            reports = writer.client.watch_load(min_interval_ms=5)
            assert sum(counted.values()) == (await anext(reports)).times_preempted > 0
            never = next(name for name, times in counted.items() if times == 0)
            often = max(counted, key=counted.__getitem__)
            said = await why(routed, often, capsys)
            times = {1: "once", 2: "twice"}.get(counted[often], f"{counted[often]} times")
            assert f"It was preempted {times}, so that others could run;" in said
            timings = next(receipt_of(one).usage.timings for one in heard if receipt_of(one).request_id == often)
            waited = f"that took {time(timings.preempted)} in all." if timings.HasField("preempted") else UNKNOWN_WAIT
            assert f"so that others could run; {waited}" in said
            assert f"answered it in {told_total(said)}, preempted {times}" in said
            assert "It never had to give way." not in said
            calm = await why(routed, never, capsys)
            assert "It never had to give way." in calm and "preempted" not in calm.partition("It never had")[0]
            await check_sums(routed, asks, capsys)

    run(scenario())


def told_total(said: str) -> str:
    found = re.search(r"answered it in ([\d.]+ m?s)", said)
    assert found is not None
    return found[1]


async def check_sums(routed: Routed, asks: Sequence[inference_pb2.InferRequest], capsys: Captured) -> None:
    """The stages of every one of them add up to its total, as they are shown."""
    for each in asks:
        document = await why_json(routed, each.request_id, capsys)
        rows = [re.match(r"(.+?) +([\d.]+) ms(  \||$)", line) for line in document["told"]["lines"]]
        figures = {found[1]: round(10 * float(found[2])) for found in rows if found is not None}
        total = figures.pop("total")
        assert len(figures) == 5 and sum(figures.values()) == total
        assert abs(total / 10_000 - document["receipt"]["timings"]["total"]) < 0.0001


async def let_in_and_die(_: replica_wire.GenerateRequest, context: Context) -> None:
    await context.write(ACCEPTED)
    await context.abort(grpc.StatusCode.UNAVAILABLE, "struck by lightning")


def test_a_failed_over_request(capsys: Captured) -> None:
    async def scenario() -> None:
        async with (
            spying(let_in_and_die) as doomed,
            serving(sim()) as sound,
        ):
            doomed.revision = sound.replica.lane.revision
            places = {"writer": [doomed.address, sound.address]}
            async with routing(places, ensemble=ensemble_without_shadows()) as routed:
                await tell_it(routed, doomed)

    async def tell_it(routed: Routed, doomed: Spy) -> None:
        number = await asked_until(routed, lambda: bool(doomed.asked))
        said = await why(routed, f"r{number}", capsys)
        assert re.search(rf"request r{number}: writer on writer-1 answered it in .*, after writer-0 had not", said)
        assert re.search(r"1\. writer-0, of writer: no answer after .*: the replica was lost \(replica_lost\)", said)
        assert re.search(r"2\. writer-1, of writer: answered; that took", said)
        assert "So it went from writer-0 to writer-1; nothing of the answer had been said before." in said
        assert "writer-1 took it" in said and "spilled" not in said and "The caller got an error" not in said
        assert len(doomed.asked) == 1
        if number:
            calm = await why(routed, "r0", capsys)
            assert "1. writer-1, of writer: answered" in calm and "writer-0" not in calm

    run(scenario())


def test_a_request_that_another_took_and_one_that_nobody_was_left_to_take(capsys: Captured) -> None:
    """Each is the other's fallback: first the writer's only replica is drained, then both breakers are held open."""
    ann = wire.Change(who="ann", why="maintenance")
    specialists = (SpecialistConfig("writer", fallback="editor"), SpecialistConfig("editor", fallback="writer"))

    async def ask(routed: Routed, name: str) -> inference_pb2.Receipt:
        return receipt_of(await routed.ask(inference_pb2.InferRequest(request_id=name, prompt="hello", max_tokens=4)))

    async def overview(routed: Routed) -> wire.Overview:
        found: wire.Overview = await operate(routed, "GetOverview", wire.GetOverviewRequest(), wire.Overview)
        return found

    async def scenario() -> None:
        async with (
            serving(sim()) as writer,
            serving(sim(name="editor")) as editor,
            routing(
                {"writer": [writer.address], "editor": [editor.address]},
                ensemble=replace(torn_ensemble(), specialists=specialists),
                opinions=Torn(),
            ) as routed,
        ):
            drain = wire.DrainReplicaRequest(replica="writer-0", change=ann)
            await operate(routed, "DrainReplica", drain, wire.ReplicaInfo)
            receipt = await ask(routed, "taken")
            assert (receipt.specialist, receipt.between.instead_of) == ("editor", "writer")
            said = await why(routed, "taken", capsys)
            assert re.search(r"taken: editor on editor-0 answered it in [\d.]+ ms, in the place of writer", said)
            assert "in the place of writer: writer had no replica left that was fit to answer." in said
            assert await asyncio.to_thread(main, ["receipts", "--address", routed.address]) == 0
            assert "stood in for writer" in capsys.readouterr().out
            await until(lambda: any(each.kind == "no_replica" for each in routed.server.view.now().overview.troubles))
            (trouble,) = (await overview(routed)).troubles
            assert trouble.severity == wire.Trouble.WARNING
            assert trouble.text.startswith("writer: its only replica is drained; editor stands in")

            undrain = wire.UndrainReplicaRequest(replica="writer-0", change=ann)
            await operate(routed, "UndrainReplica", undrain, wire.ReplicaInfo)
            for name in ("writer", "editor"):
                hold = wire.HoldBreakerRequest(specialist=name, hold="open", change=ann)
                await operate(routed, "HoldBreaker", hold, wire.BreakerInfo)
            receipt = await ask(routed, "left")
            assert (receipt.error.reason, receipt.between.instead_of) == (error_pb2.ERROR_REASON_DEMOTED, "")
            said = await why(routed, "left", capsys)
            assert "kept from answering now, and nobody stands in for it (an operator held its breaker open)" in said
            assert "wrong too often" not in said and "ann: hold breaker editor" in said
            await until(lambda: len(routed.server.view.now().overview.receipts) == 2)
            seen = await overview(routed)
            assert [each.rates.unserved > 0 for each in seen.specialists] == [True, False]
            assert seen.specialists[0].rates.refused == seen.specialists[0].rates.unserved
            assert seen.headline.startswith("router: no specialist serves, callers are refused")
            held = [each for each in seen.troubles if each.kind == "breaker_held"]
            assert [each.severity for each in held] == [wire.Trouble.CRITICAL] * 2
            assert "editor, which should stand in, does not answer either: callers are refused" in held[1].text

    run(scenario())


async def asked_until(routed: Routed, condition: Callable[[], bool]) -> int:
    """The number of the request with which it came true: whom the router asks first is a matter of luck."""
    for number in range(200):
        heard = await routed.ask(asking(request_id=f"r{number}"))
        assert heard.code is grpc.StatusCode.OK
        if condition():
            return number
    raise AssertionError("it never came true")


def test_a_cut_off_answer_and_an_unknown_one(capsys: Captured) -> None:
    async def speak_and_die(_: replica_wire.GenerateRequest, context: Context) -> None:
        await context.write(ACCEPTED)
        await context.write(replica_wire.GenerateEvent(chunk=replica_wire.Chunk(text="x", token_ids=[1])))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "struck by lightning")

    async def scenario() -> None:
        async with spying(speak_and_die) as doomed, routing({"writer": [doomed.address]}) as routed:
            heard = await routed.ask(asking(request_id="cut"))
            assert heard.text == "x" and heard.error is not None
            said = await why(routed, "cut", capsys)
            assert re.search(r"request cut: its answer was cut off after [\d.]+ ms: the replica was lost", said)
            assert "writer-0 let it in with nobody in line before it" in said
            assert "What was computed of it is not on the receipt." in said
            assert await asyncio.to_thread(main, ["why", "nobody's", "--address", routed.address]) == 2
            assert "octet why: nothing is known of a request with the id" in capsys.readouterr().err

    run(scenario())


def test_a_caller_is_told_of_its_own_requests_and_of_no_others(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OCTET_API_KEY", raising=False)
    caller, other = made("ann", tenant="acme"), made("bob", tenant="rival")
    files = {}
    for each in (caller, other):
        files[each.key.name] = tmp_path / each.key.name
        files[each.key.name].write_text(each.token)

    async def scenario() -> None:
        keys = GivenKeys(book_of(caller, other))
        async with serving(sim()) as writer, routing({"writer": [writer.address]}, keys=keys) as routed:
            heard = await routed.ask(asking(request_id="mine"), metadata=caller.metadata)
            assert heard.code is grpc.StatusCode.OK
            asked = ["why", "mine", "--address", routed.address, "--api-key-file"]
            assert await asyncio.to_thread(main, [*asked, str(files["ann"])]) == 0
            said = " ".join(capsys.readouterr().out.split())
            assert "Its caller showed the key ann of the tenant acme." in said and "this key may not operate" in said
            assert await asyncio.to_thread(main, [*asked, str(files["bob"])]) == 2
            assert await asyncio.to_thread(main, [*asked, str(files["bob"]), "--tenant", "acme"]) == 2
            assert capsys.readouterr().out == ""

    run(scenario())
