"""Properties of the dispatch plan for random requests and fleet states."""

from dataclasses import replace
from random import Random
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.demand import DemandClass
from admission.knobs import UNSPECIFIED_INTENT
from octet.config.ensemble import CorrectnessConfig, IntentConfig, RuleConfig, ShadowConfig
from octet.v1 import error_pb2 as wire
from router.routing.dispatch_plan import (
    MAX_BETWEEN_BYTES,
    Candidate,
    FleetStatus,
    IntentKnobs,
    LaneStatus,
    choose_shadow,
)
from router.routing.policy import limit_adapters, requested_adapters
from tests.router.routing.ensembles import ENSEMBLE, opinion
from tests.router.routing.sample_requests import validated_request
from tests.router.routing.sample_states import (
    DICE,
    Dice,
    PlanCase,
    always,
    demote,
    never,
    plan_case,
    plan_cases,
    repeating_dice,
    with_fresh_lane,
    with_reported_lanes,
)

QUIET = replace(
    ENSEMBLE,
    shadow=ShadowConfig(fresh_rate=0.5, demoted_rate=0.5),
    correctness=CorrectnessConfig(sample_rate=0.1, fresh_sample_rate=1.0),
)

_SAID = {"": "the configuration", "escalation": "escalation", "operator": "an operator"}


def stand_ins(case: PlanCase) -> list[str]:
    """Return the specialists that may answer instead of the primary, in order, computed without the code under test."""
    second = case.decision.second_choice
    names = [second] if case.ask.force else [case.fallback(case.decision.primary), second]
    return [name for name in names if name and name != case.decision.primary]


def lead_of(case: PlanCase) -> str:
    """Return the specialist that is tried first if nothing is escalated, or an empty string if none can answer."""
    able = [name for name in stand_ins(case) if can_stand_in(case, name)]
    primary = case.decision.primary
    if case.serves(primary):
        return primary
    if not case.status.specialists[primary].is_last_resort:
        return next(iter(able), "")
    return next((name for name in able if not case.status.specialists[name].unfit_reason), primary)


def can_stand_in(case: PlanCase, name: str) -> bool:
    return case.serves(name) and set(case.ask.adapters) <= set(case.status.specialists[name].adapter_names)


@settings(max_examples=250)
@given(plan_cases(), DICE)
def test_only_serving_specialists_that_the_caller_allows_answer(case: PlanCase, dice: Dice) -> None:
    plan = case.plan(dice)
    names = [way.specialist for way in plan.candidates]
    alone = lead_of(case) if names[:1] == [case.decision.primary] else ""
    assert all((case.serves(name) or name == alone) and name not in case.ask.exclude for name in names)
    assert len(set(names)) == len(names) <= 2
    assert set(names) <= {case.decision.primary, *stand_ins(case)}
    if case.ask.force:
        assert set(names) <= set(case.ask.force)


@settings(max_examples=250)
@given(plan_cases(), DICE)
def test_the_primary_comes_before_its_fallbacks_and_the_second_choice_relieves_it(case: PlanCase, dice: Dice) -> None:
    """The primary comes first if it serves, otherwise the first fallback that serves; if none does, a
    last resort does. Under escalation, an uncertain request may go to the second choice first."""
    plan = case.plan(dice)
    primary = case.decision.primary
    lead = lead_of(case)
    if not lead:
        assert plan.refusal is not None and plan.refusal.error.reason == wire.ERROR_REASON_DEMOTED
    elif case.ask.priority < case.floor(lead):
        refusal = plan.refusal or plan.otherwise
        assert refusal is not None and refusal.error.reason == wire.ERROR_REASON_BELOW_FLOOR
        assert plan.is_offer == bool(plan.candidates)
        configured = case.status.configured_knobs[case.ask.intent or "unspecified"].floor
        is_raised = case.status.knobs(case.ask.intent, lead).floor_by == "escalation"
        assert plan.is_withheld == (is_raised and case.ask.priority >= configured), "only escalation withholds"
        assert [way.specialist for way in plan.candidates] in ([], [case.decision.second_choice])
        assert plan.shadow is None
    elif not plan.candidates:
        assert plan.refusal is not None and plan.refusal.error.reason == wire.ERROR_REASON_NO_REPLICA
        assert case.status.specialists[lead].unfit_reason in plan.refusal.error.message
    elif plan.candidates[0].specialist != lead:
        knobs = case.status.knobs(case.ask.intent, primary)
        confidence = case.decision.confidence
        assert lead == primary and [way.specialist for way in plan.candidates] == [
            case.decision.second_choice,
            primary,
        ]
        assert knobs.is_escalated and plan.is_offer and plan.is_withheld
        assert confidence is not None and confidence < knobs.threshold
        assert not case.status.knobs(case.ask.intent, case.decision.second_choice).is_escalated
        assert plan.shadow is None
    else:
        assert not plan.is_offer and not plan.is_withheld
    assert (plan.refusal is None) == bool(plan.candidates)
    first = plan.candidates[0].specialist if plan.candidates else primary
    assert plan.between.instead_of == ("" if first == primary else primary)
    assert bool(plan.between.why) == (first != primary or (bool(plan.candidates) and not case.serves(primary)))
    to_ask = first if plan.candidates else lead
    assert plan.between.lead == ("" if to_ask == primary else to_ask), (
        "the first specialist must be named even if it was unavailable"
    )


