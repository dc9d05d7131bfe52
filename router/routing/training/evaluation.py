"""Evaluate a classifier, or training with sources left out: accuracy, refusals, calibration, confusion and the worst
errors, overall, by label and by source."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octet.terminal import format_table
from router.routing.classifier.base import REJECT, Classifier, Distribution
from router.routing.training.records import LabelledPrompt
from router.routing.training.train import DEFAULT_RECIPE, Recipe, collect_labels, leave_out

BINS = 15


LEFT_OUT = "each source left out of training"
WORST = 10  # errors that a report shows
_SHOWN_CHARS = 60
_PLOT_WIDTH = 40


@dataclass(frozen=True, slots=True)
class EvaluationScore:
    num: int
    top1: float
    top2: float
    calibration_error: float  # expected calibration error of the top label over 15 bins of equal width
    confidence: float
    reject_recall: float | None  # share of the prompts with the label `reject` that are rejected; None: there are none
    false_refusals: float | None  # share of the other prompts that are rejected


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    least: float  # the smallest confidence of the bin
    num: int
    confidence: float  # mean
    top1: float


@dataclass(frozen=True, slots=True)
class WorstError:
    text: str  # the beginning
    source: str
    label: str
    routed: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    digest: str
    labels: tuple[str, ...]
    overall: EvaluationScore
    by_label: Mapping[str, EvaluationScore]
    by_source: Mapping[str, EvaluationScore]
    confusion: tuple[tuple[int, ...], ...]  # [true][routed], in the order of the labels
    calibration: tuple[CalibrationBin, ...]  # bins with prompts
    worst: tuple[WorstError, ...]  # the most confident errors

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


_Classified = Sequence[tuple[LabelledPrompt, Distribution]]


def evaluate(classifier: Classifier, records: Sequence[LabelledPrompt]) -> Evaluation:
    """Evaluate the classifier as live routing calls it. Raises ValueError if the classifier lacks a record's label."""
    labels = classifier.labels
    unknown = sorted({record.label for record in records} - set(labels))
    if unknown:
        raise ValueError(f"labels {', '.join(unknown)} are unknown to the classifier, which has {', '.join(labels)}")
    found = classifier.classify([record.text for record in records])
    return _evaluation(classifier.digest, labels, list(zip(records, found, strict=True)))


def evaluate_left_out(records: Sequence[LabelledPrompt], recipe: Recipe = DEFAULT_RECIPE) -> Evaluation:
    """Evaluate training: each prompt is judged by a model that was trained without its family of sources, and
    calibrated on other families. Raises TooFewLabels, TooFewSources or TrainingUnavailable."""
    labels = collect_labels(records)
    calibrated = leave_out(records, labels, recipe).probabilities()
    found = [
        (record, Distribution.of(zip(labels, row, strict=True)))
        for record, row in zip(records, calibrated.tolist(), strict=True)
        if record.is_prompt
    ]
    return _evaluation(LEFT_OUT, labels, found)


def _evaluation(digest: str, labels: tuple[str, ...], seen: _Classified) -> Evaluation:
    confusion = np.zeros((len(labels), len(labels)), dtype=int)
    for record, distribution in seen:
        confusion[labels.index(record.label), labels.index(distribution.top)] += 1
    by_label = {label: [each for each in seen if each[0].label == label] for label in labels}
    by_source = {
        name: [each for each in seen if each[0].source == name] for name in sorted({r.source for r, _ in seen})
    }
    return Evaluation(
        digest,
        labels,
        _score(seen),
        {label: _score(part) for label, part in by_label.items() if part},
        {source: _score(part) for source, part in by_source.items()},
        tuple(tuple(row) for row in confusion.tolist()),
        _calibration(seen),
        _worst(seen),
    )


