"""A primary's answer beside its shadow's."""

from dataclasses import dataclass

from admission.similarity import similarity
from octet.v1 import operator_pb2 as wire
from router.after.features import features
from router.after.sample import Finished
from router.between.shadowing import ShadowOrder
from router.verify.verdict import Outcome

_TELLING = ("passed", "failed")


@dataclass(frozen=True, slots=True)
class Pair:
    """Both texts, and what one and the same verifier says of them: the primary's."""

    primary: str
    shadow: str
    primary_outcome: Outcome
    shadow_outcome: Outcome


def agree(pair: Pair, alike: float, similar: float) -> bool:
    """Both right, both wrong, or nobody can tell; and the same thing said."""
    outcomes = (pair.primary_outcome, pair.shadow_outcome)
    nobody_tells = not any(outcome in _TELLING for outcome in outcomes)
    return (nobody_tells or outcomes[0] == outcomes[1]) and alike >= similar


def compare(finished: Finished, order: ShadowOrder, pair: Pair, similar: float, at_ms: int) -> wire.Comparison:
    """Pure, and not for the event loop: it reads both texts letter by letter."""
    decision = finished.receipt.decision
    alike = similarity(pair.primary, pair.shadow)
    agreed = agree(pair, alike, similar)
    indices, values = ([], []) if agreed else features(finished.question)
    return wire.Comparison(
        request_id=finished.receipt.request_id,
        at_unix_ms=at_ms,
        intent=decision.intent,
        primary=finished.receipt.specialist,
        shadow=label(order),
        why=order.why,
        confidence=decision.confidence if decision.HasField("confidence") else None,
        primary_outcome=pair.primary_outcome,
        shadow_outcome=pair.shadow_outcome,
        similarity=alike,
        agreed=agreed,
        feature_indices=indices,
        feature_values=values,
        classifier_digest=decision.classifier_digest,
    )


def label(order: ShadowOrder) -> str:
    """The specialist; for a lane that does not serve yet with its adapters, as callers name them."""
    way = order.way
    return "+".join((way.specialist, *way.names)) if way.fresh else way.specialist