@settings(max_examples=250)
@given(plan_cases(), DICE)
def test_the_second_candidate_serves_and_admits_the_priority(case: PlanCase, dice: Dice) -> None:
    plan = case.plan(dice)
    for way in plan.candidates:
        assert case.ask.priority >= case.floor(way.specialist)
    second = case.decision.second_choice
    is_led = plan.refusal is None or plan.refusal.error.reason == wire.ERROR_REASON_BELOW_FLOOR
    if is_led and second and case.serves(second) and case.ask.priority >= case.floor(second):
        is_unfit = bool(case.status.specialists[second].unfit_reason)
        is_offered = second in [way.specialist for way in plan.candidates]
        assert is_offered or is_unfit, "no request is refused that the second choice may answer"


@given(plan_cases())
def test_a_refusal_names_reason_and_limits(case: PlanCase) -> None:
    plan = case.plan()
    if plan.refusal is None:
        return
    error = plan.refusal.error
    assert plan.shadow is None and not plan.sample
    if error.reason == wire.ERROR_REASON_NO_REPLICA:
        assert plan.refusal.code is grpc.StatusCode.UNAVAILABLE and "may answer" in error.message
    elif error.reason == wire.ERROR_REASON_DEMOTED:
        assert plan.refusal.code is grpc.StatusCode.UNAVAILABLE
        assert all(name in error.message for name in (case.decision.primary, *stand_ins(case)))
    else:
        assert plan.refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.field == "priority" and error.value == str(case.ask.priority)
        said = (case.ask.intent or UNSPECIFIED_INTENT, str(plan.between.priority_floor), str(case.ask.priority))
        assert all(word in error.message for word in said)
        who = case.status.knobs(case.ask.intent, lead_of(case)).floor_by
        assert f"set by {_SAID[who]})" in error.message
    assert not error.HasField("retry_after_ms")


@settings(max_examples=250)
@given(plan_cases(), DICE)
def test_a_shadow_is_ordered_only_for_its_reason(case: PlanCase, dice: Dice) -> None:
    plan = case.plan(dice)
    if plan.shadow is None:
        return
    way, why = plan.shadow.candidate, plan.shadow.why
    status = case.status.specialists[way.specialist]
    lead = plan.candidates[0].specialist
    assert way.lane_id and way.lane_id != plan.candidates[0].lane_id and way.specialist not in case.ask.exclude
    assert not case.ask.adapters and plan.sample
    if case.ask.force:
        assert way.specialist in case.ask.force
    is_candidate = status.candidate is not None and way.lane_id == status.candidate.lane_id
    if why == "demoted":
        assert way.specialist == case.decision.primary != lead
        assert not status.serves and way.lane_id == status.lane.lane_id
    elif why == "low_confidence":
        confidence = case.decision.confidence
        threshold = case.status.knobs(case.ask.intent, lead).threshold
        assert lead == case.decision.primary and status.serves and not is_candidate
        assert confidence is not None and confidence < threshold
    else:
        assert is_candidate or (status.serves and case.status.specialists[lead].lane.fresh)
        assert not is_candidate or way.specialist in (lead, case.decision.primary)


