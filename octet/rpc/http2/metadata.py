"""What calls say beside their messages. A key that ends in -bin carries bytes, as base64 on the wire."""

from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import TypeAlias

from octet.rpc.http2.static_table import Header

Pairs: TypeAlias = Iterable[tuple[str, str | bytes]]
_BINARY = "-bin"
_OWN = frozenset(("grpc-status", "grpc-message", "content-type", "grpc-encoding", "grpc-accept-encoding"))
"""What gRPC says to itself."""


def text_of(key: str, value: str | bytes) -> bytes:
    """As a header says it. Raises ValueError."""
    if key.endswith(_BINARY):
        if not isinstance(value, bytes):
            raise ValueError(f"{key} is metadata of bytes")
        return b64encode(value).rstrip(b"=")
    text = value.decode("ascii") if isinstance(value, bytes) else value
    if not (text.isascii() and text.isprintable()):
        raise ValueError(f"metadata can only say what is printable in ASCII: {key}")
    return text.encode()


def metadata_of(headers: Iterable[Header]) -> tuple[tuple[str, str | bytes], ...]:
    """What whoever is called has said for the caller. Bytes that cannot be read are left out."""
    found: list[tuple[str, str | bytes]] = []
    for key, value in headers:
        if key in _OWN or key.startswith(":"):
            continue
        if not key.endswith(_BINARY):
            found.append((key, value))
            continue
        try:
            found += [(key, _bytes_of(part)) for part in value.split(",")]
        except ValueError:
            continue
    return tuple(found)


def _bytes_of(text: str) -> bytes:
    bare = text.strip().rstrip("=")
    return b64decode(bare + "=" * (-len(bare) % 4), validate=True)
