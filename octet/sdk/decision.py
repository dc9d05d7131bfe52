"""Who should answer, and everything that led there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octet.v1 import inference_pb2 as wire


@dataclass(frozen=True, slots=True)
class Score:
    specialist: str
    probability: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Same request, same configuration, same classifier: same decision."""

    source: str
    """forced, intent, rule, classifier or default; empty when nobody should answer."""
    decided_by: str
    """The rule, the intent, or the classifier's digest."""
    why: str
    primary: str
    """Empty when nobody should answer."""
    second_choice: str
    distribution: tuple[Score, ...]
    """Most likely first, with "reject"; empty when the classifier was not asked."""
    confidence: float | None
    intent: str
    task: str
    adapters: tuple[str, ...]
    """Names."""
    sampling: Mapping[str, Any] = field(hash=False)
    """Only what is set."""
    max_tokens: int
    notes: tuple[str, ...]
    request_digest: str
    config_digest: str
    classifier_digest: str

    @classmethod
    def from_wire(cls, message: wire.Decision) -> "Decision":
        return cls(
            source=word(wire.DecisionSource, message.source, "DECISION_SOURCE_"),
            decided_by=message.decided_by,
            why=message.why,
            primary=message.primary,
            second_choice=message.second_choice,
            distribution=tuple(Score(each.specialist, each.probability) for each in message.distribution),
            confidence=message.confidence if message.HasField("confidence") else None,
            intent=message.intent,
            task=message.task,
            adapters=tuple(message.adapters),
            sampling=_sampling(message.sampling),
            max_tokens=message.max_tokens,
            notes=tuple(message.notes),
            request_digest=message.request_digest,
            config_digest=message.config_digest,
            classifier_digest=message.classifier_digest,
        )


def word(enum: Any, value: int, prefix: str) -> str:
    """An enum's value in small letters, empty for the unspecified one. A newer server's shows its number."""
    if value not in enum.values():
        return str(value)
    return "" if value == 0 else str(enum.Name(value)).removeprefix(prefix).lower()


def _sampling(message: wire.Sampling) -> dict[str, Any]:
    found = {each.name: value for each, value in message.ListFields()}
    if "logit_bias" in found:
        found["logit_bias"] = {str(each.token): each.bias for each in message.logit_bias}
    return found
