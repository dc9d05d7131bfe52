"""Training is a pure function of its records, agrees with scikit-learn, and calibrates on sources it has not seen."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from octet.cli.router import HELD_OUT_FILE, corpus_files
from router.routing.classifier.features import FAMILIES
from router.routing.classifier.linear import (
    DEFAULT_FILE,
    LinearClassifier,
    LinearModel,
    Vectorizer,
    decode_model,
    encode_model,
    label_probabilities,
)
from router.routing.classifier.reader import VIEW_FAMILIES
from router.routing.training.calibration import (
    MAX_FALSE_REFUSALS,
    Calibration,
    calibrate_logits,
    calibrate_model,
    fit_calibration,
    fit_temperature,
)
from router.routing.training.records import LabelledPrompt, read_records
from router.routing.training.train import (
    Recipe,
    TooFewLabels,
    TooFewSources,
    collect_labels,
    distract,
    feature_matrix,
    fit,
    leave_out,
    make_folds,
    record_features,
    source_families,
    train,
    uncalibrated_logits,
)
from tests.router.training.corpora import small_corpus


def test_the_same_records_give_the_same_bytes() -> None:
    first, second = train(small_corpus()), train(small_corpus())
    assert first.data == second.data
    assert decode_model(first.data).digest == hashlib.sha256(second.data).hexdigest()


def test_another_field_can_be_learned() -> None:
    classifier = decode_model(train(small_corpus()).data)
    assert classifier.labels == ("sql", "shell", "reject")
    tops = [d.top for d in classifier.classify(["join these tables", "grep in all files", "a song for my cake"])]
    assert tops == ["sql", "shell", "reject"]


def test_the_runtime_agrees_with_scikit_learn() -> None:
    records = small_corpus()
    model = fit(records, collect_labels(records))
    found = list(map(record_features, records))
    vectorizer = Vectorizer(model.buckets, model.rarity, model.family_scale, model.reject_scale)
    matrix = feature_matrix(vectorizer, found, len(model.buckets))
    oracle = LogisticRegression()
    oracle.classes_ = np.arange(3)
    weights = np.insert(model.weights.astype(np.float64), 2, 0, axis=1)[
        :, :3
    ]  # a third class, because two have another form
    oracle.coef_, oracle.intercept_ = weights.T, np.array([*model.bias[:2], -100.0])
    ours = label_probabilities(uncalibrated_logits(model, records), 2)[:, :2]
    assert np.abs(ours / ours.sum(axis=1, keepdims=True) - oracle.predict_proba(matrix)[:, :2]).max() < 1e-5


def test_every_source_is_in_exactly_one_fold() -> None:
    records = small_corpus()
    taught = replace(records[0], source="taught", is_prompt=False)
    folds = make_folds([*records, taught], source_families([*records, taught]))
    assert sorted(source for fold in folds for source in fold) == ["asks", "notes", "orders"]
    assert leave_out(records, collect_labels(records)).probabilities().sum(axis=1) == pytest.approx(1)


def test_a_left_out_source_does_not_influence_its_own_results() -> None:
    """A word that reveals the label in only one source must not improve the results for that source."""
    marked_records = [replace(r, text=f"{r.text} zebra{r.label}") if r.source == "asks" else r for r in small_corpus()]
    labels = collect_labels(marked_records)
    plain, marked = (
        label_probabilities(leave_out(each, labels).logits, 2) for each in (small_corpus(), marked_records)
    )
    asks = np.array([record.source == "asks" for record in marked_records])
    assert np.abs(plain[asks] - marked[asks]).max() < 0.2
    assert not np.array_equal(plain[~asks], marked[~asks])


def test_sources_of_a_family_are_left_out_together() -> None:
    records = [replace(record, source=f"{record.source}/{number % 2}") for number, record in enumerate(small_corpus())]
    assert set(source_families(records)) == {"asks", "notes", "orders"}


def test_parts_of_a_single_source_are_left_out() -> None:
    records = [replace(record, source="one") for record in small_corpus()]
    assert len(set(source_families(records))) == len(records)
    assert decode_model(train(records).data).labels == ("sql", "shell", "reject")
    with pytest.raises(TooFewSources, match="at least 2 sources"):
        train([records[0], replace(records[-1], is_prompt=False)])


@settings(max_examples=6, deadline=None)
@given(st.sets(st.sampled_from(("sql", "shell", "reject")), min_size=1, max_size=2))
def test_labels_may_have_a_source_of_their_own(apart: set[str]) -> None:
    """When this source is left out, or is all that is trained on, the other labels are unknown to the model."""
    records = [replace(each, source="apart" if each.label in apart else "rest") for each in small_corpus()]
    assert leave_out(records, collect_labels(records)).probabilities().sum(axis=1) == pytest.approx(1)
    assert decode_model(train(records).data).labels == ("sql", "shell", "reject")


@given(st.lists(st.tuples(st.sampled_from(("a", "b", "reject")), st.sampled_from("xyz"), st.text("pq ")), min_size=1))
def test_training_gives_a_classifier_that_can_be_read_or_says_what_is_missing(rows: list[tuple[str, str, str]]) -> None:
    records = [LabelledPrompt(text, label, source) for label, source, text in rows]
    try:
        trained = train(records)
    except TooFewLabels:
        assert len({label for label, _, _ in rows}) == 1
    except TooFewSources:
        assert len(rows) == 1 or len({record_features(record).bucket.tobytes() for record in records}) == len(rows)
    else:
        assert decode_model(trained.data).labels == collect_labels(records)


def test_a_question_is_also_learned_beside_other_code() -> None:
    question = record_features(LabelledPrompt("how do I sort this list of numbers?", "a", "s"))
    code = record_features(LabelledPrompt("\n".join(f"int value_{n} = {n};" for n in range(30)), "b", "s"))
    [(at, joined)] = distract([question, code], 1.0)
    assert at == 0
    of_question = joined.family < len(FAMILIES)
    assert joined.bucket[of_question].tolist() == question.bucket[question.family < len(FAMILIES)].tolist()
    assert joined.bucket[~of_question].tolist() == code.bucket[code.family >= len(FAMILIES)].tolist()


@settings(max_examples=20)
@given(st.floats(0.4, 3.0), st.integers(0, 2**32 - 1))
def test_a_known_temperature_is_recovered(temperature: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    logits = random.normal(size=(4000, 4)) * 2
    truth = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    accepted = np.eye(4, dtype=np.float32)[truth]
    assert fit_temperature(logits * temperature, accepted) == pytest.approx(temperature, rel=0.15)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.floats(-3, 3), st.floats(0.5, 3))
def test_calibration_limits_the_share_of_false_refusals(seed: int, offset: float, spread: float) -> None:
    random = np.random.default_rng(seed)
    accepted = np.eye(4, dtype=np.float32)[random.integers(0, 4, size=2000)]
    logits = random.normal(size=(2000, 4)) * spread + accepted * 2
    logits[:, 3] += offset
    found = label_probabilities(calibrate_logits(logits, fit_calibration(logits, accepted, 3), 3), 3)
    served = accepted[:, 3] == 0
    assert (found[served].argmax(axis=1) == 3).mean() <= MAX_FALSE_REFUSALS + 1e-3


def test_a_calibrated_model_gives_the_calibrated_probabilities() -> None:
    records = small_corpus()
    labels = collect_labels(records)
    model = fit(records, labels)
    logits = uncalibrated_logits(model, records)
    calibration = fit_calibration(logits, leave_out(records, labels).accepted, 2)
    expected = label_probabilities(calibrate_logits(logits, calibration, 2), 2)
    classifier = LinearClassifier(calibrate_model(model, calibration), "")
    found = np.concatenate([classifier.feature_probabilities(record_features(each), 1) for each in records])
    assert np.abs(found - expected).max() < 1e-2  # the weights are rounded again


@given(st.floats(0.2, 8), st.floats(0.2, 8), st.floats(-10, 10), st.floats(0, 60000))
def test_a_calibrated_model_can_be_stored(temperature: float, of_reject: float, offset: float, size: float) -> None:
    weights = np.array([[size, -size, size]], dtype=np.float16)
    ones = np.ones(len(VIEW_FAMILIES), dtype=np.float32)
    model = LinearModel(
        ("a", "b", "reject"), np.array([3], np.uint32), ones[:1], weights, np.zeros(3, np.float32), ones, ones, 1.0
    )
    calibrated = calibrate_model(model, Calibration(temperature, of_reject, offset))
    assert decode_model(encode_model(calibrated)).labels == model.labels
    expected = min(size * temperature / of_reject, 65504)
    assert calibrated.weights[0, 2] == pytest.approx(expected, rel=2e-3, abs=1e-3)


@pytest.mark.parametrize("recipe", [Recipe(unknown=0), Recipe(unknown=1), Recipe(distracted=0)])
def test_shares_of_a_recipe_may_be_zero_or_one(recipe: Recipe) -> None:
    records = small_corpus()
    assert fit(records, collect_labels(records), recipe).labels == ("sql", "shell", "reject")


def test_the_held_out_sources_are_not_trained_on() -> None:
    trained, held = read_records(corpus_files()), read_records([HELD_OUT_FILE])
    assert not {record.source for record in trained} & {record.source for record in held}
    assert not {record.text for record in trained} & {record.text for record in held}
    assert all(record.licence for record in (*trained, *held))
    counts = {label: sum(record.label == label for record in held) for label in collect_labels(held)}
    assert len(counts) == 9 and min(counts.values()) >= 60


def test_labels_come_in_order_and_reject_last() -> None:
    records = [LabelledPrompt("x", label, "s") for label in ("reject", "b", "a", "b")]
    assert collect_labels(records) == ("b", "a", "reject")


@pytest.mark.slow
def test_the_committed_classifier_is_trained_from_the_committed_corpus_and_the_rebuilt_one() -> None:
    """With the same BLAS, the weights are identical. Otherwise, confidences may differ by less than 0.01."""
    rebuilt = os.environ.get("OCTET_ROUTING_CORPUS")
    if rebuilt is None:
        pytest.skip("OCTET_ROUTING_CORPUS does not name the file that bench.routing_corpus writes")
    records = read_records([*corpus_files(), Path(rebuilt)])
    committed, again = decode_model(DEFAULT_FILE.read_bytes()), decode_model(train(records).data)
    if committed.digest == again.digest:
        return
    texts = [record.text for record in read_records([HELD_OUT_FILE])]
    pairs = list(zip(committed.classify(texts), again.classify(texts), strict=True))
    assert max(abs(a.confidence - dict(b.scores)[a.top]) for a, b in pairs) < 0.01
