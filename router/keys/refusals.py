"""Why somebody is not let in. None of it says what was shown, nor whether anything like it is known."""

from math import ceil

import grpc

from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2 as wire

HOW = "Authorization: Bearer KEY"


def no_key() -> Refusal:
    return _unauthenticated(f"this needs a key: send it as `{HOW}`")


def unknown_key() -> Refusal:
    return _unauthenticated("nobody here knows this key, or it is known no more")


def several_keys() -> Refusal:
    return _unauthenticated("more than one key was sent: send one")


def _unauthenticated(message: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.UNAUTHENTICATED,
        wire.ERROR_REASON_UNAUTHENTICATED,
        message,
        field="authorization",
        limit="a key that is known here",
    )


def forbidden(role: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.PERMISSION_DENIED,
        wire.ERROR_REASON_FORBIDDEN,
        f"this key may not do this: it needs the role {role!r}",
        field="authorization",
        limit=f"a key with the role {role!r}",
    )


def undeclared() -> Refusal:
    return Refusal(
        grpc.StatusCode.PERMISSION_DENIED,
        wire.ERROR_REASON_FORBIDDEN,
        "nobody may do this: no role has been declared for it",
    )


def limited(field: str, most: int | None, what: str, retry_after: float | None) -> Refusal:
    """Rounded up: whoever comes back then is let in."""
    after = None if retry_after is None else ceil(retry_after * 1000) / 1000
    return Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        wire.ERROR_REASON_KEY_LIMIT,
        f"this key may have {most} {what}",
        field=field,
        limit=f"at most {most} {what}",
        retry_after=after,
    )
