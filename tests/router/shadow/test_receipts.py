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
from router.quality import answers
from router.quality.shadow import shadow_counts_to_wire
from router.quality.shadow_copy import SHADOW_SUFFIX
from router.routing.classifier.base import Distribution
from specialist.server.generate import GenerateHandler
from tests.simulation.ensemble import GENERATE, SimEnsemble, Verdicts, ensemble_of, spec_of
from tests.simulation.run import PromptClassifier
from tests.simulation.script import FIRST, SECOND, THIRD, Setup

NAMES = (FIRST, SECOND, THIRD)
SETUP = Setup(replicas={FIRST: 2, SECOND: 2, THIRD: 2}, max_running=5, max_waiting=2, num_blocks=48)
INTENTS = (
    IntentConfig("unspecified", shadow_threshold=0.7, shadow_rate=0.5),
    IntentConfig("review", shadow_threshold=1.0),
    IntentConfig("fixed", specialist=SECOND, shadow_rate=1.0),
    IntentConfig("quiet", shadow_threshold=0.0),
)
RULE = "BY RULE"
SHADOWS = ShadowConfig(budget=0.45, max_inflight=2, demoted_rate=0.3, timeout=0.3)
CROWD = 15
RATE, BURST = 25, 300  # requests per second
ANSWER_BYTES = 30  # longer answers are not captured
ENDINGS = {  # the least number in 600 requests
    ("answered", ""): 30,
    ("shed", "no_budget"): 10,
    ("shed", "no_slot"): 5,
    ("shed", "no_replica"): 10,
    ("shed", "no_choice"): 2,
    ("shed", "same_lane"): 1,
    ("shed", "no_answer"): 10,
    ("shed", "cancelled"): 2,
    ("shed", "displaced"): 1,
    ("shed", "refused"): 1,
    ("shed", "too_long"): 2,
    ("failed", "timed_out"): 1,
    ("failed", "broken"): 1,
}
MOST_LOST = 0.02  # share of the sent shadows that never reach the replica, because they are cancelled or it is killed


def ensemble() -> Ensemble:
    rules = (RuleConfig("by-rule", THIRD, contains=(RULE,)),)
    correctness = CorrectnessConfig(window=4.0, breach=1.0, min_samples=3, sample_rate=0.5, answer_bytes=ANSWER_BYTES)
    made = replace(ensemble_of(SETUP), intents=INTENTS, rules=rules, shadow=SHADOWS, correctness=correctness)
    return replace(made, escalation=replace(made.escalation, enabled=False))


@dataclass
class Seen:
    """The shadows that replicas saw, and the receipts that callers got."""

    replicas: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # names, by request
    receipts: dict[str, wire.Receipt] = field(default_factory=dict)

    def watch(self, sim: SimEnsemble, monkeypatch: pytest.MonkeyPatch) -> None:
        """Record the shadows that replicas get, even those that they refuse."""
        generate = GenerateHandler.generate

        async def watched(handler: GenerateHandler, message: specialist_pb2.GenerateRequest, context: Any) -> None:
            if message.shadow:
                at = [each.name for each in sim.machines.values() if each.replica and each.replica.handler is handler]
                self.replicas[message.request_id.removesuffix(SHADOW_SUFFIX)] += at
            await generate(handler, message, context)

        monkeypatch.setattr(GenerateHandler, "generate", watched)


class ThreeNames(PromptClassifier):
    """Two thirds of the remaining probability go to the next specialist, one third to the one after it."""

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        found = await super().classify(text, tenant)
        (name, share), (second, rest), *_ = found.scores
        (third,) = {*NAMES} - {name, second}
        return Distribution.of([(name, share), (second, rest * 2 / 3), (third, rest / 3)])


def disturb(sim: SimEnsemble, random: Random) -> None:
    """Let a machine compute slowly for a while, or kill one that answers a shadow."""
    busy = [replica.name for replica in sim.router.services.shadows._num_sent]
    machine = sim.machines[random.choice(busy or [*sim.machines])]
    if not busy:
        machine.slowness = 30.0
        sim.loop.call_later(1.0, setattr, machine, "slowness", 1.0)
    else:
        machine.kill()
        sim.loop.call_later(0.2, machine.start)


def draw_request(number: int, random: Random) -> wire.InferRequest:
    name, percent = random.choice((FIRST, FIRST, SECOND, THIRD)), random.choice((40, 60, 70, 90))
    rule = f" {RULE}" if random.random() < 0.2 else ""
    name = "none" if rule and random.random() < 0.2 else name  # then the classifier cannot tell
    crowd = number % CROWD  # two shadows of one intent, and then one of another
    intent = ("review", "review", "fixed")[crowd] if crowd < 3 else random.choice(("", "", "review", "fixed", "quiet"))
    return wire.InferRequest(
        request_id=f"r{number}",
        prompt=f"{name} {percent} sort {number}{rule}",
        intent=intent,
        exclude_specialists=[random.choice(NAMES)] if random.random() < 0.1 else [],
        adapters=["left"] if random.random() < 0.05 else [],
        max_tokens=random.randint(1, 12) if crowd >= 3 and random.random() < 0.9 else random.randint(20, 60),
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
    """Overload, small budgets, demotions, cancellations, slow and killed replicas make shadows end in every way."""
    random, seen = Random(number), Seen()
    verdicts = Verdicts(Random(1))
    sim = SimEnsemble(
        ensemble(),
        {name: spec_of(name, SETUP) for name in NAMES},
        SETUP.replicas,
        seed=7,
        classifier=ThreeNames(NAMES),
        verdicts=verdicts.of,
    )

    async def live() -> None:
        await sim.start()
        tasks = []
        for index in range(number):
            if index % 200 == 100:
                sim.loop.call_later(2.0, verdicts.spoil(FIRST))
            if index % 40 == 20:
                disturb(sim, random)
            tasks.append(asyncio.ensure_future(ask(sim, draw_request(index, random), seen, random)))
            await asyncio.sleep(random.expovariate(BURST if index % 300 >= 250 or index % CROWD < 3 else RATE))
        await asyncio.gather(*tasks)
        await asyncio.sleep(5)
        await check()
        await sim.stop()

    async def check() -> None:
        router, ends, sent = sim.router, Counter[tuple[str, str]](), Counter[str]()
        num_planned = num_lost = 0
        for index in range(number):
            name = f"r{index}"
            kept = await router.service.receipts.get(name)
            assert kept is not None or name not in seen.replicas
            if kept is None:
                continue
            assert seen.receipts.get(name, kept) == kept, "the caller and the store must have the same receipt"
            shadow = kept.between.shadow
            at = seen.replicas.get(name, [])
            is_lost = bool(shadow.replica) and not at and shadow.outcome != "answered"
            assert is_lost or at == ([shadow.replica] if shadow.replica else []), (name, shadow)
            num_lost += is_lost
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
        assert num_lost <= MOST_LOST * sum(sent.values())
        for end in ("no_budget", "no_slot", "no_replica", "same_lane", "no_answer"):
            assert ended["shed", end] == ends["shed", end], "a shadow that was not sent has ended before its receipt"
        print(dict(ended), dict(sent), num_lost)
        assert {"low_confidence", "rule_routed", "demoted"} <= {why for why, each in sent.items() if each}
        missing = {end: ended[end] for end, least in ENDINGS.items() if ended[end] < least * number / 600}
        assert not missing
        assert shadow_counts_to_wire(router.services.shadows, router.services.evaluations) == counts

    monkeypatch.setattr(answers, "_FIXED_OVERHEAD", 0)
    seen.watch(sim, monkeypatch)
    with sim:
        sim.run(live())
