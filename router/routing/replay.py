"""Replay a recorded decision, and list the differences."""

from math import isclose
from typing import Any

from octet.clock import ManualClock
from octet.v1 import inference_pb2 as wire
from router.receipts import decision_to_wire
from router.request import Request, RoutingDecision, Tracer
from router.routing.classifier.base import Classifier
from router.routing.policy import NO_CLASSIFIER_NOTE, RoutingPolicy
from router.routing.validation import RequestValidator

_WITHOUT_CLASSIFIER = (wire.DECISION_SOURCE_UNSPECIFIED, wire.DECISION_SOURCE_DEFAULT)
"""The possible sources of a decision if the classifier did not answer."""
_TOLERANCE = 1e-9  # for probabilities: vector units of different machines sum the same weights differently


def replay(
    receipt: wire.Receipt, message: wire.InferRequest, policy: RoutingPolicy, classifier: Classifier
) -> list[str]:
    """Return one line per field that differs. Raises Refusal for a request that would be refused now."""
    validator = RequestValidator(ManualClock(), lambda: receipt.request_id, Tracer(bytes), default_timeout=1.0)
    request = validator.validate(message, None, None)
    recorded = receipt.decision
    again = decision_to_wire(_decide_again(request, recorded, policy, classifier))
    return [
        f"{name}: was {_format_value(getattr(recorded, name))}, would now be {_format_value(getattr(again, name))}"
        for name in (field.name for field in wire.Decision.DESCRIPTOR.fields)
        if not _is_same(name, recorded, again)
    ]


def _decide_again(
    request: Request, recorded: wire.Decision, policy: RoutingPolicy, classifier: Classifier
) -> RoutingDecision:
    """A classifier that was unavailable then is not asked now: its absence was part of the input."""
    if recorded.source in _WITHOUT_CLASSIFIER and not recorded.classifier_digest:
        notes = tuple(note for note in recorded.notes if note.startswith(NO_CLASSIFIER_NOTE))
        return policy.decide(request, None, "", notes)
    return policy.decide(request, classifier.classify([request.text])[0], classifier.digest)


def _is_same(name: str, recorded: wire.Decision, again: wire.Decision) -> bool:
    if name == "distribution":
        return _are_scores_same(recorded.distribution, again.distribution)
    if name == "confidence":
        return recorded.HasField(name) == again.HasField(name) and _is_close(recorded.confidence, again.confidence)
    return bool(getattr(recorded, name) == getattr(again, name))


def _are_scores_same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(
        left.specialist == right.specialist and _is_close(left.probability, right.probability)
        for left, right in zip(one, other, strict=True)
    )


def _is_close(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def _format_value(value: object) -> str:
    return " ".join(str(value).split()) or "nothing"