@settings(max_examples=250)
@given(plan_cases(), DICE)
def test_a_plan_uses_the_callers_adapters_or_those_of_the_lane(case: PlanCase, dice: Dice) -> None:
    """The number of adapters must stay within the caller's limit."""
    plan = case.plan(dice)
    ask = case.ask
    for way in plan.candidates:
        status = case.status.specialists[way.specialist]
        assert way.revision == status.lane.revision
        assert way.excluded == status.lane.unfit | case.status.drained
        assert len(way.adapters) == len(way.names) <= (99 if ask.max_experts is None else ask.max_experts - 1)
        if ask.adapters:
            assert way.names == limit_adapters(ask.adapters, ask.max_experts) and not way.lane_id
            assert way.adapters == tuple(status.adapter_names.get(name, name) for name in way.names)
        else:
            assert way.adapters == status.lane.load_names[: len(way.adapters)]
            assert way.lane_id == (status.lane.lane_id if len(way.adapters) == len(status.lane.adapters) else "")
    if ask.adapters:
        assert plan.shadow is None and not plan.sample


@given(plan_cases(initial=True))
def test_without_changes_the_plan_follows_the_decision(case: PlanCase) -> None:
    ask, decision = case.ask, case.decision
    plan = case.plan()
    if plan.refusal is not None:
        assert plan.refusal.error.reason == wire.ERROR_REASON_BELOW_FLOOR
        return
    assert plan.candidates[0].specialist == decision.primary and plan.candidates[0].names == decision.adapters
    for way in plan.candidates:
        assert way.adapters == limit_adapters(
            requested_adapters(ask, case.ensemble.specialist(way.specialist)), ask.max_experts
        )
    assert plan.between.correctness == "closed" and not plan.between.why and not plan.between.knobs_by
    assert not any(way.lane_id for way in plan.candidates), "the lanes of the replicas are not known yet"
    assert plan.shadow is None and not plan.sample and not plan.between.lane


@given(plan_cases(), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=4))
def test_the_plan_is_deterministic(case: PlanCase, rolls: list[float]) -> None:
    one, other = case.plan(repeating_dice(*rolls)), case.plan(repeating_dice(*rolls))
    assert (one.candidates, one.shadow, one.sample, one.between) == (
        other.candidates,
        other.shadow,
        other.sample,
        other.between,
    )


@given(plan_cases(), st.sampled_from(["x", "ß", "😀"]), st.integers(1, 300))
def test_the_plan_fits_in_a_receipt(case: PlanCase, letter: str, length: int) -> None:
    long = letter * length
    specialists = {
        name: replace(
            each,
            reason=long,
            candidate=LaneStatus(2, "c", tuple((long + str(index), "load") for index in range(4))),
        )
        for name, each in case.status.specialists.items()
    }
    knobs = {key: replace(each, by=long) for key, each in case.status.knob_overrides.items()}
    status = replace(case.status, specialists=specialists, knob_overrides=knobs)
    assert replace(case, status=status).plan(always).between.ByteSize() <= MAX_BETWEEN_BYTES


