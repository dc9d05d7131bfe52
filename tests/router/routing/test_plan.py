"""Properties of the dispatch plan for random requests and fleet states."""

from dataclasses import replace
from random import Random
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.knobs import UNSPECIFIED_INTENT
from octet.config.ensemble import CorrectnessConfig, ShadowConfig
from octet.v1 import error_pb2 as wire
from router.routing.dispatch_plan import MAX_BETWEEN_BYTES, FleetStatus, IntentKnobs, LaneStatus
from router.routing.policy import limit_adapters, requested_adapters
from tests.router.routing.ensembles import ENSEMBLE
from tests.router.routing.sample_requests import received
from tests.router.routing.sample_states import (
    DICE,
    Dice,
    Meeting,
    always,
    demote,
    found,
    freshened,
    meetings,
    met,
    never,
    throwing,
)

QUIET = replace(
    ENSEMBLE,
    shadow=ShadowConfig(fresh_rate=0.5, demoted_rate=0.5),
    correctness=CorrectnessConfig(sample_rate=0.1, fresh_sample_rate=1.0),
)

_SAID = {"": "the configuration", "escalation": "escalation", "operator": "an operator"}


def stand_ins(meeting: Meeting) -> list[str]:
    """Compute the specialists that may answer for the primary, in order, by another method."""
    second = meeting.decision.second_choice
    names = [second] if meeting.ask.force else [meeting.fallback(meeting.decision.primary), second]
    return [name for name in names if name and name != meeting.decision.primary]


def lead_of(meeting: Meeting) -> str:
    """Return the specialist that would be tried first, if any."""
    able = (name for name in stand_ins(meeting) if can_stand_in(meeting, name))
    primary = meeting.decision.primary
    return primary if meeting.serves(primary) else next(able, "")


def can_stand_in(meeting: Meeting, name: str) -> bool:
    return meeting.serves(name) and set(meeting.ask.adapters) <= set(meeting.standing.specialists[name].adapter_names)


@settings(max_examples=250)
@given(meetings(), DICE)
def test_only_serving_specialists_that_the_caller_allows_answer(meeting: Meeting, dice: Dice) -> None:
    plan = meeting.plan(dice)
    names = [way.specialist for way in plan.candidates]
    assert all(meeting.serves(name) and name not in meeting.ask.exclude for name in names)
    assert len(set(names)) == len(names) <= 2
    assert set(names) <= {meeting.decision.primary, *stand_ins(meeting)}
    if meeting.ask.force:
        assert set(names) <= set(meeting.ask.force)


@settings(max_examples=250)
@given(meetings(), DICE)
def test_the_primary_comes_before_its_fallbacks_and_the_second_choice_relieves_it(meeting: Meeting, dice: Dice) -> None:
    """The primary is used if it serves, else the first fallback that serves. The second choice is used under load."""
    plan = meeting.plan(dice)
    primary = meeting.decision.primary
    able = [name for name in stand_ins(meeting) if can_stand_in(meeting, name)]
    lead = primary if meeting.serves(primary) else next(iter(able), "")
    if not lead:
        assert plan.refusal is not None and plan.refusal.error.reason == wire.ERROR_REASON_DEMOTED
    elif meeting.ask.priority < meeting.floor(lead):
        assert plan.refusal is not None and plan.refusal.error.reason == wire.ERROR_REASON_BELOW_FLOOR
    elif not plan.candidates:
        assert plan.refusal is not None and plan.refusal.error.reason == wire.ERROR_REASON_NO_REPLICA
        assert meeting.standing.specialists[lead].unfit_reason in plan.refusal.error.message
    elif plan.candidates[0].specialist != lead:
        knobs = meeting.standing.knobs(meeting.ask.intent, primary)
        confidence = meeting.decision.confidence
        assert lead == primary and [way.specialist for way in plan.candidates] == [
            meeting.decision.second_choice,
            primary,
        ]
        assert knobs.is_escalated
        assert confidence is not None and confidence < knobs.threshold
        assert not meeting.standing.knobs(meeting.ask.intent, meeting.decision.second_choice).is_escalated
        assert plan.shadow is None
    assert (plan.refusal is None) == bool(plan.candidates)
    first = plan.candidates[0].specialist if plan.candidates else primary
    assert plan.between.instead_of == ("" if first == primary else primary)
    assert bool(plan.between.why) == (first != primary)
    to_ask = first if plan.candidates else lead
    assert plan.between.lead == ("" if to_ask == primary else to_ask), "the lead is named even if it was unavailable"


