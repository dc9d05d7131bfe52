"""By what answers are judged. Frozen: whatever was handed over before a change is judged as it was then."""

from collections.abc import Mapping
from dataclasses import dataclass

from octet.config.ensemble import Ensemble
from router.verify.verdict import Verifier


@dataclass(frozen=True, slots=True)
class Rules:
    verifiers: Mapping[str, Verifier]
    """By specialist: every one of the ensemble's."""
    answer_bytes: int
    """A longer answer is not judged."""
    queue: int
    similar: float
    """Texts at least so similar agree."""


def rules_of(ensemble: Ensemble, verifiers: Mapping[str, Verifier]) -> Rules:
    correctness = ensemble.correctness
    return Rules(verifiers, correctness.answer_bytes, correctness.queue, ensemble.shadow.similar)