def test_the_longest_names_fit_in_a_receipt() -> None:
    names = {name: f"{name}{'n' * 64}"[:64] for name in ("algo", "stl")}
    ensemble = replace(
        QUIET,
        specialists=tuple(
            replace(each, name=names.get(each.name, each.name), fallback=names.get(each.fallback or "", each.fallback))
            for each in QUIET.specialists
        ),
        intents=(),
        rules=(),
    )
    status = demote(with_reported_lanes(FleetStatus.initial(ensemble)), names["algo"])
    wordy = replace(status.specialists[names["algo"]], reason="b" * 300, correctness="shadow_only")
    wordy = replace(wordy, candidate=LaneStatus(2, "c", tuple((f"{i}" * 64, "load") for i in range(4))))
    status = replace(
        status,
        specialists={**status.specialists, names["algo"]: wordy},
        knob_overrides={(UNSPECIFIED_INTENT, names["stl"]): IntentKnobs(0.9, 1, "b" * 64)},
    )
    between = plan_case(ensemble, status, sure={names["algo"]: 0.9}).plan(always).between
    assert between.instead_of == names["algo"] and between.shadow.adapters and between.knobs_by
    assert 300 < between.ByteSize() <= MAX_BETWEEN_BYTES


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5, 1.0])
def test_random_rates_are_respected(rate: float) -> None:
    ensemble = replace(
        QUIET,
        shadow=ShadowConfig(fresh_rate=1 - rate, demoted_rate=rate),
        correctness=CorrectnessConfig(sample_rate=rate, fresh_sample_rate=1 - rate),
    )
    random = Random(5)
    plain = plan_case(ensemble, intent="codegen", sure={"algo": 0.9})
    hurt = replace(plain, status=demote(plain.status, "algo"))
    young = replace(plain, status=with_fresh_lane(plain.status, "algo"))
    lonely = replace(
        young, decision=replace(young.decision, second_choice=""), ask=validated_request(exclude_specialists=["stl"])
    )
    sampled = [plain.plan(random.random).sample for _ in range(2000)]
    demoted = [hurt.plan(random.random).shadow for _ in range(2000)]
    fresh = [young.plan(random.random).shadow for _ in range(2000)]
    judged = [lonely.plan(random.random).sample for _ in range(2000)]
    assert share_of(sampled) == pytest.approx(rate, abs=0.04)
    assert share_of(demoted) == pytest.approx(rate, abs=0.04)
    assert share_of(fresh) == pytest.approx(1 - rate, abs=0.04)
    assert share_of(judged) == pytest.approx(1 - rate, abs=0.04)
    assert {each.why for each in demoted if each is not None} <= {"demoted"}
    assert {each.why for each in fresh if each is not None} <= {"fresh_lane"}


def share_of(with_reported_lanes: list[Any]) -> float:
    return sum(bool(each) for each in with_reported_lanes) / len(with_reported_lanes)


def test_forced_request_gets_no_shadow() -> None:
    young = with_fresh_lane(with_reported_lanes(FleetStatus.initial(QUIET)), "algo")
    open_to_all = plan_case(QUIET, young).plan(always)
    assert open_to_all.shadow is not None and open_to_all.shadow.candidate.specialist == "stl"
    assert plan_case(QUIET, young, force_specialists=["algo"]).plan(always).shadow is None
    listed = plan_case(QUIET, young, force_specialists=["algo", "debug"]).plan(always)
    assert listed.shadow is not None and listed.shadow.candidate.specialist == "debug"


def test_a_fallback_is_not_relieved() -> None:
    case = plan_case(QUIET, sure={"algo": 0.6, "debug": 0.3})
    pressed = {(UNSPECIFIED_INTENT, "stl"): IntentKnobs(0.9, 0, "escalation", is_escalated=True)}
    status = replace(demote(case.status, "algo"), knob_overrides=pressed)
    plan = replace(case, status=status).plan(never)
    assert [way.specialist for way in plan.candidates] == ["stl", "debug"]
    assert plan.shadow is None, "the confidence is about algo, not stl"


def test_the_fallback_answers_for_the_intent() -> None:
    case = plan_case(QUIET, intent="build-fix")
    assert [way.specialist for way in case.plan().candidates] == ["build", "debug"]
    plan = replace(case, status=demote(case.status, "build")).plan()
    assert [way.specialist for way in plan.candidates] == ["debug"]
    assert plan.between.instead_of == "build" and plan.between.correctness == "shadow_only"
    assert plan.between.why == "fallback debug is used because build passed 3 of 40"


def test_the_fallback_of_the_intent_comes_before_that_of_the_specialist() -> None:
    case = plan_case(QUIET, intent="build-fix")
    intents = tuple(
        replace(each, fallback="stl") if each.name == "build-fix" else each for each in case.ensemble.intents
    )
    case = replace(case, ensemble=replace(case.ensemble, intents=intents))
    first = replace(case, status=demote(case.status, "build")).plan()
    assert first.candidates[0].specialist == "stl"
    assert first.between.why == "fallback stl of the intent build-fix is used because build passed 3 of 40"
    own = replace(case, status=demote(case.status, "build", "stl")).plan()
    assert [way.specialist for way in own.candidates] == ["debug"]


