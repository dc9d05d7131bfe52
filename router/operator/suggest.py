"""A name that nobody has, beside the one that was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches

from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2 as wire


def suggesting(refusal: Refusal, given: str, known: Iterable[str]) -> Refusal:
    """The same refusal, with a suggestion where there is one."""
    error = refusal.error
    near = get_close_matches(given, list(known), n=1) if error.reason == wire.ERROR_REASON_UNKNOWN_NAME else []
    if not near:
        return refusal
    words = f"{error.message}; did you mean {near[0]}?"
    return Refusal(refusal.code, error.reason, words, field=error.field, limit=error.limit, value=error.value)
