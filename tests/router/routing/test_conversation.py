"""The rules and the classifier read only the user's turns."""

from hypothesis import given
from hypothesis import strategies as st

from octet.config.loader import default_ensemble
from octet.v1 import inference_pb2 as wire
from router.routing.classifier.linear import DEFAULT_FILE, read_classifier
from router.routing.follow_ups import is_follow_up
from router.routing.policy import RoutingPolicy
from router.routing.validation import ENOUGH_CHARS, MAX_EARLIER, MAX_ROUTING_CHARS, routing_text
from tests.router.routing.sample_conversations import FIRST, FOLLOW_UPS, NEW_QUESTIONS
from tests.router.routing.sample_requests import validated_request

STAY = 0.9
POLICY = RoutingPolicy(default_ensemble())
CLASSIFIER = read_classifier(DEFAULT_FILE)


def turn_of(role: str, content: str) -> wire.Message:
    return wire.Message(role=role, content=content)


TURNS = st.lists(
    st.builds(
        wire.Message,
        role=st.sampled_from(["user", "assistant", "system", "tool"]),
        content=st.text("abc \n", max_size=99),
    )
)


@given(TURNS, st.sampled_from([*FOLLOW_UPS, *NEW_QUESTIONS.values(), "What is a mutex?", "Sort a vector of pairs"]))
def test_the_newest_user_turn_is_read_last_and_alone_unless_it_is_a_follow_up(
    turns: list[wire.Message], newest: str
) -> None:
    text = routing_text([*turns, turn_of("user", newest)])
    assert text.endswith(newest)
    if not is_follow_up(newest):
        assert text == newest


@given(TURNS)
def test_only_user_messages_are_read(turns: list[wire.Message]) -> None:
    silent = [turn if turn.role == "user" else turn_of(turn.role, "SECRET") for turn in turns]
    assert routing_text(silent) == routing_text(turns)
    assert "SECRET" not in routing_text(silent)


@given(TURNS, TURNS)
def test_assistant_turns_do_not_change_the_decision(before: list[wire.Message], after: list[wire.Message]) -> None:
    plain = [*before, turn_of("user", "yes"), *after]
    answered = [
        *before,
        turn_of("user", "yes"),
        turn_of("assistant", "a long answer about SQL"),
        *after,
    ]
    assert routing_text(plain) == routing_text(answered)


def test_a_short_turn_is_read_with_earlier_turns() -> None:
    question = "Fix this CMakeLists, it does not find my library"
    talk = [
        turn_of("user", question),
        turn_of("assistant", "Shall I use find_package?"),
        turn_of("user", "yes, do that"),
    ]
    assert routing_text(talk) == f"{question}\n\nyes, do that"


def test_earlier_follow_ups_are_left_out() -> None:
    question = "How do I sort a vector of pairs?"
    said = [question, "Could you explain that?", "yes", "And is it safe?"]
    assert routing_text([turn_of("user", text) for text in said]) == f"{question}\n\nAnd is it safe?"


@given(st.permutations(list(FIRST.values())), st.integers(0, MAX_EARLIER + 3))
def test_the_newest_subject_within_reach_is_read(subjects: list[str], between: int) -> None:
    said = [*subjects, *["Why?"] * between, "And is it safe?"]
    text = routing_text([turn_of("user", each) for each in said])
    assert text.startswith(f"{subjects[-1]}\n\n") == (between < MAX_EARLIER)
    assert sum(each in text for each in subjects) == (between < MAX_EARLIER)


def test_without_a_subject_earlier_turns_are_read_up_to_the_limit() -> None:
    talk = [turn_of("user", f"{n}" * 100) for n in range(9)] + [turn_of("user", "yes")]
    text = routing_text(talk)
    assert text.split("\n\n") == ["5" * 100, "6" * 100, "7" * 100, "8" * 100, "yes"][-1 - -(-ENOUGH_CHARS // 100) :]


def test_the_beginning_and_the_end_of_long_text_are_read() -> None:
    text = routing_text([turn_of("user", "why?" + "x" * 2 * MAX_ROUTING_CHARS + "because")])
    assert len(text) == MAX_ROUTING_CHARS
    assert text.startswith("why?") and text.endswith("because")


def answered_by(*said: str) -> str:
    """Return the specialist that the default ensemble chooses after these user turns, or an empty string if it rejects
    them."""
    ask = validated_request(messages=[turn_of("user", text) for text in said])
    return POLICY.decide(ask, CLASSIFIER.classify([ask.text])[0], CLASSIFIER.digest).primary


def test_a_conversation_stays_with_its_specialist() -> None:
    asked = [(name, question, text) for name, question in FIRST.items() for text in FOLLOW_UPS]
    primaries = [(name, answered_by(question, text)) for name, question, text in asked]
    primaries += [
        (name, answered_by(question, other, text)) for name, question, text in asked for other in FOLLOW_UPS[:3]
    ]
    assert all(primary for _, primary in primaries)
    assert sum(name == primary for name, primary in primaries) / len(primaries) >= STAY


def test_a_new_question_goes_to_its_own_specialist() -> None:
    for name, question in NEW_QUESTIONS.items():
        assert {answered_by(first, question) for first in FIRST.values()} == {name}