def test_a_demoted_fallback_leaves_the_second_choice_or_a_refusal() -> None:
    case = plan_case(QUIET, sure={"algo": 0.6, "debug": 0.3})
    both = demote(case.status, "algo", "stl")
    assert [way.specialist for way in replace(case, status=both).plan().candidates] == ["debug"]
    refusal = replace(case, status=demote(both, "debug")).plan().refusal
    assert refusal is not None and refusal.error.reason == wire.ERROR_REASON_DEMOTED
    assert "algo passed 3 of 40" in refusal.error.message
    assert (
        "stl cannot be the fallback" in refusal.error.message
        and "debug cannot be the fallback" in refusal.error.message
    )


def test_a_last_resort_answers_and_is_judged_until_something_else_serves() -> None:
    case = plan_case(QUIET, sure={"algo": 0.6, "debug": 0.3})
    demoted = demote(with_reported_lanes(case.status), "algo", "stl", "debug")
    last = replace(demoted.specialists["algo"], is_last_resort=True)
    case = replace(case, status=replace(demoted, specialists={**demoted.specialists, "algo": last}))
    plan = case.plan()
    assert [way.specialist for way in plan.candidates] == ["algo"] and plan.sample
    assert plan.between.why == "nothing else serves; algo passed 3 of 40"
    specialists = {**case.status.specialists, "stl": replace(last, name="stl", serves=True)}
    better = replace(case, status=replace(case.status, specialists=specialists)).plan()
    assert better.candidates[0].specialist == "stl"
    for gone in ({"unfit_reason": "all replicas of stl are drained"}, {"is_reachable": False}):
        absent = {**specialists, "stl": replace(specialists["stl"], **gone)}
        alone = replace(case, status=replace(case.status, specialists=absent)).plan()
        assert [way.specialist for way in alone.candidates] == ["algo"], "a fallback without replicas answers nothing"


def test_only_forced_specialists_answer() -> None:
    hurt = demote(with_reported_lanes(FleetStatus.initial(QUIET)), "algo")
    refusal = plan_case(QUIET, hurt, force_specialists=["algo"]).plan().refusal
    assert refusal is not None and refusal.error.field == "force_specialists" and refusal.error.value == "algo"
    assert "force_specialists" in refusal.error.message
    listed = plan_case(QUIET, hurt, force_specialists=["algo", "debug"]).plan(always)
    assert [way.specialist for way in listed.candidates] == ["debug"]
    assert listed.shadow is not None and listed.shadow.candidate.specialist == "algo"


def test_an_excluded_fallback_does_not_answer() -> None:
    case = plan_case(
        QUIET,
        demote(with_reported_lanes(FleetStatus.initial(QUIET)), "algo"),
        exclude_specialists=["stl"],
        sure={"algo": 0.95},
    )
    assert case.decision.primary == "algo"
    refusal = case.plan().refusal
    assert refusal is not None and "no fallback is configured" in refusal.error.message


def test_a_fallback_without_the_named_adapter_does_not_answer() -> None:
    status = demote(with_reported_lanes(FleetStatus.initial(QUIET)), "algo")
    assert plan_case(QUIET, status, adapters=["mine"]).plan().refusal is not None
    knows = replace(status.specialists["stl"], adapter_names={"mine": "mine.7"})
    status = replace(status, specialists={**status.specialists, "stl": knows})
    (way,) = plan_case(QUIET, status, adapters=["mine"]).plan().candidates
    assert (way.specialist, way.adapters, way.names, way.lane_id) == ("stl", ("mine.7",), ("mine",), "")


