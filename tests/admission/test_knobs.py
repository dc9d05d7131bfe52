"""An operator's word is last, the nearer one before the wider; nobody else ever goes below the configuration."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.escalation import Ladder, knobs_at, rules_of
from admission.knobs import (
    ESCALATION,
    UNSPECIFIED,
    Configured,
    Knob,
    KnobError,
    KnobName,
    Knobs,
    SetKnob,
    Turn,
    checked,
    configured_of,
    effective,
    parse,
)
from octet.config.ensemble import EscalationConfig, IntentConfig

RULES = rules_of(EscalationConfig())
INTENTS, SPECIALISTS = ("review", "fix.bugs"), ("debug", "cpp.17")

words = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,12}", fullmatch=True)
knob_names = st.builds(KnobName, words, st.none() | words, st.sampled_from(["shadow_threshold", "priority_floor"]))


@given(name=knob_names)
def test_a_name_is_read_as_it_is_written(name: KnobName) -> None:
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
def test_what_is_no_name_is_told_what_one_is(text: str) -> None:
    with pytest.raises(KnobError) as refused:
        parse(text, INTENTS, SPECIALISTS)
    assert refused.value.field == "name"
    assert "INTENT/SPECIALIST.KNOB" in refused.value.limit
    assert repr(text) in str(refused.value)


def test_intents_and_specialists_must_be_known() -> None:
    assert parse("fix.bugs/cpp.17.priority_floor", INTENTS, SPECIALISTS).specialist == "cpp.17"
    assert parse("unspecified.shadow_threshold", INTENTS, SPECIALISTS).intent == UNSPECIFIED
    with pytest.raises(KnobError, match=r"an intent \(fix.bugs, review, unspecified\)"):
        parse("reviews.priority_floor", INTENTS, SPECIALISTS)
    with pytest.raises(KnobError, match=r"a specialist \(cpp.17, debug\)"):
        parse("review/nobody.priority_floor", INTENTS, SPECIALISTS)


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
        assert checked(name, value) == value
        return
    with pytest.raises(KnobError, match=knob) as refused:
        checked(name, value)
    assert refused.value.field == "value"


thresholds = st.none() | st.builds(SetKnob, st.floats(0, 1), st.just("ada"), st.just("why"), st.floats(1, 2e9))
floors = st.none() | st.builds(SetKnob, st.integers(0, 9), st.just("bob"), st.just("why"), st.floats(1, 2e9))
configurations = st.builds(Configured, st.floats(0, 1), st.integers(0, 9))


@given(
    configured=configurations,
    level=st.integers(0, 15),
    wide=st.tuples(thresholds, floors),
    near=st.tuples(thresholds, floors),
)
def test_the_nearest_word_counts(
    configured: Configured,
    level: int,
    wide: tuple[SetKnob | None, SetKnob | None],
    near: tuple[SetKnob | None, SetKnob | None],
) -> None:
    said = {
        KnobName("review", "debug", "shadow_threshold"): near[0],
        KnobName("review", "debug", "priority_floor"): near[1],
        KnobName("review", None, "shadow_threshold"): wide[0],
        KnobName("review", None, "priority_floor"): wide[1],
        KnobName("review", "template", "shadow_threshold"): SetKnob(0.123, "eve", "another specialist", 1.0),
        KnobName("other", None, "priority_floor"): SetKnob(7, "eve", "another intent", 1.0),
    }
    operator = {name: knob for name, knob in said.items() if knob is not None}
    ladder = Ladder(level, since=500.0)
    knobs = effective("review", "debug", configured, operator, ladder, RULES)
    escalated = knobs_at(level, configured.threshold, configured.floor, RULES)
    configured_pair = (configured.threshold, configured.floor)
    got = ((knobs.threshold, knobs.threshold_turn), (knobs.floor, knobs.floor_turn))
    for i, (value, turn) in enumerate(got):
        word = near[i] or wide[i]
        if word is not None:
            assert (value, turn) == (word.value, Turn(word.by, word.why, word.since))
        else:
            assert value == escalated[i] >= configured_pair[i]
            assert turn.by == (ESCALATION if value > configured_pair[i] else "")
            assert turn.since == (500.0 if turn.by else 0.0)
    turns = [turn for turn in (knobs.threshold_turn, knobs.floor_turn) if turn.by]
    assert knobs.by in ({turn.by for turn in turns} or {""})
    assert knobs.is_escalated == (escalated[0] > configured.threshold), "whatever an operator has set"
    assert all(turn.since <= max(each.since for each in turns if each.by == knobs.by) for turn in turns)


def test_an_operator_may_go_below_the_configuration() -> None:
    operator = {KnobName("review", None, "priority_floor"): SetKnob(0.0, "ada", "let all in", 5.0)}
    knobs = effective("review", "debug", Configured(0.5, 4), operator, Ladder(15), RULES)
    assert (knobs.threshold, knobs.floor, knobs.by) == (0.95, 0, "ada")
    assert isinstance(knobs.floor, int)


def test_without_anybody_turning_it_the_configuration_counts() -> None:
    configured = configured_of(IntentConfig("review", shadow_threshold=0.4, priority_floor=2))
    knobs = effective("review", "debug", configured, {}, Ladder(), RULES)
    assert knobs == Knobs(0.4, 2)
    assert knobs.by == ""


@given(
    knob=st.builds(SetKnob, st.floats(0, 9), st.text(max_size=9), st.text(max_size=9), st.floats(0, 2e9)),
)
def test_a_set_knob_comes_back_from_the_store_as_it_was(knob: SetKnob) -> None:
    assert SetKnob.from_body(json.loads(json.dumps(knob.to_body()))) == knob
    with pytest.raises(ValueError, match="lacks"):
        SetKnob.from_body({"value": 1.0})
