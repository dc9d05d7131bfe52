"""When two answers agree, and how a disagreement is recorded."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.v1 import inference_pb2 as wire
from router.quality.answers import ByteBudget, CapturedAnswer, FinishedAnswer
from router.quality.evaluation import MOST_FEATURES, answers_agree, compare_answers, shadow_label
from router.quality.evaluation import extract_features as features
from router.routing.classifier.base import sample_text
from router.routing.classifier.features import BUCKET_BITS, FAMILIES
from router.routing.classifier.reader import FEATURE_VERSION, encode_views, extract_view_features
from router.verify.verdict import Outcome
from tests.router.shadow.harness import candidate, order

outcomes: st.SearchStrategy[Outcome] = st.sampled_from(("passed", "failed", "skipped", "unavailable"))
shares = st.floats(0, 1)


@given(one=outcomes, other=outcomes, alike=shares, similar=shares)
def test_answers_agree_with_the_same_outcome_and_a_similar_text(
    one: Outcome, other: Outcome, alike: float, similar: float
) -> None:
    conclusive = {"passed", "failed"}
    same = one == other or not conclusive.intersection((one, other))
    assert answers_agree((one, other), alike, similar) == (same and alike >= similar)
    assert answers_agree((one, other), alike, similar) == answers_agree((other, one), alike, similar)


def finished(**decision: object) -> FinishedAnswer:
    receipt = wire.Receipt(request_id="r", specialist="writer", decision=wire.Decision(**decision))  # type: ignore[arg-type]
    return FinishedAnswer(
        receipt, "why does std::vector<int> v; not compile?", CapturedAnswer(ByteBudget(9), 9), candidate(), True
    )


def test_only_a_disagreement_carries_the_classifiers_features() -> None:
    case = finished(confidence=0.25, intent="review", classifier_digest="d")
    same = compare_answers(case, order(), ("a b c", "a b c"), ("passed", "passed"), 0.6, 17)
    assert same.agreed and not same.feature_indices and not same.feature_values
    other = compare_answers(case, order(), ("a b c", "a b c"), ("passed", "failed"), 0.6, 17)
    assert not other.agreed and other.similarity == 1
    assert (list(other.feature_indices), list(other.feature_values)) == features(case.question)
    assert (same.feature_version, other.feature_version) == (0, FEATURE_VERSION)
    for each in (same, other):
        assert (each.intent, each.confidence, each.at_unix_ms, each.classifier_digest) == ("review", 0.25, 17, "d")
    assert not compare_answers(finished(), order(), ("", ""), ("passed", "passed"), 0.6, 17).HasField("confidence")


@pytest.mark.parametrize(
    ("fresh", "names", "shown"), [(False, ("a",), "critic"), (True, ("a", "b"), "critic+a+b"), (True, (), "critic")]
)
def test_a_candidate_is_called_by_its_adapters(fresh: bool, names: tuple[str, ...], shown: str) -> None:
    assert shadow_label(order(fresh=fresh, names=names)) == shown


@given(st.text(max_size=4000))
def test_features_are_a_bounded_part_of_the_classifiers_features(question: str) -> None:
    indices, values = features(question)
    found = extract_view_features([encode_views(sample_text(question))])
    all_features = [
        int(family) << BUCKET_BITS | int(bucket) for family, bucket in zip(found.family, found.bucket, strict=True)
    ]
    assert indices == sorted(set(indices)) and set(indices) <= set(all_features)
    assert len(indices) == len(values) == min(MOST_FEATURES, len(set(all_features)))
    assert values == [all_features.count(index) for index in indices]


def test_too_many_features_drop_letters_and_keep_words() -> None:
    words = [f"w{number:04x}".translate({ord(str(n)): chr(ord("g") + n) for n in range(10)}) for number in range(500)]
    indices, _ = features(" ".join(words))
    captured = [FAMILIES[(index >> BUCKET_BITS) % len(FAMILIES)] for index in indices]
    everything = extract_view_features([encode_views(sample_text(" ".join(words)))])
    assert (
        len(indices)
        == MOST_FEATURES
        < len(set(zip(everything.family.tolist(), everything.bucket.tolist(), strict=True)))
    )
    is_word = everything.family % len(FAMILIES) == FAMILIES.index("word")
    num_words = len(set(zip(everything.family[is_word].tolist(), everything.bucket[is_word].tolist(), strict=True)))
    assert captured.count("word") == num_words and captured.count("letters") > 0


@given(st.integers(0, 1 << 32))
def test_the_least_informative_features_are_dropped_first(seed: int) -> None:
    """Features are dropped in this order: letters, pairs of words, punctuation, words."""
    random = Random(seed)
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    question = "".join(
        "".join(random.choices(alphabet, k=random.randint(3, 9)))
        + random.choice([" ", "; ", " << ", "(", "::", " [&] "])
        for _ in range(900)
    )
    found = extract_view_features([encode_views(sample_text(question))])
    there = {(int(family), int(bucket)) for family, bucket in zip(found.family, found.bucket, strict=True)}
    captured = {(index >> BUCKET_BITS, index & ((1 << BUCKET_BITS) - 1)) for index in features(question)[0]}
    assert len(there) > MOST_FEATURES == len(captured) and captured <= there
    worth = {FAMILIES.index(name): rank for rank, name in enumerate(("word", "punctuation", "pair", "letters"))}
    kept, dropped = ({worth[family % len(FAMILIES)] for family, _ in part} for part in (captured, there - captured))
    assert max(kept) <= min(dropped)
