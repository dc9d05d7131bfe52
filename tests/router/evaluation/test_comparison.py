"""Who agrees with whom, and what is kept of those who do not."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.v1 import inference_pb2 as wire
from router.quality.answers import ByteBudget, CapturedAnswer, FinishedAnswer
from router.quality.evaluation import MOST_FEATURES, AnswerPair, answers_agree, compare_answers, shadow_label
from router.quality.evaluation import extract_features as features
from router.routing.classifier.base import sample_text
from router.routing.classifier.features import BUCKET_BITS, FAMILIES, extract_features
from router.verify.verdict import Outcome
from tests.router.shadow.world import order, way

outcomes: st.SearchStrategy[Outcome] = st.sampled_from(("passed", "failed", "skipped", "unavailable"))
shares = st.floats(0, 1)


@given(one=outcomes, other=outcomes, alike=shares, similar=shares)
def test_the_same_outcome_and_a_similar_text_is_agreement(
    one: Outcome, other: Outcome, alike: float, similar: float
) -> None:
    telling = {"passed", "failed"}
    same = one == other or not telling.intersection((one, other))
    assert answers_agree(AnswerPair("", "", one, other), alike, similar) == (same and alike >= similar)
    assert answers_agree(AnswerPair("", "", one, other), alike, similar) == answers_agree(
        AnswerPair("", "", other, one), alike, similar
    )


def finished(**decision: object) -> FinishedAnswer:
    receipt = wire.Receipt(request_id="r", specialist="writer", decision=wire.Decision(**decision))  # type: ignore[arg-type]
    return FinishedAnswer(
        receipt, "why does std::vector<int> v; not compile?", CapturedAnswer(ByteBudget(9), 9), way(), True
    )


def test_a_disagreement_carries_what_the_classifier_saw_and_an_agreement_does_not() -> None:
    case = finished(confidence=0.25, intent="review", classifier_digest="d")
    same = compare_answers(case, order(), AnswerPair("a b c", "a b c", "passed", "passed"), 0.6, 17)
    assert same.agreed and not same.feature_indices and not same.feature_values
    other = compare_answers(case, order(), AnswerPair("a b c", "a b c", "passed", "failed"), 0.6, 17)
    assert not other.agreed and other.similarity == 1
    assert (list(other.feature_indices), list(other.feature_values)) == features(case.question)
    for each in (same, other):
        assert (each.intent, each.confidence, each.at_unix_ms, each.classifier_digest) == ("review", 0.25, 17, "d")
    assert not compare_answers(finished(), order(), AnswerPair("", "", "passed", "passed"), 0.6, 17).HasField(
        "confidence"
    )


@pytest.mark.parametrize(
    ("fresh", "names", "shown"), [(False, ("a",), "rival"), (True, ("a", "b"), "rival+a+b"), (True, (), "rival")]
)
def test_a_candidate_is_called_by_its_adapters(fresh: bool, names: tuple[str, ...], shown: str) -> None:
    assert shadow_label(order(fresh=fresh, names=names)) == shown


@given(st.text(max_size=4000))
def test_features_are_what_the_classifier_extracts_at_most_so_many(question: str) -> None:
    indices, values = features(question)
    found = extract_features([sample_text(question)])
    all_of_them = [
        int(family) << BUCKET_BITS | int(bucket) for family, bucket in zip(found.family, found.bucket, strict=True)
    ]
    assert indices == sorted(set(indices)) and set(indices) <= set(all_of_them)
    assert len(indices) == len(values) == min(MOST_FEATURES, len(set(all_of_them)))
    assert values == [all_of_them.count(index) for index in indices]


def test_of_too_many_features_letters_go_first_and_words_stay() -> None:
    words = [f"w{number:04x}".translate({ord(str(n)): chr(ord("g") + n) for n in range(10)}) for number in range(500)]
    indices, _ = features(" ".join(words))
    kept = [FAMILIES[index >> BUCKET_BITS] for index in indices]
    everything = extract_features([sample_text(" ".join(words))])
    assert (
        len(indices)
        == MOST_FEATURES
        < len(set(zip(everything.family.tolist(), everything.bucket.tolist(), strict=True)))
    )
    num_words = len(set(everything.bucket[everything.family == FAMILIES.index("word")].tolist()))
    assert kept.count("word") == num_words and kept.count("letters") > 0


@given(st.integers(0, 1 << 32))
def test_what_says_least_is_left_out_first(seed: int) -> None:
    """Words last, then punctuation, pairs of words, and letters."""
    random = Random(seed)
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    question = "".join(
        "".join(random.choices(alphabet, k=random.randint(3, 9)))
        + random.choice([" ", "; ", " << ", "(", "::", " [&] "])
        for _ in range(900)
    )
    found = extract_features([sample_text(question)])
    there = {(int(family), int(bucket)) for family, bucket in zip(found.family, found.bucket, strict=True)}
    kept = {(index >> BUCKET_BITS, index & ((1 << BUCKET_BITS) - 1)) for index in features(question)[0]}
    assert len(there) > MOST_FEATURES == len(kept) and kept <= there
    worth = {FAMILIES.index(name): rank for rank, name in enumerate(("word", "punctuation", "pair", "letters"))}
    assert max(worth[family] for family, _ in kept) <= min(worth[family] for family, _ in there - kept)
