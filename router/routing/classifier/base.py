"""The classifier interface, and the bounded sample of a text that every classifier reads.

The same text gives the same distribution, alone or in a batch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum, isfinite
from typing import Protocol, Self

from octet.config.ensemble import REJECT as REJECT
from router.routing.normal_text import fold_unicode

SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probabilities that sum to 1, the most likely label first."""

    scores: tuple[tuple[str, float], ...]  # (label, probability); labels are specialists and REJECT

    def __post_init__(self) -> None:
        probabilities = [probability for _, probability in self.scores]
        if not probabilities or not all(isfinite(p) and p >= 0 for p in probabilities):
            raise ValueError(f"probabilities must be given, finite and at least 0, got {probabilities}")
        if abs(fsum(probabilities) - 1) > SUM_TOLERANCE:
            raise ValueError(f"probabilities must sum to 1, got {fsum(probabilities)}")
        if any(a < b for a, b in pairwise(probabilities)):
            raise ValueError(f"probabilities must be in descending order, got {probabilities}")
        if len({label for label, _ in self.scores}) < len(self.scores):
            raise ValueError(f"labels must be distinct, got {[label for label, _ in self.scores]}")

    @classmethod
    def of(cls, scores: Iterable[tuple[str, float]]) -> Self:
        """Return a distribution of the scores, the highest first. Equal scores keep their order."""
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
        """The sha256, in hex, of the classifier's file or of the texts it was built from."""

    @property
    def labels(self) -> tuple[str, ...]: ...

    def classify(self, texts: Sequence[str]) -> list[Distribution]:
        """Return one distribution per text, in order. A text's distribution is bit-identical alone and in a batch."""


class ClassifierUnavailable(Exception):
    """The classifier cannot answer; the message states why."""


HEAD, MIDDLE, TAIL = 1536, 512, 1024
LIMIT = HEAD + MIDDLE + TAIL


def sample_text(text: str) -> bytes:
    """Return the text in UTF-8, after `fold_unicode`. A long text is cut to its head, middle and tail: at most LIMIT
    bytes and two newlines. The work does not grow with the length of the text."""
    if len(text) <= LIMIT and len(whole := _encode(text)) <= LIMIT:
        return whole
    centre = max(0, (len(text) - MIDDLE) // 2)
    pieces = (
        _encode(text[:HEAD])[:HEAD],
        _encode(text[centre : centre + MIDDLE])[:MIDDLE],
        _encode(text[-TAIL:])[-TAIL:],
    )
    return b"\n".join(pieces)


def _encode(text: str) -> bytes:
    return fold_unicode(text).encode("utf-8", "replace")
