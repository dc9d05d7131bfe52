"""Who should answer, and everything that led there."""

from dataclasses import dataclass
from typing import Literal

from octet.v1 import inference_pb2 as wire

Source = Literal["forced", "intent", "rule", "classifier", "default", "nobody"]


@dataclass(frozen=True, slots=True)
class Decision:
    source: Source
    decided_by: str
    """The rule, the intent, or the classifier's digest."""
    why: str
    primary: str
    """Empty when nobody should answer."""
    second_choice: str
    distribution: tuple[tuple[str, float], ...]
    """Most likely first; empty when the classifier was not asked."""
    confidence: float | None
    intent: str
    task: str
    adapters: tuple[str, ...]
    """Of the primary."""
    sampling: wire.Sampling
    max_tokens: int
    notes: tuple[str, ...]
    request_digest: str
    config_digest: str
    classifier_digest: str
