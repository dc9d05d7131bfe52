"""Evaluate a classifier: accuracy, calibration and confusion, overall, by label and by source."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octet.terminal import format_table
from router.routing.classifier.base import Classifier, Distribution
from router.routing.training.records import LabelledPrompt

BINS = 15


@dataclass(frozen=True, slots=True)
class EvaluationScore:
    num: int
    top1: float
    top2: float
    calibration_error: float  # expected calibration error of the top label over 15 bins of equal width
    confidence: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    digest: str
    labels: tuple[str, ...]
    overall: EvaluationScore
    by_label: Mapping[str, EvaluationScore]
    by_source: Mapping[str, EvaluationScore]
    confusion: tuple[tuple[int, ...], ...]  # [true][routed], in the order of the labels

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


_Classified = Sequence[tuple[LabelledPrompt, Distribution]]


def evaluate(classifier: Classifier, records: Sequence[LabelledPrompt]) -> Evaluation:
    """Evaluate the classifier as live routing calls it. Raises ValueError if the classifier lacks a record's label."""
    labels = classifier.labels
    unknown = sorted({record.label for record in records} - set(labels))
    if unknown:
        raise ValueError(f"labels {', '.join(unknown)} are unknown to the classifier, which has {', '.join(labels)}")
    seen = list(zip(records, classifier.classify([record.text for record in records]), strict=True))
    confusion = np.zeros((len(labels), len(labels)), dtype=int)
    for record, distribution in seen:
        confusion[labels.index(record.label), labels.index(distribution.top)] += 1
    by_label = {label: [each for each in seen if each[0].label == label] for label in labels}
    by_source = {
        name: [each for each in seen if each[0].source == name] for name in sorted({r.source for r in records})
    }
    return Evaluation(
        classifier.digest,
        labels,
        _score(seen),
        {label: _score(part) for label, part in by_label.items() if part},
        {source: _score(part) for source, part in by_source.items()},
        tuple(tuple(row) for row in confusion.tolist()),
    )


def _score(seen: _Classified) -> EvaluationScore:
    right = np.array([found.top == record.label for record, found in seen], dtype=np.float64)
    confidence = np.array([found.confidence for _, found in seen])
    top2 = float(np.mean([record.label in dict(found.scores[:2]) for record, found in seen]))
    error = calibration_error(confidence, right)
    return EvaluationScore(len(seen), float(right.mean()), top2, error, float(confidence.mean()))


def calibration_error(confidence: NDArray[np.float64], right: NDArray[np.float64], bins: int = BINS) -> float:
    """Return the mean gap between confidence and accuracy over bins of confidence, weighted by the size of each bin."""
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(bin_of, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(right))


def format_evaluation(evaluation: Evaluation) -> str:
    labels, confusion = evaluation.labels, evaluation.confusion
    rows = [(label, *(str(num or ".") for num in row)) for label, row in zip(labels, confusion, strict=True)]
    return "\n\n".join(
        (
            f"classifier {evaluation.digest[:12]}, {evaluation.overall.num} prompts",
            _format_scores("overall", {"all": evaluation.overall}),
            _format_scores("by specialist", evaluation.by_label),
            _format_scores("by source", evaluation.by_source),
            "confusion: rows are the true labels, columns the routed ones",
            format_table(("label", *labels), rows),
        )
    )


def _format_scores(title: str, scores: Mapping[str, EvaluationScore]) -> str:
    rows = []
    for name, score in scores.items():
        shares = (f"{score.top1:.1%}", f"{score.top2:.1%}", f"{score.calibration_error:.3f}", f"{score.confidence:.3f}")
        rows.append((name, str(score.num), *shares))
    return format_table((title, "prompts", "top-1", "top-2", "ECE", "confidence"), rows)