@settings(max_examples=250)
@given(meetings(), DICE)
def test_the_second_candidate_serves_and_admits_the_priority(meeting: Meeting, dice: Dice) -> None:
    plan = meeting.plan(dice)
    for way in plan.candidates:
        assert meeting.ask.priority >= meeting.floor(way.specialist)
    second = meeting.decision.second_choice
    if plan.candidates and second and meeting.serves(second) and meeting.ask.priority >= meeting.floor(second):
        assert second in [way.specialist for way in plan.candidates]


@given(meetings())
def test_a_refusal_names_reason_and_limits(meeting: Meeting) -> None:
    plan = meeting.plan()
    if plan.refusal is None:
        return
    error = plan.refusal.error
    assert plan.shadow is None and not plan.sample
    if error.reason == wire.ERROR_REASON_NO_REPLICA:
        assert plan.refusal.code is grpc.StatusCode.UNAVAILABLE and "may answer" in error.message
    elif error.reason == wire.ERROR_REASON_DEMOTED:
        assert plan.refusal.code is grpc.StatusCode.UNAVAILABLE
        assert all(name in error.message for name in (meeting.decision.primary, *stand_ins(meeting)))
    else:
        assert plan.refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.field == "priority" and error.value == str(meeting.ask.priority)
        said = (meeting.ask.intent or UNSPECIFIED_INTENT, str(plan.between.priority_floor), str(meeting.ask.priority))
        assert all(word in error.message for word in said)
        who = meeting.standing.knobs(meeting.ask.intent, lead_of(meeting)).floor_by
        assert f"set by {_SAID[who]})" in error.message
    assert not error.HasField("retry_after_ms")


@settings(max_examples=250)
@given(meetings(), DICE)
def test_a_shadow_is_ordered_only_for_its_reason(meeting: Meeting, dice: Dice) -> None:
    plan = meeting.plan(dice)
    if plan.shadow is None:
        return
    way, why = plan.shadow.candidate, plan.shadow.why
    standing = meeting.standing.specialists[way.specialist]
    lead = plan.candidates[0].specialist
    assert way.lane_id and way.lane_id != plan.candidates[0].lane_id and way.specialist not in meeting.ask.exclude
    assert not meeting.ask.adapters and plan.sample
    if meeting.ask.force:
        assert way.specialist in meeting.ask.force
    is_candidate = standing.candidate is not None and way.lane_id == standing.candidate.lane_id
    if why == "demoted":
        assert way.specialist == meeting.decision.primary != lead
        assert not standing.serves and way.lane_id == standing.lane.lane_id
    elif why == "low_confidence":
        confidence = meeting.decision.confidence
        threshold = meeting.standing.knobs(meeting.ask.intent, lead).threshold
        assert lead == meeting.decision.primary and standing.serves and not is_candidate
        assert confidence is not None and confidence < threshold
    else:
        assert is_candidate or (standing.serves and meeting.standing.specialists[lead].lane.fresh)
        assert not is_candidate or way.specialist in (lead, meeting.decision.primary)


@settings(max_examples=250)
@given(meetings(), DICE)
def test_a_plan_uses_the_callers_adapters_or_those_of_the_lane(meeting: Meeting, dice: Dice) -> None:
    """The number of adapters stays within the caller's limit."""
    plan = meeting.plan(dice)
    ask = meeting.ask
    for way in plan.candidates:
        standing = meeting.standing.specialists[way.specialist]
        assert way.revision == standing.lane.revision
        assert way.excluded == standing.lane.unfit | meeting.standing.cordoned
        assert len(way.adapters) == len(way.names) <= (99 if ask.max_experts is None else ask.max_experts - 1)
        if ask.adapters:
            assert way.names == limit_adapters(ask.adapters, ask.max_experts) and not way.lane_id
            assert way.adapters == tuple(standing.adapter_names.get(name, name) for name in way.names)
        else:
            assert way.adapters == standing.lane.load_names[: len(way.adapters)]
            assert way.lane_id == (standing.lane.lane_id if len(way.adapters) == len(standing.lane.adapters) else "")
    if ask.adapters:
        assert plan.shadow is None and not plan.sample


