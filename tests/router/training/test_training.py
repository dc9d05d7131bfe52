"""Training is a pure function of its records, agrees with scikit-learn, and calibrates on sources it has not seen."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from octet.cli.router import HELD_OUT_FILE, corpus_files
from router.routing.classifier.linear import DEFAULT_FILE, Vectorizer, decode_model
from router.routing.training.records import LabelledPrompt, read_records
from router.routing.training.train import (
    TooFewSources,
    collect_labels,
    feature_matrix,
    fit,
    fit_temperature,
    left_out_probabilities,
    make_folds,
    record_features,
    train,
    uncalibrated_probabilities,
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
    matrix = feature_matrix(Vectorizer(model.buckets, model.rarity, model.family_scale), found, len(model.buckets))
    oracle = LogisticRegression()
    oracle.classes_ = np.arange(len(model.labels))
    oracle.coef_, oracle.intercept_ = model.weights.T.astype(np.float64), model.bias.astype(np.float64)
    assert np.abs(uncalibrated_probabilities(model, records) - oracle.predict_proba(matrix)).max() < 1e-5


def test_every_source_is_in_exactly_one_fold() -> None:
    records = small_corpus()
    folds = make_folds(records)
    assert sorted(source for fold in folds for source in fold) == ["asks", "notes", "orders"]
    assert left_out_probabilities(records, collect_labels(records)).sum(axis=1) == pytest.approx(1)


def test_a_left_out_source_does_not_influence_its_own_results() -> None:
    """A word that reveals the label in only one source must not improve the results for that source."""
    marked_records = [replace(r, text=f"{r.text} zebra{r.label}") if r.source == "asks" else r for r in small_corpus()]
    labels = collect_labels(marked_records)
    plain, marked = left_out_probabilities(small_corpus(), labels), left_out_probabilities(marked_records, labels)
    asks = np.array([record.source == "asks" for record in marked_records])
    assert np.abs(plain[asks] - marked[asks]).max() < 0.2
    assert not np.array_equal(plain[~asks], marked[~asks])


def test_training_needs_at_least_two_sources() -> None:
    with pytest.raises(TooFewSources, match="at least 2 sources"):
        train([replace(record, source="one") for record in small_corpus()])


@settings(max_examples=20)
@given(st.floats(0.4, 3.0), st.integers(0, 2**32 - 1))
def test_a_known_temperature_is_recovered(temperature: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    logits = random.normal(size=(4000, 4)) * 2
    truth = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    bent = np.exp(logits * temperature) / np.exp(logits * temperature).sum(axis=1, keepdims=True)
    assert fit_temperature(bent, truth) == pytest.approx(temperature, rel=0.15)


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
def test_the_committed_classifier_is_trained_from_the_committed_corpus() -> None:
    """With the same BLAS, the weights are identical. Otherwise, confidences may differ by less than 0.01."""
    committed, again = decode_model(DEFAULT_FILE.read_bytes()), decode_model(train(read_records(corpus_files())).data)
    if committed.digest == again.digest:
        return
    texts = [record.text for record in read_records([HELD_OUT_FILE])]
    pairs = list(zip(committed.classify(texts), again.classify(texts), strict=True))
    assert max(abs(a.confidence - dict(b.scores)[a.top]) for a, b in pairs) < 0.01
