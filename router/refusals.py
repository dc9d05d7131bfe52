"""Why a request found nobody here to answer it."""

from collections.abc import Iterable

import grpc

from octet.rpc.refusal import Refusal, cancelled, invalid, past_deadline, shorten
from octet.v1 import error_pb2 as wire
from router.decide.decision import Decision

_DEADLINE_GRAIN = 0.05
_DEADLINE_ROUNDING = 0.01
"""Seconds, and a share of the whole time a request had."""


def no_specialist(decision: Decision) -> Refusal:
    """Trying again would change nothing, unless nobody decided because the classifier did not answer."""
    return Refusal(
        grpc.StatusCode.FAILED_PRECONDITION if decision.decided_by else grpc.StatusCode.UNAVAILABLE,
        wire.ERROR_REASON_NO_SPECIALIST,
        f"no specialist should answer this: {decision.why}",
    )


def unknown_specialist(field: str, name: str, known: Iterable[str]) -> Refusal:
    listed = ", ".join(known)
    return Refusal(
        grpc.StatusCode.NOT_FOUND,
        wire.ERROR_REASON_UNKNOWN_SPECIALIST,
        f"there is no specialist {shorten(name)}; there are {listed}",
        field=field,
        limit=f"one of {listed}",
        value=shorten(name),
    )


def unknown_intent(name: str, known: Iterable[str]) -> Refusal:
    listed = ", ".join(known)
    return invalid("intent", f"one of {listed}" if listed else "unset: no intents are configured", shorten(name))


def no_replica(specialist: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.UNAVAILABLE, wire.ERROR_REASON_NO_REPLICA, f"no replica of {specialist} can be reached"
    )


def quarantined(num_deaths: int, seconds: float) -> Refusal:
    """The caller is not told to come back: whoever does brings the same."""
    return Refusal(
        grpc.StatusCode.FAILED_PRECONDITION,
        wire.ERROR_REASON_QUARANTINED,
        f"{num_deaths} replicas died with this request in flight: it is asked of nobody for another {seconds:.0f} s",
    )


def caller_gone(arrival: float, deadline: float, now: float) -> Refusal:
    """A call is ended by its transport at its deadline too, and it looks the same. The caller's clock is a little
    ahead: gRPC rounds what it has left up, by a hundredth at most."""
    grain = max(_DEADLINE_GRAIN, (deadline - arrival) * _DEADLINE_ROUNDING)
    return past_deadline() if now >= deadline - grain else cancelled()
