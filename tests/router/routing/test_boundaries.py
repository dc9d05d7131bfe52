"""Exact boundaries: a confidence equal to a threshold is sufficient, and a priority equal to a floor is admitted."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octet.config.ensemble import ShadowConfig
from octet.v1 import error_pb2 as wire
from router.routing.dispatch_plan import FleetStatus, IntentKnobs
from tests.router.routing.ensembles import ENSEMBLE
from tests.router.routing.sample_states import PlanCase, never, plan_case, plan_cases, with_reported_lanes

SURE = {"algo": 0.75, "stl": 0.2}


def turned(case: PlanCase, knobs: IntentKnobs) -> PlanCase:
    places = {(case.ask.intent or "unspecified", name): knobs for name in case.status.specialists}
    return replace(case, status=replace(case.status, knob_overrides=places))


@pytest.mark.parametrize(("nudge", "has_shadow"), [(-1e-9, False), (0.0, False), (1e-9, True)])
def test_confidence_equal_to_the_threshold_gets_no_shadow(nudge: float, has_shadow: bool) -> None:
    ensemble = replace(ENSEMBLE, shadow=ShadowConfig(fresh_rate=0.0, demoted_rate=0.0))
    case = plan_case(ensemble, with_reported_lanes(FleetStatus.initial(ensemble)), sure=SURE)
    confidence = case.decision.confidence
    assert confidence is not None and case.decision.second_choice
    plan = turned(case, IntentKnobs(confidence + nudge, 0)).plan(never)
    assert (plan.shadow is not None) == has_shadow
    assert plan.shadow is None or plan.shadow.why == "low_confidence"


@pytest.mark.parametrize(("nudge", "moves"), [(-1e-9, False), (0.0, False), (1e-9, True)])
def test_confidence_equal_to_the_threshold_is_not_moved(nudge: float, moves: bool) -> None:
    case = plan_case(ENSEMBLE, sure=SURE)
    confidence, primary = case.decision.confidence, case.decision.primary
    assert confidence is not None
    knobs = IntentKnobs(confidence + nudge, 0, "escalation", "", is_escalated=True)
    place = (case.ask.intent or "unspecified", primary)
    plan = replace(case, status=replace(case.status, knob_overrides={place: knobs})).plan(never)
    assert (plan.candidates[0].specialist != primary) == moves


@settings(max_examples=100)
@given(plan_cases(), st.integers(0, 9))
def test_priority_equal_to_the_floor_is_admitted(case: PlanCase, floor: int) -> None:
    plan = turned(case, IntentKnobs(0.0, floor)).plan(never)
    if case.ask.priority < floor:
        assert not plan.candidates
    elif plan.refusal is not None:
        assert plan.refusal.error.reason != wire.ERROR_REASON_BELOW_FLOOR
