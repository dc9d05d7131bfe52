"""Whether a decision would be the same again: the same function, the same inputs, and what differs if it is not."""

from math import isclose
from typing import Any

from octet.clock import ManualClock
from octet.v1 import inference_pb2 as wire
from router.classify.base import Classifier
from router.decide.decider import SILENT
from router.decide.decision import Decision
from router.decide.policy import Policy
from router.receipts.decision_wire import decision_to_wire
from router.reception.ask import Ask
from router.reception.limits import Limits
from router.reception.reception import Reception
from router.reception.trace import Tracer

_UNHEARD = (wire.DECISION_SOURCE_UNSPECIFIED, wire.DECISION_SOURCE_DEFAULT)
"""Who decides where the classifier is silent."""
_TOLERANCE = 1e-9
"""Of a probability: the same weights, added up by another machine's vector units."""


def replay(
    receipt: wire.Receipt,
    request: wire.InferRequest,
    policy: Policy,
    classifier: Classifier,
    limits: Limits | None = None,
) -> list[str]:
    """What differs, a line each; empty when the decision is the same. Raises Refusal where the request is refused."""
    ask = _asked(receipt, request, limits)
    recorded = receipt.decision
    again = decision_to_wire(_decided(ask, recorded, policy, classifier))
    return [
        f"{name}: {_shown(getattr(recorded, name))} was decided, {_shown(getattr(again, name))} would be now"
        for name in (field.name for field in wire.Decision.DESCRIPTOR.fields)
        if not _same(name, recorded, again)
    ]


def _asked(receipt: wire.Receipt, request: wire.InferRequest, limits: Limits | None) -> Ask:
    """When it arrived and what it was called decides nothing."""
    reception = Reception(ManualClock(), lambda: receipt.request_id, Tracer(bytes), default_timeout=1.0, limits=limits)
    return reception.receive(request, None, None)


def _decided(ask: Ask, recorded: wire.Decision, policy: Policy, classifier: Classifier) -> Decision:
    """A classifier that did not answer then is left out now: its silence was an input like any other."""
    if recorded.source in _UNHEARD and not recorded.classifier_digest:
        silence = tuple(note for note in recorded.notes if note.startswith(SILENT))
        return policy.decide(ask, None, "", silence)
    return policy.decide(ask, classifier.classify([ask.text])[0], classifier.digest)


def _same(name: str, recorded: wire.Decision, again: wire.Decision) -> bool:
    if name == "distribution":
        return _same_scores(recorded.distribution, again.distribution)
    if name == "confidence":
        return recorded.HasField(name) == again.HasField(name) and _close(recorded.confidence, again.confidence)
    return bool(getattr(recorded, name) == getattr(again, name))


def _same_scores(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(
        left.specialist == right.specialist and _close(left.probability, right.probability)
        for left, right in zip(one, other, strict=True)
    )


def _close(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def _shown(value: object) -> str:
    return " ".join(str(value).split()) or "nothing"
