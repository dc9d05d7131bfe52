"""The key that came with a call, wherever callers put it."""

from collections.abc import Iterable

from router.keys.refusals import no_key, several_keys

_AUTHORIZATION = b"authorization"
_API_KEY = b"x-api-key"
_BEARER = b"bearer"
Headers = Iterable[tuple[bytes, bytes]]
"""Names in lower case."""


def shown_key(headers: Headers) -> bytes:
    """Raises Refusal where there is none, and where it is not clear which one counts."""
    given = [(name, value) for name, value in headers if name in (_AUTHORIZATION, _API_KEY)]
    keys = {_key(name, value) for name, value in given} - {b""}
    if len(given) > len({name for name, _ in given}) or len(keys) > 1:
        raise several_keys()
    if not keys:
        raise no_key()
    return keys.pop()


def _key(name: bytes, value: bytes) -> bytes:
    """Empty for credentials of another kind."""
    if name == _API_KEY:
        return value.strip()
    scheme, _, key = value.strip().partition(b" ")
    return key.strip() if scheme.lower() == _BEARER else b""


def from_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> Headers:
    """As gRPC has them."""
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode(errors="surrogateescape"))
        for name, value in metadata or ()
    ]
