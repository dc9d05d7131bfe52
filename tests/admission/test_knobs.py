"""An operator's setting overrides escalation, and a setting with a narrower scope overrides a wider one. Escalation
never lowers a value below the configured one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.escalation import EscalationLadder, KnobBase, KnobSteps
from admission.knobs import (
    ESCALATION,
    UNSPECIFIED_INTENT,
    EffectiveKnobs,
    Knob,
    KnobError,
    KnobName,
    KnobSource,
    OperatorKnob,
    check_knob_value,
    effective_knobs,
)
from octet.config.ensemble import EscalationConfig, IntentConfig

RULES = EscalationConfig()

words = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,12}", fullmatch=True)
knob_names = st.builds(KnobName, words, st.none() | words, st.sampled_from(["shadow_threshold", "priority_floor"]))


@given(name=knob_names)
def test_a_knob_name_survives_parsing(name: KnobName) -> None:
    assert KnobName.parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "review",
        ".priority_floor",
        "priority_floor",
        "review.",
        "review.priority",
        "review.priority_floor ",
        "review/.priority_floor",
        "/debug.priority_floor",
        "review/debug/x.priority_floor",
        "review.Priority_floor",
    ],
)
def test_an_invalid_name_is_refused_with_the_right_shape(text: str) -> None:
    with pytest.raises(KnobError) as refused:
        KnobName.parse(text)
    assert refused.value.field == "name"
    assert "INTENT/SPECIALIST.KNOB" in refused.value.limit
    assert repr(text) in str(refused.value)


def test_names_of_intents_and_specialists_may_contain_dots() -> None:
    assert KnobName.parse("fix.bugs/cpp.17.priority_floor").specialist == "cpp.17"
    assert KnobName.parse("unspecified.shadow_threshold").intent == UNSPECIFIED_INTENT


@pytest.mark.parametrize(
    ("knob", "value", "right"),
    [
        ("shadow_threshold", 0.0, True),
        ("shadow_threshold", 1.0, True),
        ("shadow_threshold", 0.33, True),
        ("shadow_threshold", 1.01, False),
        ("shadow_threshold", -0.01, False),
        ("shadow_threshold", float("nan"), False),
        ("priority_floor", 0.0, True),
        ("priority_floor", 9.0, True),
        ("priority_floor", 10.0, False),
        ("priority_floor", -1.0, False),
        ("priority_floor", 4.5, False),
        ("priority_floor", float("nan"), False),
        ("priority_floor", float("inf"), False),
    ],
)
def test_values_have_their_ranges(knob: Knob, value: float, right: bool) -> None:
    name = KnobName("review", None, knob)
    if right:
        assert check_knob_value(name, value) == value
        return
    with pytest.raises(KnobError, match=knob) as refused:
        check_knob_value(name, value)
    assert refused.value.field == "value"


thresholds = st.none() | st.builds(OperatorKnob, st.floats(0, 1), st.just("ada"), st.just("why"), st.floats(1, 2e9))
floors = st.none() | st.builds(OperatorKnob, st.integers(0, 9), st.just("bob"), st.just("why"), st.floats(1, 2e9))
configurations = st.builds(
    IntentConfig, st.just("review"), shadow_threshold=st.floats(0, 1), priority_floor=st.integers(0, 9)
)


@given(
    configured=configurations,
    steps=st.builds(KnobSteps, st.integers(0, 9), st.integers(0, 9)),
    wide=st.tuples(thresholds, floors),
    near=st.tuples(thresholds, floors),
)
def test_the_narrowest_setting_wins(
    configured: IntentConfig,
    steps: KnobSteps,
    wide: tuple[OperatorKnob | None, OperatorKnob | None],
    near: tuple[OperatorKnob | None, OperatorKnob | None],
) -> None:
    said = {
        KnobName("review", "debug", "shadow_threshold"): near[0],
        KnobName("review", "debug", "priority_floor"): near[1],
        KnobName("review", None, "shadow_threshold"): wide[0],
        KnobName("review", None, "priority_floor"): wide[1],
        KnobName("review", "template", "shadow_threshold"): OperatorKnob(0.123, "eve", "another specialist", 1.0),
        KnobName("other", None, "priority_floor"): OperatorKnob(7, "eve", "another intent", 1.0),
    }
    operator = {name: knob for name, knob in said.items() if knob is not None}
    ladder = EscalationLadder(*steps, since=500.0)
    knobs = effective_knobs(configured, "debug", operator, ladder, RULES)
    configured_pair = (configured.shadow_threshold, configured.priority_floor)
    escalated = KnobBase(*configured_pair).raised(steps, RULES)
    got = ((knobs.threshold, knobs.threshold_turn), (knobs.floor, knobs.floor_turn))
    for i, (value, turn) in enumerate(got):
        word = near[i] or wide[i]
        if word is not None:
            assert (value, turn) == (word.value, KnobSource(word.by, word.why, word.since))
        else:
            assert value == escalated[i] >= configured_pair[i]
            assert turn.by == (ESCALATION if value > configured_pair[i] else "")
            assert turn.since == (500.0 if turn.by else 0.0)
    turns = [turn for turn in (knobs.threshold_turn, knobs.floor_turn) if turn.by]
    assert knobs.by in ({turn.by for turn in turns} or {""})
    assert knobs.is_escalated == (escalated[0] > configured.shadow_threshold), (
        "whether knobs are escalated must not depend on an operator's settings"
    )
    assert all(turn.since <= max(each.since for each in turns if each.by == knobs.by) for turn in turns)


def test_an_operator_may_go_below_the_configuration() -> None:
    operator = {KnobName("review", None, "priority_floor"): OperatorKnob(0.0, "ada", "let all in", 5.0)}
    configured = IntentConfig("review", shadow_threshold=0.5, priority_floor=4)
    knobs = effective_knobs(configured, "debug", operator, EscalationLadder(9, 9), RULES)
    assert (knobs.threshold, knobs.floor, knobs.by) == (0.95, 0, "ada")
    assert isinstance(knobs.floor, int)


def test_without_an_override_the_configuration_counts() -> None:
    configured = IntentConfig("review", shadow_threshold=0.4, priority_floor=2)
    knobs = effective_knobs(configured, "debug", {}, EscalationLadder(), RULES)
    assert knobs == EffectiveKnobs(0.4, 2)
    assert knobs.by == ""


@given(
    knob=st.builds(OperatorKnob, st.floats(0, 9), st.text(max_size=9), st.text(max_size=9), st.floats(0, 2e9)),
)
def test_a_knob_setting_survives_the_store(knob: OperatorKnob) -> None:
    assert OperatorKnob.from_body(json.loads(json.dumps(knob.to_body()))) == knob
    with pytest.raises(ValueError, match="lacks the key"):
        OperatorKnob.from_body({"value": 1.0})
