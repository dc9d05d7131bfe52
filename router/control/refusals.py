"""Why a change was not made."""

from collections.abc import Iterable

import grpc

from octet.rpc.refusal import Refusal, shorten
from octet.v1 import error_pb2 as wire

_LISTED = 12


def unknown_name(field: str, name: str, known: Iterable[str]) -> Refusal:
    names = list(known)
    more = ", ..." if len(names) > _LISTED else ""
    listed = f"one of {', '.join(names[:_LISTED])}{more}" if names else "nothing: there is none"
    return Refusal(
        grpc.StatusCode.NOT_FOUND,
        wire.ERROR_REASON_UNKNOWN_NAME,
        f"{field}: there is no {shorten(name)}; it may be {listed}",
        field=field,
        limit=listed,
        value=shorten(name),
    )


def conflict(message: str, field: str = "") -> Refusal:
    """Things are not as the caller took them to be."""
    return Refusal(grpc.StatusCode.FAILED_PRECONDITION, wire.ERROR_REASON_CONFLICT, message, field=field)


def outrun(what: str, tries: int) -> Refusal:
    message = f"{what} was changed by somebody else {tries} times while this change was being made; try again"
    return Refusal(grpc.StatusCode.ABORTED, wire.ERROR_REASON_CONFLICT, message)


def not_written(why: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.UNAVAILABLE,
        wire.ERROR_REASON_STORE_UNAVAILABLE,
        f"the change could not be written down: {why}",
    )


def perhaps_written(why: str) -> Refusal:
    """The database went away in the very moment: what is in the store when it is back is what counts."""
    return Refusal(
        grpc.StatusCode.UNAVAILABLE,
        wire.ERROR_REASON_STORE_UNAVAILABLE,
        f"the change may have been made or not: {why}; the audit tells when the store is back",
    )


def not_read(why: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.UNAVAILABLE, wire.ERROR_REASON_STORE_UNAVAILABLE, f"the audit cannot be read now: {why}"
    )


def nobody_to_load(specialist: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.UNAVAILABLE,
        wire.ERROR_REASON_NO_REPLICA,
        f"no replica of {specialist} can be reached: nobody could load it",
    )


def not_the_same(specialist: str, digests: dict[str, str]) -> Refusal:
    """Replicas read different files under the same path."""
    found = ", ".join(f"{replica} has {digest[:12]}" for replica, digest in sorted(digests.items()))
    return Refusal(
        grpc.StatusCode.FAILED_PRECONDITION,
        wire.ERROR_REASON_ADAPTER_REFUSED,
        f"the replicas of {specialist} see different files under this path: {found}",
        field="path",
        limit="the same content at every replica",
    )
