"""The default C++ ensemble answers questions about C++ and rejects similar ones about other topics."""

from collections.abc import Sequence

from octet.cli.router import corpus_files
from octet.config.loader import default_ensemble
from router.routing.classifier.linear import DEFAULT_FILE, read_classifier
from router.routing.policy import RoutingPolicy
from router.routing.training.records import read_records
from tests.router.routing.sample_requests import validated_request
from tests.router.training.beginner_questions import ELSEWHERE, EVERYDAY, LANGUAGE

UNANSWERED, REFUSED = 0.1, 0.7
POLICY = RoutingPolicy(default_ensemble())


def answered(texts: Sequence[str]) -> list[str]:
    """Return the questions that a specialist would answer."""
    classifier = read_classifier(DEFAULT_FILE)
    opinions = classifier.classify(texts)
    decisions = (
        POLICY.decide(validated_request(prompt=text), opinion, classifier.digest)
        for text, opinion in zip(texts, opinions, strict=True)
    )
    return [text for text, decision in zip(texts, decisions, strict=True) if decision.primary]


def test_no_question_is_in_the_training_data() -> None:
    trained = {record.text.lower().rstrip("?.") for record in read_records(corpus_files())}
    assert not trained & {text.lower() for text in (*EVERYDAY, *LANGUAGE, *ELSEWHERE)}


def test_questions_about_cpp_are_answered() -> None:
    assert answered(EVERYDAY) == list(EVERYDAY)
    assert len(answered(LANGUAGE)) >= (1 - UNANSWERED) * len(LANGUAGE)


def test_questions_about_other_topics_are_rejected() -> None:
    assert len(answered(ELSEWHERE)) <= (1 - REFUSED) * len(ELSEWHERE)
