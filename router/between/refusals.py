"""Why a request that somebody should answer is answered by nobody now."""

from collections.abc import Iterable, Mapping

import grpc

from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2 as wire
from router.between.standing import Knobs, SpecialistStanding

_TURNED: Mapping[str, str] = {"": "the configuration", "operator": "an operator"}
_FORCED = "the caller will have nobody else (force_specialists)"


def below_floor(intent: str, specialist: str, knobs: Knobs, priority: int) -> Refusal:
    """No time is named after which to try again: only a higher priority helps, or a lower floor."""
    return Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        wire.ERROR_REASON_BELOW_FLOOR,
        f"a higher priority is needed now: the intent {intent!r} takes {knobs.floor} or more at {specialist} "
        f"(set by {_TURNED.get(knobs.floor_by, knobs.floor_by)}), this request has {priority}",
        field="priority",
        limit=f"at least {knobs.floor}",
        value=str(priority),
    )


def demoted(primary: SpecialistStanding, passed_over: Iterable[str], *, forced: bool) -> Refusal:
    """`passed_over` says of everybody who might have stood in why they do not."""
    reasons = "; ".join(passed_over) or "nobody is configured to stand in"
    if forced:
        reasons = f"{_FORCED}; {reasons}" if passed_over else _FORCED
    return Refusal(
        grpc.StatusCode.UNAVAILABLE,
        wire.ERROR_REASON_DEMOTED,
        f"{primary.name} does not answer now: {primary.because or primary.correctness}; {reasons}",
        field="force_specialists" if forced else "",
        limit="a specialist that serves" if forced else "",
        value=primary.name if forced else "",
    )


def away(reasons: Iterable[str]) -> Refusal:
    """Replicas are there, and none of them could answer."""
    return Refusal(grpc.StatusCode.UNAVAILABLE, wire.ERROR_REASON_NO_REPLICA, "; ".join(reasons))