def test_under_pressure_the_second_choice_goes_first() -> None:
    case = plan_case(QUIET, intent="codegen", sure={"algo": 0.6, "debug": 0.3})
    assert case.plan(always).shadow is None
    pressed = {("codegen", "algo"): IntentKnobs(0.65, 0, "escalation", is_escalated=True)}
    plan = replace(case, status=replace(case.status, knob_overrides=pressed)).plan(always)
    assert [way.specialist for way in plan.candidates] == ["debug", "algo"] and plan.shadow is None
    assert plan.between.instead_of == "algo" and "escalation" in plan.between.why and "0.60" in plan.between.why
    both = {**pressed, ("codegen", "debug"): IntentKnobs(0.65, 0, "escalation", is_escalated=True)}
    plan = replace(case, status=replace(case.status, knob_overrides=both)).plan(always)
    assert [way.specialist for way in plan.candidates] == ["algo", "debug"]
    assert plan.shadow is not None and plan.shadow.why == "low_confidence"
    lowered = {("codegen", "algo"): IntentKnobs(0.3, 0, "operator", is_escalated=True)}
    plan = replace(case, status=replace(case.status, knob_overrides=lowered)).plan(always)
    assert [way.specialist for way in plan.candidates] == ["algo", "debug"] and plan.shadow is None


def test_a_threshold_set_by_an_operator_affects_only_shadows() -> None:
    case = plan_case(QUIET, intent="codegen", sure={"algo": 0.6, "debug": 0.3})
    by_hand = {("codegen", "algo"): IntentKnobs(0.9, 0, "operator")}
    plan = replace(case, status=replace(case.status, knob_overrides=by_hand)).plan(never)
    assert [way.specialist for way in plan.candidates] == ["algo", "debug"] and not plan.between.instead_of
    assert plan.shadow is not None and (plan.shadow.candidate.specialist, plan.shadow.why) == (
        "debug",
        "low_confidence",
    )
    also_pressed = {("codegen", "algo"): IntentKnobs(0.9, 0, "operator", is_escalated=True)}
    plan = replace(case, status=replace(case.status, knob_overrides=also_pressed)).plan(never)
    assert [way.specialist for way in plan.candidates] == ["debug", "algo"] and plan.shadow is None
    assert "escalation" in plan.between.why and "below 0.90" in plan.between.why


def test_refusal_says_why_no_specialist_can_answer() -> None:
    case = plan_case(QUIET, sure={"algo": 0.6, "debug": 0.3})

    def without(*names: str) -> PlanCase:
        gone = {name: replace(case.status.specialists[name], unfit_reason=f"{name} is drained") for name in names}
        status = replace(case.status, specialists={**case.status.specialists, **gone})
        return replace(case, status=status)

    assert [way.specialist for way in without("algo").plan().candidates] == ["algo", "debug"]
    refusal = without("algo", "debug").plan().refusal
    assert refusal is not None and refusal.error.reason == wire.ERROR_REASON_NO_REPLICA
    assert refusal.error.message == "algo is drained; debug is drained"


def test_a_candidate_shadows_its_own_specialist() -> None:
    status = with_reported_lanes(FleetStatus.initial(QUIET))
    candidate = LaneStatus(2, "algo|2|x", (("my-lora", "my-lora.2"),), "r2", fresh=True)
    status = replace(
        status,
        specialists={**status.specialists, "algo": replace(status.specialists["algo"], candidate=candidate)},
    )
    plan = plan_case(QUIET, status).plan(always)
    assert plan.candidates[0].adapters == ("fast", "small")
    assert plan.shadow is not None and plan.shadow.why == "fresh_lane"
    way = plan.shadow.candidate
    assert (way.specialist, way.adapters, way.revision, way.lane_id) == ("algo", ("my-lora.2",), "r2", "algo|2|x")
    assert list(plan.between.shadow.adapters) == ["my-lora"]
    assert plan_case(QUIET, status).plan(never).shadow is None


def test_specialists_that_may_answer() -> None:
    status = with_reported_lanes(FleetStatus.initial(QUIET))
    assert status.may_answer("algo-0", "r1", "algo")
    lane = replace(status.specialists["algo"].lane, revision="r1", unfit=frozenset({"algo-2"}))
    status = replace(
        status,
        specialists={**status.specialists, "algo": replace(status.specialists["algo"], lane=lane)},
        drained=frozenset({"algo-1"}),
    )
    seen = {(f"algo-{number}", revision) for number in range(3) for revision in ("r1", "r2", "")}
    assert {each for each in seen if status.may_answer(*each, "algo")} == {("algo-0", "r1"), ("algo-0", "")}
    (way, *_) = plan_case(QUIET, status).plan().candidates
    assert {each for each in seen if way.fits(*each, {"fast", "small", "more"})} == {("algo-0", "r1"), ("algo-0", "")}
    assert not way.fits("algo-0", "r1", {"fast"}), "the replica lacks an adapter of the lane"
    (chosen, *_) = plan_case(QUIET, status, adapters=["mine"]).plan().candidates
    assert chosen.fits("algo-0", "r1", ()), "the replica must decide about the caller's adapters"
    assert not chosen.fits("algo-0", "r2", ()) and not chosen.fits("algo-1", "r1", ())