@given(meetings(initial=True))
def test_without_changes_the_plan_follows_the_decision(meeting: Meeting) -> None:
    ask, decision = meeting.ask, meeting.decision
    plan = meeting.plan()
    if plan.refusal is not None:
        assert plan.refusal.error.reason == wire.ERROR_REASON_BELOW_FLOOR
        return
    assert plan.candidates[0].specialist == decision.primary and plan.candidates[0].names == decision.adapters
    for way in plan.candidates:
        assert way.adapters == limit_adapters(
            requested_adapters(ask, meeting.ensemble.specialist(way.specialist)), ask.max_experts
        )
    assert plan.between.correctness == "closed" and not plan.between.why and not plan.between.knobs_by
    assert not any(way.lane_id for way in plan.candidates), "the lanes of the replicas are not known yet"
    assert plan.shadow is None and not plan.sample and not plan.between.lane


@given(meetings(), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=4))
def test_the_plan_is_deterministic(meeting: Meeting, rolls: list[float]) -> None:
    one, other = meeting.plan(throwing(*rolls)), meeting.plan(throwing(*rolls))
    assert (one.candidates, one.shadow, one.sample, one.between) == (
        other.candidates,
        other.shadow,
        other.sample,
        other.between,
    )


@given(meetings(), st.sampled_from(["x", "ß", "😀"]), st.integers(1, 300))
def test_the_plan_fits_in_a_receipt(meeting: Meeting, letter: str, length: int) -> None:
    long = letter * length
    specialists = {
        name: replace(
            each,
            reason=long,
            candidate=LaneStatus(2, "c", tuple((long + str(index), "load") for index in range(4))),
        )
        for name, each in meeting.standing.specialists.items()
    }
    knobs = {key: replace(each, by=long) for key, each in meeting.standing.knob_overrides.items()}
    standing = replace(meeting.standing, specialists=specialists, knob_overrides=knobs)
    assert replace(meeting, standing=standing).plan(always).between.ByteSize() <= MAX_BETWEEN_BYTES


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
    standing = demote(found(FleetStatus.initial(ensemble)), names["algo"])
    wordy = replace(standing.specialists[names["algo"]], reason="b" * 300, correctness="shadow_only")
    wordy = replace(wordy, candidate=LaneStatus(2, "c", tuple((f"{i}" * 64, "load") for i in range(4))))
    standing = replace(
        standing,
        specialists={**standing.specialists, names["algo"]: wordy},
        knob_overrides={(UNSPECIFIED_INTENT, names["stl"]): IntentKnobs(0.9, 1, "b" * 64)},
    )
    between = met(ensemble, standing, sure={names["algo"]: 0.9}).plan(always).between
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
    plain = met(ensemble, intent="codegen", sure={"algo": 0.9})
    hurt = replace(plain, standing=demote(plain.standing, "algo"))
    young = replace(plain, standing=freshened(plain.standing, "algo"))
    lonely = replace(
        young, decision=replace(young.decision, second_choice=""), ask=received(exclude_specialists=["stl"])
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


def share_of(found: list[Any]) -> float:
    return sum(bool(each) for each in found) / len(found)


def test_forced_request_gets_no_shadow() -> None:
    young = freshened(found(FleetStatus.initial(QUIET)), "algo")
    open_to_all = met(QUIET, young).plan(always)
    assert open_to_all.shadow is not None and open_to_all.shadow.candidate.specialist == "stl"
    assert met(QUIET, young, force_specialists=["algo"]).plan(always).shadow is None
    listed = met(QUIET, young, force_specialists=["algo", "debug"]).plan(always)
    assert listed.shadow is not None and listed.shadow.candidate.specialist == "debug"


def test_a_fallback_is_not_relieved() -> None:
    meeting = met(QUIET, sure={"algo": 0.6, "debug": 0.3})
    pressed = {(UNSPECIFIED_INTENT, "stl"): IntentKnobs(0.9, 0, "escalation", is_escalated=True)}
    standing = replace(demote(meeting.standing, "algo"), knob_overrides=pressed)
    plan = replace(meeting, standing=standing).plan(never)
    assert [way.specialist for way in plan.candidates] == ["stl", "debug"]
    assert plan.shadow is None, "the confidence is about algo, not stl"


def test_the_fallback_answers_for_the_intent() -> None:
    meeting = met(QUIET, intent="build-fix")
    assert [way.specialist for way in meeting.plan().candidates] == ["build", "debug"]
    plan = replace(meeting, standing=demote(meeting.standing, "build")).plan()
    assert [way.specialist for way in plan.candidates] == ["debug"]
    assert plan.between.instead_of == "build" and plan.between.correctness == "shadow_only"
    assert plan.between.why == "fallback debug is used because build passed 3 of 40"


def test_a_demoted_fallback_leaves_the_second_choice_or_a_refusal() -> None:
    meeting = met(QUIET, sure={"algo": 0.6, "debug": 0.3})
    both = demote(meeting.standing, "algo", "stl")
    assert [way.specialist for way in replace(meeting, standing=both).plan().candidates] == ["debug"]
    refusal = replace(meeting, standing=demote(both, "debug")).plan().refusal
    assert refusal is not None and refusal.error.reason == wire.ERROR_REASON_DEMOTED
    assert "algo passed 3 of 40" in refusal.error.message
    assert (
        "stl cannot be the fallback" in refusal.error.message
        and "debug cannot be the fallback" in refusal.error.message
    )


def test_only_forced_specialists_answer() -> None:
    hurt = demote(found(FleetStatus.initial(QUIET)), "algo")
    refusal = met(QUIET, hurt, force_specialists=["algo"]).plan().refusal
    assert refusal is not None and refusal.error.field == "force_specialists" and refusal.error.value == "algo"
    assert "force_specialists" in refusal.error.message
    listed = met(QUIET, hurt, force_specialists=["algo", "debug"]).plan(always)
    assert [way.specialist for way in listed.candidates] == ["debug"]
    assert listed.shadow is not None and listed.shadow.candidate.specialist == "algo"


def test_an_excluded_fallback_does_not_answer() -> None:
    meeting = met(
        QUIET, demote(found(FleetStatus.initial(QUIET)), "algo"), exclude_specialists=["stl"], sure={"algo": 0.95}
    )
    assert meeting.decision.primary == "algo"
    refusal = meeting.plan().refusal
    assert refusal is not None and "no fallback is configured" in refusal.error.message


def test_a_fallback_without_the_named_adapter_does_not_answer() -> None:
    standing = demote(found(FleetStatus.initial(QUIET)), "algo")
    assert met(QUIET, standing, adapters=["mine"]).plan().refusal is not None
    knows = replace(standing.specialists["stl"], adapter_names={"mine": "mine.7"})
    standing = replace(standing, specialists={**standing.specialists, "stl": knows})
    (way,) = met(QUIET, standing, adapters=["mine"]).plan().candidates
    assert (way.specialist, way.adapters, way.names, way.lane_id) == ("stl", ("mine.7",), ("mine",), "")


def test_under_pressure_the_second_choice_goes_first() -> None:
    meeting = met(QUIET, intent="codegen", sure={"algo": 0.6, "debug": 0.3})
    assert meeting.plan(always).shadow is None
    pressed = {("codegen", "algo"): IntentKnobs(0.65, 0, "escalation", is_escalated=True)}
    plan = replace(meeting, standing=replace(meeting.standing, knob_overrides=pressed)).plan(always)
    assert [way.specialist for way in plan.candidates] == ["debug", "algo"] and plan.shadow is None
    assert plan.between.instead_of == "algo" and "escalation" in plan.between.why and "0.60" in plan.between.why
    both = {**pressed, ("codegen", "debug"): IntentKnobs(0.65, 0, "escalation", is_escalated=True)}
    plan = replace(meeting, standing=replace(meeting.standing, knob_overrides=both)).plan(always)
    assert [way.specialist for way in plan.candidates] == ["algo", "debug"]
    assert plan.shadow is not None and plan.shadow.why == "low_confidence"
    lowered = {("codegen", "algo"): IntentKnobs(0.3, 0, "operator", is_escalated=True)}
    plan = replace(meeting, standing=replace(meeting.standing, knob_overrides=lowered)).plan(always)
    assert [way.specialist for way in plan.candidates] == ["algo", "debug"] and plan.shadow is None


def test_a_threshold_set_by_an_operator_affects_only_shadows() -> None:
    meeting = met(QUIET, intent="codegen", sure={"algo": 0.6, "debug": 0.3})
    by_hand = {("codegen", "algo"): IntentKnobs(0.9, 0, "operator")}
    plan = replace(meeting, standing=replace(meeting.standing, knob_overrides=by_hand)).plan(never)
    assert [way.specialist for way in plan.candidates] == ["algo", "debug"] and not plan.between.instead_of
    assert plan.shadow is not None and (plan.shadow.candidate.specialist, plan.shadow.why) == (
        "debug",
        "low_confidence",
    )
    also_pressed = {("codegen", "algo"): IntentKnobs(0.9, 0, "operator", is_escalated=True)}
    plan = replace(meeting, standing=replace(meeting.standing, knob_overrides=also_pressed)).plan(never)
    assert [way.specialist for way in plan.candidates] == ["debug", "algo"] and plan.shadow is None
    assert "escalation" in plan.between.why and "below 0.90" in plan.between.why


def test_refusal_says_why_no_specialist_can_answer() -> None:
    meeting = met(QUIET, sure={"algo": 0.6, "debug": 0.3})

    def without(*names: str) -> Meeting:
        gone = {name: replace(meeting.standing.specialists[name], unfit_reason=f"{name} is drained") for name in names}
        standing = replace(meeting.standing, specialists={**meeting.standing.specialists, **gone})
        return replace(meeting, standing=standing)

    assert [way.specialist for way in without("algo").plan().candidates] == ["algo", "debug"]
    refusal = without("algo", "debug").plan().refusal
    assert refusal is not None and refusal.error.reason == wire.ERROR_REASON_NO_REPLICA
    assert refusal.error.message == "algo is drained; debug is drained"


def test_a_candidate_shadows_its_own_specialist() -> None:
    standing = found(FleetStatus.initial(QUIET))
    candidate = LaneStatus(2, "algo|2|x", (("my-lora", "my-lora.2"),), "r2", fresh=True)
    standing = replace(
        standing,
        specialists={**standing.specialists, "algo": replace(standing.specialists["algo"], candidate=candidate)},
    )
    plan = met(QUIET, standing).plan(always)
    assert plan.candidates[0].adapters == ("fast", "small")
    assert plan.shadow is not None and plan.shadow.why == "fresh_lane"
    way = plan.shadow.candidate
    assert (way.specialist, way.adapters, way.revision, way.lane_id) == ("algo", ("my-lora.2",), "r2", "algo|2|x")
    assert list(plan.between.shadow.adapters) == ["my-lora"]
    assert met(QUIET, standing).plan(never).shadow is None


def test_specialists_that_may_answer() -> None:
    standing = found(FleetStatus.initial(QUIET))
    assert standing.may_answer("algo-0", "r1", "algo")
    lane = replace(standing.specialists["algo"].lane, revision="r1", unfit=frozenset({"algo-2"}))
    standing = replace(
        standing,
        specialists={**standing.specialists, "algo": replace(standing.specialists["algo"], lane=lane)},
        cordoned=frozenset({"algo-1"}),
    )
    seen = {(f"algo-{number}", revision) for number in range(3) for revision in ("r1", "r2", "")}
    assert {each for each in seen if standing.may_answer(*each, "algo")} == {("algo-0", "r1"), ("algo-0", "")}
    (way, *_) = met(QUIET, standing).plan().candidates
    assert {each for each in seen if way.fits(*each, {"fast", "small", "more"})} == {("algo-0", "r1"), ("algo-0", "")}
    assert not way.fits("algo-0", "r1", {"fast"}), "the replica lacks an adapter of the lane"
    (chosen, *_) = met(QUIET, standing, adapters=["mine"]).plan().candidates
    assert chosen.fits("algo-0", "r1", ()), "the replica decides about the caller's adapters"
    assert not chosen.fits("algo-0", "r2", ()) and not chosen.fits("algo-1", "r1", ())