def _score(seen: _Classified) -> EvaluationScore:
    right = np.array([found.top in record.accepted for record, found in seen], dtype=np.float64)
    confidence = np.array([found.confidence for _, found in seen])
    top2 = float(np.mean([bool({*record.accepted} & {*dict(found.scores[:2])}) for record, found in seen]))
    error = calibration_error(confidence, right)
    rejected = [found.top == REJECT for record, found in seen if REJECT in record.accepted]
    refused = [found.top == REJECT for record, found in seen if REJECT not in record.accepted]
    shares = (float(np.mean(each)) if each else None for each in (rejected, refused))
    return EvaluationScore(len(seen), float(right.mean()), top2, error, float(confidence.mean()), *shares)


def _calibration(seen: _Classified, bins: int = BINS) -> tuple[CalibrationBin, ...]:
    groups: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for record, found in seen:
        groups[min(int(found.confidence * bins), bins - 1)].append((found.confidence, found.top in record.accepted))
    return tuple(
        CalibrationBin(number / bins, len(group), *(float(mean) for mean in np.mean(group, axis=0)))
        for number, group in enumerate(groups)
        if group
    )


def _worst(seen: _Classified) -> tuple[WorstError, ...]:
    wrong = [(record, found) for record, found in seen if found.top not in record.accepted]
    wrong.sort(key=lambda each: (-each[1].confidence, each[0].text))
    return tuple(
        WorstError(_shorten(record.text), record.source, record.label, found.top, found.confidence)
        for record, found in wrong[:WORST]
    )


def _shorten(text: str) -> str:
    return " ".join(text.split())[:_SHOWN_CHARS].encode("utf-8", "replace").decode()


def calibration_error(confidence: NDArray[np.float64], right: NDArray[np.float64], bins: int = BINS) -> float:
    """Return the mean gap between confidence and accuracy over bins of confidence, weighted by the size of each bin."""
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(bin_of, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(right))


def format_evaluation(evaluation: Evaluation) -> str:
    labels, confusion = evaluation.labels, evaluation.confusion
    rows = [(label, *(str(num or ".") for num in row)) for label, row in zip(labels, confusion, strict=True)]
    name = evaluation.digest if evaluation.digest == LEFT_OUT else f"classifier {evaluation.digest[:12]}"
    worst = [(f"{each.confidence:.2f}", each.label, each.routed, each.source, each.text) for each in evaluation.worst]
    errors = [score.calibration_error for score in evaluation.by_source.values()]
    return "\n\n".join(
        (
            f"{name}, {evaluation.overall.num} prompts of {len(evaluation.by_source)} sources",
            _format_scores("overall", {"all": evaluation.overall}),
            _format_scores("by specialist", evaluation.by_label),
            _format_scores("by source", evaluation.by_source),
            f"ECE of the sources: {min(errors):.3f} to {max(errors):.3f}, median {float(np.median(errors)):.3f}",
            "confusion: rows are the true labels, columns the routed ones",
            format_table(("label", *labels), rows),
            "calibration: the bar is the top-1, the mark | the mean confidence",
            format_table(
                ("confidence", "prompts", "top-1", ""), [_format_bin(each) for each in evaluation.calibration]
            ),
            "the most confident errors",
            format_table(("confidence", "label", "routed", "source", "text"), worst),
        )
    )


def _format_bin(part: CalibrationBin) -> tuple[str, str, str, str]:
    filled, mark = round(part.top1 * _PLOT_WIDTH), min(round(part.confidence * _PLOT_WIDTH), _PLOT_WIDTH - 1)
    bar = "".join("|" if at == mark else "#" if at < filled else "." for at in range(_PLOT_WIDTH))
    return f"{part.confidence:.2f}", str(part.num), f"{part.top1:.1%}", bar


def _format_scores(title: str, scores: Mapping[str, EvaluationScore]) -> str:
    rows = []
    for name, score in scores.items():
        refusals = ("" if each is None else f"{each:.1%}" for each in (score.reject_recall, score.false_refusals))
        shares = (f"{score.top1:.1%}", f"{score.top2:.1%}", f"{score.calibration_error:.3f}", f"{score.confidence:.3f}")
        rows.append((name, str(score.num), *shares, *refusals))
    headings = (title, "prompts", "top-1", "top-2", "ECE", "confidence", "reject recall", "false refusals")
    return format_table(headings, rows)
