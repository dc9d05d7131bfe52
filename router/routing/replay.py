"""Replay a recorded decision, and list the differences."""

from math import isclose

from octet.clock import ManualClock
from octet.v1 import inference_pb2 as wire
from router.receipts import decision_to_wire
from router.request import Request, RoutingDecision, Tracer
from router.routing.classifier.base import Classifier
from router.routing.policy import NO_CLASSIFIER_NOTE, RoutingPolicy
from router.routing.validation import RequestValidator

_WITHOUT_CLASSIFIER = (*(wire.DECISION_SOURCE_UNSPECIFIED, wire.DECISION_SOURCE_DEFAULT, wire.DECISION_SOURCE_BARE),)
"""The possible sources of a decision if the classifier did not answer."""
_TOLERANCE = 1e-9


def replay(
    receipt: wire.Receipt, message: wire.InferRequest, policy: RoutingPolicy, classifier: Classifier
) -> list[str]:
    """Decide again, and return one line per field that differs. Raises Refusal if the request would be refused now."""
    validator = RequestValidator(ManualClock(), lambda: receipt.request_id, Tracer(bytes), default_timeout=1.0)
    request = validator.validate(message, None, None)
    recorded = receipt.decision
    again = decision_to_wire(_decide_again(request, recorded, policy, classifier))
    _ignore_rounding(recorded, again)
    before, now = ({field.name: value for field, value in decision.ListFields()} for decision in (recorded, again))
    return [
        f"{name}: was {_format_value(getattr(recorded, name))}, would now be {_format_value(getattr(again, name))}"
        for name in (field.name for field in wire.Decision.DESCRIPTOR.fields)
        if before.get(name) != now.get(name)
    ]


def _decide_again(
    request: Request, recorded: wire.Decision, policy: RoutingPolicy, classifier: Classifier
) -> RoutingDecision:
    """Decide again. A classifier that was unavailable then is not asked now: its absence was part of the input."""
    if recorded.source in _WITHOUT_CLASSIFIER and not recorded.classifier_digest:
        notes = tuple(note for note in recorded.notes if note.startswith(NO_CLASSIFIER_NOTE))
        return policy.decide(request, None, "", notes)
    return policy.decide(request, classifier.classify([request.text])[0], classifier.digest)


def _ignore_rounding(recorded: wire.Decision, again: wire.Decision) -> None:
    """Copy a recorded probability to `again` if it almost equals the new one, because vector units of other machines
    may round the same sums differently."""
    for one, other in zip(recorded.distribution, again.distribution, strict=False):
        if _is_close(one.probability, other.probability):
            other.probability = one.probability
    if again.HasField("confidence") and _is_close(recorded.confidence, again.confidence):
        again.confidence = recorded.confidence


def _is_close(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def _format_value(value: object) -> str:
    return " ".join(str(value).split()) or "nothing"
