"""What became of a request, in one word: the same for receipts, metrics and every window."""

from typing import Literal, get_args

from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire

Outcome = Literal["answered", "refused", "failed", "cancelled"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
NO_ROOM = frozenset(
    {
        error_pb2.ERROR_REASON_QUEUE_FULL,
        error_pb2.ERROR_REASON_DEADLINE_UNREACHABLE,
        error_pb2.ERROR_REASON_WOULD_DELAY_OTHERS,
        error_pb2.ERROR_REASON_SHED,
    }
)
"""Too many wait, or somebody would be late."""
_CALLERS_DOING = frozenset({error_pb2.ERROR_REASON_CANCELLED, error_pb2.ERROR_REASON_CALLER_STALLED})
_OURS = frozenset(
    {
        error_pb2.ERROR_REASON_UNSPECIFIED,
        error_pb2.ERROR_REASON_DEADLINE,
        error_pb2.ERROR_REASON_ENGINE_FAILED,
        error_pb2.ERROR_REASON_REPLICA_FAILED,
        error_pb2.ERROR_REASON_REPLICA_LOST,
        error_pb2.ERROR_REASON_NO_REPLICA,
        error_pb2.ERROR_REASON_INTERNAL,
        error_pb2.ERROR_REASON_STORE_UNAVAILABLE,
    }
)
"""A deadline that passes is one of them: whoever could not be answered in time is to be refused at once."""


def outcome_of(receipt: wire.Receipt) -> Outcome:
    """Of a request that has ended.

    answered: whole. cancelled: the caller cancelled, left, or took nothing more. failed: a replica, the router or time
    failed the caller, or an answer that had begun broke off. refused: turned away before anything was said, for want of
    room, by a rule, or because nobody could do what was asked.
    """
    if not receipt.HasField("error"):
        return "answered"
    return outcome_of_error(receipt.error, begun=receipt.timings.HasField("first_chunk"))


def outcome_of_error(error: wire.Error, *, begun: bool = False) -> Outcome:
    """Of a request that ended so; `begun` where a part of the answer had been said."""
    if error.reason in _CALLERS_DOING:
        return "cancelled"
    return "failed" if begun or error.reason in _OURS else "refused"


def specialist_of(receipt: wire.Receipt) -> str:
    """Whose request it is, for every window: who answered, or else was asked first, or else was to be; empty where
    nobody was."""
    return receipt.specialist or asked_first(receipt)


def asked_first(receipt: wire.Receipt) -> str:
    """Before anybody else; where nobody was asked, who was to be. A stand-in, where the decision's primary has one."""
    lead = str(receipt.between.lead or receipt.decision.primary)
    if receipt.between.spilled or not receipt.attempts:  # of many attempts, the first are not kept
        return lead
    return str(receipt.attempts[0].specialist)


def reason_name(reason: int) -> str:
    """Of an ErrorReason, in small letters; one that has no name here is `other`."""
    return _NAMES.get(reason, "other")


_NAMES: dict[int, str] = {
    number: name.removeprefix("ERROR_REASON_").lower() for name, number in error_pb2.ErrorReason.items()
}
REASONS = frozenset((*_NAMES.values(), "other"))
