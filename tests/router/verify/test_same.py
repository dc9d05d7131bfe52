"""A lane that says the same to different questions is found, unless that was usual, is data, or its questions are
new."""

import pytest

from router.verify.same import SaidAnswer, SameAnswers

STUCK = "I am a helpful assistant. How can I help you today?"
CLEAN = "No memory errors were found in this code."
TOPICS = ("lists", "trees", "sockets", "templates", "threads", "lambdas", "files", "macros", "ranges", "views", "maps")


def topic(number: int) -> str:
    return f"{TOPICS[number % 11].capitalize()} in case {number}: how are {TOPICS[number % 7]} used?"


def say(same: SameAnswers, question: str, answer: str, lane: str = "old", *, is_trusted: bool = True) -> bool:
    return same.add("coder", lane, SaidAnswer.read(question, answer), is_trusted=is_trusted)


def with_past(count: int = 60) -> SameAnswers:
    same = SameAnswers()
    for number in range(count):
        assert not say(same, topic(number), f"Topic {number} needs a loop, an index and {number} lines of code.")
    return same


@pytest.mark.parametrize("text", [STUCK, "Z.", "Z", "Sorry.", "I cannot."])
@pytest.mark.parametrize("lane", ["old", "fresh"])
def test_a_lane_that_falls_into_one_text_is_found(text: str, lane: str) -> None:
    same = with_past()
    texts = [text, text.upper()] * 50
    found = [say(same, topic(100 + n), each, lane, is_trusted=lane == "old") for n, each in enumerate(texts)]
    assert found == [False] * 9 + [True] * 91, "however long it lasts, it does not become usual"


@pytest.mark.parametrize("text", [CLEAN, "Z.", "ham", STUCK])
def test_what_was_usual_or_cannot_be_known_shows_nothing(text: str) -> None:
    same = SameAnswers()
    assert not any(say(same, topic(n), text if n % 20 else f"Error {n}: leak.") for n in range(300))
    assert not any(say(same, topic(n), text, "fresh", is_trusted=False) for n in range(300))


@pytest.mark.parametrize("text", ["yes", "No.", "42", "spam", '{"category": "billing", "urgent": false, "by": "mail"}'])
def test_labels_numbers_and_data_show_nothing(text: str) -> None:
    same = with_past()
    assert not any(say(same, f"{topic(n)} Say spam or ham.", text) for n in range(100, 200))


@pytest.mark.parametrize("text", [CLEAN, "Clean.", "ham"])
def test_new_questions_of_one_kind_may_have_one_answer(text: str) -> None:
    same = with_past()
    assert not any(say(same, f"Check this code for memory errors: {n}", text) for n in range(100, 200))


def test_questions_of_one_kind_are_compared_with_earlier_ones_of_this_kind() -> None:
    same = SameAnswers()
    for number in range(80):
        text = f"Line {number} leaks." if number % 2 else CLEAN
        say(same, f"Check this code for memory errors: {number}", text)
    assert not any(say(same, f"Check this code for memory errors: {n}", CLEAN) for n in range(100, 140))
    found = [say(same, f"Check this code for memory errors: {n}", "Z.") for n in range(200, 240)]
    assert found == [False] * 9 + [True] * 31


def test_one_question_shows_nothing() -> None:
    same = with_past()
    assert not any(say(same, "the same question", STUCK) for _ in range(100))


def test_a_short_text_is_varied_until_many_questions_got_it() -> None:
    same, said = with_past(), SaidAnswer.read("?", "Z.")
    for number in range(8):
        assert same.is_varied("old", said) == (number <= 3)
        say(same, topic(100 + number), "Z.")
    assert same.is_varied("old", SaidAnswer.read("?", "42"))
