"""How good the distributions are: accuracy, top-2, calibration, confusion; over all, by label and by source."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from router.classify.base import Classifier, Distribution
from router.training.records import Record

BINS = 15


@dataclass(frozen=True, slots=True)
class Score:
    num: int
    top1: float
    top2: float
    calibration_error: float
    """Expected calibration error of the top label, 15 bins of equal width."""
    confidence: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    digest: str
    labels: tuple[str, ...]
    overall: Score
    by_label: Mapping[str, Score]
    by_source: Mapping[str, Score]
    confusion: tuple[tuple[int, ...], ...]
    """[true][routed], in the order of the labels."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Seen:
    record: Record
    distribution: Distribution

    @property
    def is_right(self) -> bool:
        return self.distribution.top == self.record.label

    @property
    def is_among_two(self) -> bool:
        return self.record.label in [label for label, _ in self.distribution.scores[:2]]


def evaluate(classifier: Classifier, records: Sequence[Record]) -> Evaluation:
    """By the very call that routes live requests. Raises ValueError for a label the classifier does not know."""
    unknown = sorted({record.label for record in records} - set(classifier.labels))
    if unknown:
        raise ValueError(f"the classifier knows {', '.join(classifier.labels)}; the data also has {', '.join(unknown)}")
    found = classifier.classify([record.text for record in records])
    seen = [_Seen(record, distribution) for record, distribution in zip(records, found, strict=True)]
    return Evaluation(
        classifier.digest,
        classifier.labels,
        _score(seen),
        {name: _score(part) for name in classifier.labels if (part := [s for s in seen if s.record.label == name])},
        {name: _score([s for s in seen if s.record.source == name]) for name in sorted({r.source for r in records})},
        _confusion(classifier.labels, seen),
    )


def _score(seen: Sequence[_Seen]) -> Score:
    right = np.array([s.is_right for s in seen], dtype=np.float64)
    confidence = np.array([s.distribution.confidence for s in seen])
    top2 = float(np.mean([s.is_among_two for s in seen]))
    error = calibration_error(confidence, right)
    return Score(len(seen), float(right.mean()), top2, error, float(confidence.mean()))


def calibration_error(confidence: NDArray[np.float64], right: NDArray[np.float64], bins: int = BINS) -> float:
    """The mean gap between confidence and accuracy, bin by bin."""
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(bin_of, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(right))


def _confusion(labels: tuple[str, ...], seen: Sequence[_Seen]) -> tuple[tuple[int, ...], ...]:
    table = np.zeros((len(labels), len(labels)), dtype=int)
    for one in seen:
        table[labels.index(one.record.label), labels.index(one.distribution.top)] += 1
    return tuple(tuple(int(n) for n in row) for row in table)
