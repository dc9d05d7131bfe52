"""Random events: ladders of all intents and specialists stay within their bounds, and only demand moves them."""

from random import Random

import pytest

from admission.demand import DemandClass
from router.control.demand import DemandOutcome
from tests.router.control.harness import ENSEMBLE, running_control

KINDS = (DemandClass(2), DemandClass(5, 40), DemandClass(5, 80), DemandClass(8))


@pytest.mark.parametrize("seed", range(3))
async def test_only_places_with_demand_move_and_all_return(seed: int) -> None:
    random = Random(seed)
    places = [("codegen", "algo"), ("review", "algo"), ("unspecified", "stl")]
    moved: set[tuple[str, str]] = set()
    async with running_control("memory") as harness:
        control = harness.control
        for _ in range(8):
            rates = {place: random.choice([0, 1, 6]) for place in places}
            refused = random.choice([0.0, 0.1, 0.6])
            for _ in range(12):
                for (intent, specialist), rate in rates.items():
                    for _ in range(rate):
                        outcome: DemandOutcome = "refused" if random.random() < refused else "accepted"
                        control.record_demand(specialist, intent, random.choice(KINDS), outcome)
                await harness.tick()
                ladders = control.escalation()
                moved |= {place for place, ladder in ladders.items() if ladder.level}
                assert ladders.keys() <= set(places)
                for (intent, specialist), ladder in ladders.items():
                    knobs = control.fleet_status.knobs(intent, specialist)
                    assert knobs.threshold <= ENSEMBLE.escalation.max_threshold and knobs.floor <= 8
                    assert bool(ladder.threshold_steps) == knobs.is_escalated
        rules = ENSEMBLE.escalation
        await harness.run(rules.sustain + rules.relax + 3)
        assert moved and not any(ladder.level for ladder in control.escalation().values())
        assert not control.fleet_status.knob_overrides


async def test_an_intent_that_no_step_relieves_is_explained_beside_its_floor() -> None:
    def load() -> None:
        outcomes: tuple[DemandOutcome, ...] = ("accepted", "refused", "refused")
        for outcome in outcomes:
            harness.control.record_demand("algo", "codegen", KINDS[0], outcome)
        for _ in range(2):
            harness.control.record_demand("algo", "codegen", KINDS[3], "accepted")

    def reasons() -> list[str]:
        return [each.why for each in harness.control.knobs() if each.name == "codegen/algo.priority_floor"]

    async with running_control("memory") as harness:
        await harness.run(3, load)
        assert not reasons(), "the load may be brief"
        await harness.run(10, load)
        (why,) = reasons()
        assert "no step of escalation helps" in why and "a floor of 3 would withhold" in why
        assert not any(ladder.level for ladder in harness.control.escalation().values())
        await harness.run(ENSEMBLE.escalation.sustain + 2)
        assert not reasons()
