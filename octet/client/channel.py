"""gRPC channels: TLS credentials, API keys, options."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from octet.addresses import is_local

API_KEY_VARIABLE = "OCTET_API_KEY"
PathName: TypeAlias = str | PathLike[str]
_MessageT = TypeVar("_MessageT", bound=Message)
_OPTIONS = (
    ("grpc.max_receive_message_length", 32 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # clients do not share connections
)


def channel_options(keepalive: float | None = None) -> tuple[tuple[str, int], ...]:
    """Return gRPC options. After `keepalive` seconds without data during a call, the connection is probed."""
    if keepalive is None:
        return _OPTIONS
    if not keepalive >= 1:
        raise ValueError(f"keepalive must be at least 1 second, got {keepalive}")
    return (*_OPTIONS, ("grpc.keepalive_time_ms", round(keepalive * 1000)))


def load_credentials(ca: PathName | None, certificate: PathName | None, key: PathName | None) -> Any:
    """Return TLS credentials; None without `ca`. Raises ValueError for missing options, OSError on read errors."""
    if (certificate is None) != (key is None):
        raise ValueError("a TLS certificate and its key must be given together")
    if ca is None:
        if certificate is not None:
            raise ValueError("a client certificate requires the server's CA: the server must be verified")
        return None
    own = (None, None) if certificate is None or key is None else (_read(key), _read(certificate))
    return grpc.ssl_channel_credentials(_read(ca), *own)


def _read(path: PathName) -> bytes:
    return Path(path).read_bytes()


def open_channel(library: Any, address: str, credentials: Any, options: Sequence[tuple[str, int]]) -> Any:
    """Open a channel of `library`, grpc or grpc.aio; without credentials it is not encrypted."""
    if credentials is None:
        return library.insecure_channel(address, options=options)
    return library.secure_channel(address, credentials, options=options)


def serialize(message: Message) -> bytes:
    return bytes(message.SerializeToString())


def read_metadata_message(
    metadata: Sequence[tuple[str, bytes | str]] | None, key: str, kind: type[_MessageT]
) -> _MessageT | None:
    """Return the message under this key; None if it is missing or malformed."""
    for name, value in metadata or ():
        if name == key and isinstance(value, bytes):
            message: _MessageT = kind()
            try:
                message.ParseFromString(value)
            except DecodeError:
                return None
            return message
    return None


def call_error(call: Any, raised: BaseException) -> grpc.aio.AioRpcError:
    """Return the gRPC error of a failed grpc.aio call. A CancelledError is converted if the call was cancelled, and
    raised again if the current task was cancelled."""
    if isinstance(raised, grpc.aio.AioRpcError):
        return raised
    call.cancel()
    task = asyncio.current_task()
    if task is not None and task.cancelling() > 0:
        raise raised
    return grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, grpc.aio.Metadata(), grpc.aio.Metadata())


@dataclass(frozen=True, slots=True)
class ApiKey:
    text: str = field(repr=False)

    def __post_init__(self) -> None:
        """Raises ValueError for text that cannot be sent in a header."""
        if not self.text or not self.text.isascii() or not self.text.isprintable() or " " in self.text:
            raise ValueError("an API key must consist of printable ASCII characters without spaces")

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.text}"),)


def resolve_api_key(
    given: str | None, environment: Mapping[str, str], address: str, *, encrypted: bool, insecure: bool
) -> ApiKey | None:
    """Return the given API key, or the environment's. Raises ValueError if it would leave this machine unencrypted."""
    text = environment.get(API_KEY_VARIABLE, "").strip() if given is None else given.strip()
    if not text and given is None:
        return None
    if not (encrypted or insecure or is_local(address)):
        raise ValueError(
            f"the API key would be sent to {address} unencrypted: name the server's CA to use TLS, or set "
            "insecure=True (--insecure) if the network is secured otherwise"
        )
    return ApiKey(text)
