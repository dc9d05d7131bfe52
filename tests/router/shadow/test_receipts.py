"""Receipts say of every shadow what the replicas saw of it."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import grpc
import pytest

from octet.config.ensemble import CorrectnessConfig, Ensemble, IntentConfig, RuleConfig, ShadowConfig
from octet.v1 import inference_pb2 as wire
from octet.v1 import specialist_pb2
from router.quality.shadow import shadow_counts_to_wire
from router.quality.shadow_copy import SHADOW_SUFFIX
from specialist.server.service import GenerateHandler
from tests.simulation.ensemble import GENERATE, SimEnsemble, Verdicts, ensemble_of, spec_of
from tests.simulation.run import PromptClassifier
from tests.simulation.script import FIRST, SECOND, THIRD, Setup

NAMES = (FIRST, SECOND, THIRD)
SETUP = Setup(replicas={FIRST: 2, SECOND: 2, THIRD: 1}, judged=True, max_running=2, max_waiting=2, num_blocks=24)
INTENTS = (
    IntentConfig("unspecified", shadow_threshold=0.7, shadow_rate=0.5),
    IntentConfig("review", shadow_threshold=1.0),
    IntentConfig("fixed", specialist=SECOND, shadow_rate=1.0),
    IntentConfig("quiet", shadow_threshold=0.0),
)
RULE = "BY RULE"
SHADOWS = ShadowConfig(budget=0.5, max_inflight=3, demoted_rate=0.5, timeout=0.4)


def ensemble() -> Ensemble:
    rules = (RuleConfig("by-rule", THIRD, contains=(RULE,)),)
    correctness = CorrectnessConfig(window=4.0, breach=1.0, min_samples=3, sample_rate=0.5)
    made = replace(ensemble_of(SETUP), intents=INTENTS, rules=rules, shadow=SHADOWS, correctness=correctness)
    return replace(made, escalation=replace(made.escalation, enabled=False))


@dataclass
class Seen:
    """The shadows that replicas saw, and the receipts that callers got."""

    replicas: defaultdict[str, list[GenerateHandler]] = field(default_factory=lambda: defaultdict(list))  # by request
    receipts: dict[str, wire.Receipt] = field(default_factory=dict)

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Record the shadows that replicas get, even those that they refuse."""
        generate = GenerateHandler.generate

        async def watched(handler: GenerateHandler, message: specialist_pb2.GenerateRequest, context: Any) -> None:
            if message.shadow:
                self.replicas[message.request_id.removesuffix(SHADOW_SUFFIX)].append(handler)
            await generate(handler, message, context)

        monkeypatch.setattr(GenerateHandler, "generate", watched)


def draw_request(number: int, random: Random) -> wire.InferRequest:
    name, percent = random.choice((FIRST, FIRST, SECOND, THIRD)), random.choice((30, 60, 80, 95))
    rule = f" {RULE}" if random.random() < 0.2 else ""
    return wire.InferRequest(
        request_id=f"r{number}",
        prompt=f"{name} {percent} sort {number}{rule}",
        intent=random.choice(("", "", "review", "review", "fixed", "quiet")),
        exclude_specialists=[random.choice(NAMES)] if random.random() < 0.1 else [],
        adapters=["left"] if random.random() < 0.05 else [],
        max_tokens=random.randint(1, 12),
        priority=random.randint(0, 9),
        timeout_ms=3000,
    )


async def ask(sim: SimEnsemble, request: wire.InferRequest, seen: Seen, random: Random) -> None:
    link = sim.caller_link()
    call = sim.channel(link).stream(GENERATE, request.SerializeToString(), timeout=10, parse=wire.InferEvent.FromString)
    if random.random() < 0.1:
        sim.loop.call_later(random.expovariate(10), call.cancel)
    try:
        async for event in call:
            if event.HasField("receipt"):
                seen.receipts[request.request_id] = event.receipt
    except grpc.aio.AioRpcError as error:
        raw = dict(error.trailing_metadata() or ()).get("octet-receipt-bin")
        if raw is not None:
            seen.receipts[request.request_id] = wire.Receipt.FromString(raw)
    except asyncio.CancelledError:
        pass


@pytest.mark.parametrize("number", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_receipts_equal_what_replicas_saw(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overload, small budgets, demotions, cancellations and rules make shadows end in many ways."""
    random, seen = Random(number), Seen()
    verdicts = Verdicts(Random(1))
    sim = SimEnsemble(
        ensemble(),
        {name: spec_of(name, SETUP) for name in NAMES},
        SETUP.replicas,
        seed=7,
        classifier=PromptClassifier(NAMES),
        verdicts=verdicts.of,
    )

    async def live() -> None:
        await sim.start()
        tasks = []
        for index in range(number):
            if index % 200 == 100:
                sim.loop.call_later(4.0, verdicts.spoil(FIRST))
            tasks.append(asyncio.ensure_future(ask(sim, draw_request(index, random), seen, random)))
            await asyncio.sleep(random.expovariate(40 if index % 300 < 250 else 400))
        await asyncio.gather(*tasks)
        await asyncio.sleep(5)
        await check()
        await sim.stop()

    async def check() -> None:
        router, ends, sent = sim.router, Counter[tuple[str, str]](), Counter[str]()
        num_planned = 0
        names = {each.replica.handler: name for name, each in sim.machines.items() if each.replica is not None}
        for index in range(number):
            name = f"r{index}"
            kept = await router.service.receipts.get(name)
            assert kept is not None or name not in seen.replicas
            if kept is None:
                continue
            assert seen.receipts.get(name, kept) == kept, "the caller and the store must have the same receipt"
            shadow = kept.between.shadow
            at = [names[handler] for handler in seen.replicas.get(name, [])]
            assert at == ([shadow.replica] if shadow.replica else []), (name, shadow)
            if not kept.between.HasField("shadow"):
                continue
            num_planned += 1
            sent[shadow.why] += bool(shadow.replica)
            assert shadow.outcome in ("sent", "answered", "shed", "failed"), shadow
            assert bool(shadow.reason) == (shadow.outcome in ("shed", "failed")), shadow
            assert shadow.replica or shadow.outcome == "shed", shadow
            assert not shadow.replica or shadow.replica.startswith(f"{shadow.specialist}-")
            ends[shadow.outcome, shadow.reason] += 1
        counts = router.services.shadow_counts()
        assert (counts.ordered, counts.sent) == (num_planned, sum(sent.values()))
        ended = router.services.shadows.counters.ended
        assert sum(ended.values()) == num_planned
        for end in ("no_budget", "no_slot", "no_replica", "same_lane", "no_answer"):
            assert ended["shed", end] == ends["shed", end], "a shadow that was not sent has ended before its receipt"
        if number >= 10_000:
            print(dict(ends), dict(sent), dict(ended))
        assert {"low_confidence", "rule_routed", "demoted"} <= {why for why, each in sent.items() if each}
        assert {("shed", "no_budget"), ("shed", "no_replica"), ("shed", "no_answer")} <= ended.keys()
        assert shadow_counts_to_wire(router.services.shadows, router.services.evaluations) == counts

    seen.watch(monkeypatch)
    with sim:
        sim.run(live())