RULED = replace(
    ENSEMBLE,
    shadow=ShadowConfig(fresh_rate=0.0, demoted_rate=0.0),
    intents=(IntentConfig("unspecified", shadow_rate=0.5), IntentConfig("fixed", specialist="stl", shadow_rate=1.0)),
    rules=(RuleConfig("ruled", "algo", contains=("BY RULE",)),),
)


@pytest.mark.parametrize(
    ("asked", "roll", "why"),
    [
        ({"prompt": "BY RULE"}, 0.4, "rule_routed"),
        ({"prompt": "BY RULE"}, 0.6, None),
        ({"intent": "fixed"}, 0.99, "rule_routed"),
        ({"intent": "fixed", "adapters": ["fast"]}, 0.0, None),
        ({"prompt": "BY RULE", "force_specialists": ["stl"]}, 0.0, None),
        ({"prompt": "anything"}, 0.0, None),
    ],
)
def test_what_a_rule_or_an_intent_routed_is_shadowed_at_the_intents_rate(
    asked: dict[str, Any], roll: float, why: str | None
) -> None:
    case = plan_case(RULED, sure={"algo": 0.9}, **asked)
    plan = case.plan(repeating_dice(roll))
    assert (None if plan.shadow is None else plan.shadow.why) == why
    if plan.shadow is not None:
        assert plan.shadow.candidate == Candidate(""), "the classifier has not been asked yet"
        assert plan.between.shadow.why == why and not plan.between.shadow.specialist and plan.sample


def test_the_classifiers_best_other_specialist_that_serves_gets_the_shadow() -> None:
    scores = {"algo": 0.4, "stl": 0.3, "debug": 0.1}

    def chosen(status: FleetStatus, **asked: Any) -> str:
        case = plan_case(RULED, status, **asked)
        case.ask.decision = case.decision
        order = choose_shadow(case.ask, case.ensemble, case.status, opinion(**scores))
        return "" if order is None else order.candidate.specialist

    status = with_reported_lanes(FleetStatus.initial(RULED))
    by_rule: dict[str, Any] = {"prompt": "BY RULE"}
    assert chosen(status, **by_rule) == "stl"
    assert chosen(status, intent="fixed") == "algo"
    assert chosen(demote(status, "stl"), **by_rule) == "debug"
    assert chosen(status, **by_rule, exclude_specialists=["stl"]) == "debug"
    assert chosen(status, **by_rule, exclude_specialists=["stl", "debug"]) == ""


def test_a_request_below_a_floor_is_offered_to_the_second_choice() -> None:
    case = plan_case(QUIET, intent="codegen", sure={"algo": 0.6, "debug": 0.3}, priority=2)
    raised = {("codegen", "algo"): IntentKnobs(0.3, 4, "escalation", "escalation")}
    plan = replace(case, status=replace(case.status, knob_overrides=raised)).plan(always)
    assert [way.specialist for way in plan.candidates] == ["debug"] and plan.is_offer and plan.shadow is None
    assert plan.is_withheld
    assert plan.refusal is None and plan.otherwise is not None and "set by escalation" in plan.otherwise.error.message
    assert plan.between.instead_of == "algo" and plan.between.why == "priority 2 is below the floor 4 of algo"
    assert (plan.lead, plan.demand) == ("algo", DemandClass(2, 60))
    both = {**raised, ("codegen", "debug"): IntentKnobs(0.3, 3)}
    plan = replace(case, status=replace(case.status, knob_overrides=both)).plan(always)
    assert plan.refusal is not None and not plan.candidates and plan.demand == DemandClass(2)
