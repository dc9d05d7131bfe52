"""What a classifier promises: the same text gives the same distribution, alone or in a batch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum, isfinite
from typing import Protocol, Self

from octet.config.ensemble import REJECT as REJECT

SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probabilities that sum to 1, most likely first."""

    scores: tuple[tuple[str, float], ...]
    """(label, probability); the labels are the specialists and REJECT."""

    def __post_init__(self) -> None:
        probabilities = [probability for _, probability in self.scores]
        if not probabilities or not all(isfinite(p) and p >= 0 for p in probabilities):
            raise ValueError(f"not probabilities: {probabilities}")
        if abs(fsum(probabilities) - 1) > SUM_TOLERANCE:
            raise ValueError(f"probabilities sum to {fsum(probabilities)}, not to 1")
        if any(a < b for a, b in pairwise(probabilities)):
            raise ValueError(f"probabilities are not in falling order: {probabilities}")
        if len({label for label, _ in self.scores}) < len(self.scores):
            raise ValueError(f"a label comes twice: {[label for label, _ in self.scores]}")

    @classmethod
    def of(cls, scores: Iterable[tuple[str, float]]) -> Self:
        """Sorted: equal probabilities keep the order in which they came."""
        return cls(tuple(sorted(scores, key=lambda score: -score[1])))

    @property
    def top(self) -> str:
        return self.scores[0][0]

    @property
    def confidence(self) -> float:
        return self.scores[0][1]


class Classifier(Protocol):
    @property
    def digest(self) -> str:
        """sha256 in hex of the file it was read from, or of what it was built from."""

    @property
    def labels(self) -> tuple[str, ...]: ...

    def classify(self, texts: Sequence[str]) -> list[Distribution]:
        """One distribution a text, in order. Pure, and a batch gives the same bits as one text after the other."""


class ClassifierUnavailable(Exception):
    """There is no opinion to be had now. The message says why."""
