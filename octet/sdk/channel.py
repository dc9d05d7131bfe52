"""The connection, and what every call does alike."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from octet.sdk.api_key import ApiKey, KeyedChannel

PathName: TypeAlias = str | PathLike[str]
_MessageT = TypeVar("_MessageT", bound=Message)
_OPTIONS = (
    ("grpc.max_receive_message_length", 32 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # a client's connections are its own
)


def channel_options(keepalive: float | None = None) -> tuple[tuple[str, int], ...]:
    """`keepalive`: seconds of silence in the middle of a call after which the connection is probed."""
    if keepalive is None:
        return _OPTIONS
    if not keepalive >= 1:
        raise ValueError(f"keepalive must be at least 1 second, got {keepalive}")
    return (*_OPTIONS, ("grpc.keepalive_time_ms", round(keepalive * 1000)))


def credentials(ca: PathName | None, certificate: PathName | None, key: PathName | None) -> Any:
    """None for none at all. Raises ValueError for files that belong together and are not, OSError for one that
    cannot be read.
    """
    if (certificate is None) != (key is None):
        raise ValueError("a TLS certificate and its key belong together")
    if ca is None:
        if certificate is not None:
            raise ValueError("a TLS certificate is shown only to a server whose own is checked: name its CA as well")
        return None
    own = (None, None) if certificate is None or key is None else (_read(key), _read(certificate))
    return grpc.ssl_channel_credentials(_read(ca), *own)


def _read(path: PathName) -> bytes:
    return Path(path).read_bytes()


def dial(by: Any, address: str, shown: Any, options: Sequence[tuple[str, int]], key: ApiKey | None = None) -> Any:
    """A channel of `by`, which is grpc or grpc.aio. `shown` are credentials; None for none at all. The key goes along
    with every call."""
    if shown is None:
        channel = by.insecure_channel(address, options=options)
    else:
        channel = by.secure_channel(address, shown, options=options)
    return channel if key is None else KeyedChannel(channel, key)


def serialize(message: Message) -> bytes:
    return bytes(message.SerializeToString())


def found_in(metadata: Sequence[tuple[str, bytes | str]] | None, key: str, kind: type[_MessageT]) -> _MessageT | None:
    """The message that travels under this key; None where there is none, or none that can be read."""
    for name, value in metadata or ():
        if name == key and isinstance(value, bytes):
            message: _MessageT = kind()
            try:
                message.ParseFromString(value)
            except DecodeError:
                return None
            return message
    return None
