"""Small talk goes to the default specialist; a text on a subject of its own is never small talk."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.cli.router import HELD_OUT_FILE
from octet.config.ensemble import REJECT, Ensemble
from octet.config.loader import default_ensemble
from router.request import RoutingDecision
from router.routing.classifier.base import Distribution
from router.routing.classifier.linear import DEFAULT_FILE, read_classifier
from router.routing.policy import RoutingPolicy
from router.routing.rules.small_talk import find_topics, is_small_talk
from router.routing.training.records import read_records
from tests.router.routing.sample_requests import validated_request

ENSEMBLE = default_ensemble()
CLASSIFIER = read_classifier(DEFAULT_FILE)
TOPICS = find_topics(f"{each.name} {each.describe}" for each in ENSEMBLE.specialists)
SMALL_TALK = """
hi; Hello!; hey there; heeeey; good morning everyone; thanks!; Thank you so much for your help; ok thanks, bye; cool;
yes; what's up?; How are you today?; who are you?; what can you do?; hello? is anyone there?; can you help me with
C++?; Hi, I need help with my code; I have a question; hi\n\nthanks!; do you know C++?; thanks, that was very
helpful!; lol; Hola
"""
OFF_TOPIC = """
can you help me with my taxes?; can you help me with Java?; I have a question about my divorce; I need help with my
marriage; do you know Java; hello, who won the world cup?; thanks, now write me a poem; are you good at chess; I want
to learn Spanish; i have a dog; today; again?; for the; hello world in Python; thank you letter to my boss; good
morning images; tell me a joke; what is the capital of France?; help me lose weight
"""


def decide(text: str, ensemble: Ensemble = ENSEMBLE) -> RoutingDecision:
    (opinion,) = CLASSIFIER.classify([text])
    return RoutingPolicy(ensemble).decide(validated_request(prompt=text), opinion, CLASSIFIER.digest)


@pytest.mark.parametrize("text", [text.strip() for text in SMALL_TALK.split(";")])
def test_small_talk_is_answered_by_default(text: str) -> None:
    assert is_small_talk(text, TOPICS)
    decision = decide(text)
    assert decision.source == "default"
    assert decision.primary == ENSEMBLE.default and "it is small talk" in decision.why


@pytest.mark.parametrize("text", [text.strip() for text in OFF_TOPIC.split(";")])
def test_another_subject_is_not_small_talk(text: str) -> None:
    assert not is_small_talk(text, TOPICS)
    assert decide(text).source != "default"


@pytest.mark.parametrize("text", ["hi", "thanks!", "can you help me with C++?"])
def test_without_a_default_specialist_small_talk_is_refused(text: str) -> None:
    assert decide(text).source == "default"
    assert decide(text, replace(ENSEMBLE, default=None)).source == "unrouted"


def test_decisions_on_held_out_prompts_are_the_same_with_and_without_the_default() -> None:
    records = read_records([HELD_OUT_FILE])
    opinions = CLASSIFIER.classify([record.text for record in records])
    with_default, without = RoutingPolicy(ENSEMBLE), RoutingPolicy(replace(ENSEMBLE, default=None))
    for record, opinion in zip(records, opinions, strict=True):
        request = validated_request(prompt=record.text)
        one, other = (policy.decide(request, opinion, CLASSIFIER.digest) for policy in (with_default, without))
        if "confidence is too low" not in other.why:
            assert (one.source, one.primary) == (other.source, other.primary), record.text


@given(
    st.permutations(["hi", "thanks", "can you help me", "ok", "with c++"]), st.text("bcdfgjq", min_size=3, max_size=8)
)
def test_a_word_that_is_no_topic_ends_small_talk(phrases: list[str], word: str) -> None:
    text = ", ".join(phrases)
    assert is_small_talk(text, TOPICS)
    assert not is_small_talk(f"{text} {word}", TOPICS)
    assert is_small_talk(f"{text} {word}", find_topics([f"C++ and {word}"]))


def test_a_long_text_is_not_small_talk() -> None:
    assert is_small_talk("hi " * 60, TOPICS) and not is_small_talk("hi " * 70, TOPICS)
    assert not is_small_talk("", TOPICS) and not is_small_talk("?!", TOPICS)


@pytest.mark.parametrize("text", ["hello", "thank you", "What is a mutex?"])
def test_invisible_and_wide_characters_do_not_change_what_is_small_talk(text: str) -> None:
    wide = "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in text)
    for form in (text.replace(" ", "\u00a0"), "\u200b".join(text), wide):
        assert is_small_talk(form, TOPICS) == is_small_talk(text, TOPICS)


@pytest.mark.parametrize(("share", "source"), [(0.9, "classifier"), (0.7, "default")])
def test_small_talk_goes_to_a_specialist_that_is_very_likely(share: float, source: str) -> None:
    opinion = Distribution.of((("stl", share), ("memory", 0.95 - share), (REJECT, 0.05)))
    decision = RoutingPolicy(ENSEMBLE).decide(validated_request(prompt="can you help me with C++?"), opinion, "")
    assert decision.source == source
