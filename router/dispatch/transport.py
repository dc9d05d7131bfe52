"""The transport to replicas: addresses, TLS, and the interface that both kinds of channel implement."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, Unpack

import grpc

from octet.client.attached import ATTACH, Attacher, DuplexCall
from router.dispatch.http2.call import ReadLimits
from router.dispatch.http2.channel import UNIX, CallOptions, Http2Channel, ServerAddress, client_tls_context
from router.dispatch.http2.connection import PING_AFTER_SECONDS, PING_TIMEOUT_SECONDS
from router.dispatch.http2.frames import MetadataPairs

LOOKAHEAD_BYTES = 512
"""Bytes of an answer that a replica may send before they are read: the acceptance and some tokens. Tokens that arrive
faster than they are relayed wait at the replica, which merges them into one message. The limit also bounds the
buffer for a slow caller. The window grows when a longer message is read."""
READ_LIMITS = ReadLimits(max_message_bytes=32 << 20, lookahead=LOOKAHEAD_BYTES)
_FRAMES_BYTES = 1 << 18  # of frames that may arrive before they are read
GENERATE = "/octet.v1.Specialist/Generate"
_CONNECT_SECONDS = 5.0  # grpcio's time limit for a connection, with TLS and the exchange of HTTP/2 settings
_DNS = "dns:///"


class ReplicaChannel(Protocol):
    """A channel for calls to one replica, connected on first use. Requests and answers are serialized messages."""

    def stream(self, method: str, request: bytes, **options: Unpack[CallOptions]) -> Any:
        """Start a call and return it; it must be read to the end or cancelled. Its `read()` returns the next message or
        grpc.aio.EOF; it can also be iterated. Raises ValueError for invalid metadata."""

    def call(self, method: str, request: bytes, **options: Unpack[CallOptions]) -> Any:
        """Return a call; await it for the answer's bytes, or cancel it. Raises ValueError for invalid metadata."""

    async def close(self) -> None:
        """Cancel the remaining calls and close the connection."""


class DuplexChannel(ReplicaChannel, Protocol):
    def duplex(self, method: str, lookahead: int) -> DuplexCall:
        """Start a call with streams of messages in both directions, as soon as the server is connected. `lookahead` is
        how many bytes the server may send before they are read."""


class AttachedChannel:
    """A ReplicaChannel whose requests share an attached call, while there is one."""

    def __init__(self, channel: DuplexChannel, name: str) -> None:
        """`name` is that of the replica in the log."""
        self._channel = channel
        self._attacher = Attacher(lambda: channel.duplex(ATTACH, _FRAMES_BYTES), LOOKAHEAD_BYTES, name)

    @property
    def is_attached(self) -> bool:
        return self._attacher.is_open

    def stream(self, method: str, request: bytes, **options: Unpack[CallOptions]) -> Any:
        self._attacher.attach_when_due()
        if method == GENERATE:
            call = self._attacher.start(request, options.get("timeout"), options.get("metadata", ()))
            if call is not None:
                return call
        return self._channel.stream(method, request, **options)

    def call(self, method: str, request: bytes, **options: Unpack[CallOptions]) -> Any:
        return self._channel.call(method, request, **options)

    async def close(self) -> None:
        await self._attacher.close()
        await self._channel.close()


class GrpcChannel:
    """A ReplicaChannel over grpcio, used with `dispatch.transport: grpc`."""

    def __init__(self, address: str, limits: ReadLimits, credentials: Any = None, authority: str = "") -> None:
        options: list[tuple[str, int | str]] = [
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", round(_CONNECT_SECONDS * 1000)),  # the limit for connecting
            ("grpc.max_reconnect_backoff_ms", 500),
            ("grpc.keepalive_time_ms", round(PING_AFTER_SECONDS * 1000)),
            ("grpc.keepalive_timeout_ms", round(PING_TIMEOUT_SECONDS * 1000)),
            ("grpc.max_receive_message_length", limits.max_message_bytes),
            ("grpc.http2.lookahead_bytes", limits.lookahead),
        ]
        if authority:
            options.append(("grpc.ssl_target_name_override", authority))
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options)
        self._methods: dict[tuple[Any, str], Any] = {}

    def stream(self, method: str, request: bytes, **options: Unpack[CallOptions]) -> Any:
        return self._start(self._channel.unary_stream, method, request, **options)

    def call(self, method: str, request: bytes, **options: Unpack[CallOptions]) -> Any:
        return self._start(self._channel.unary_unary, method, request, **options)

    def duplex(self, method: str, lookahead: int) -> Any:
        """gRPC looks as far ahead as the channel's option says, but its calls are read at once."""
        return self._channel.stream_stream(method)(wait_for_ready=True)

    def _start(self, kind: Any, method: str, request: bytes, metadata: MetadataPairs = (), **options: Any) -> Any:
        start = self._methods.get((kind, method))
        if start is None:
            start = self._methods[kind, method] = kind(method)
        return start(request, metadata=tuple(metadata), **options)

    async def close(self) -> None:
        await self._channel.close()


@dataclass(frozen=True, slots=True)
class ReplicaTarget:
    label: str  # the suffix of the replica's name: the same on every router with the same configuration
    address: str  # host:port or unix:PATH
    authority: str = ""  # the name on the replica's certificate, if it differs from the address
    weights: int = 0  # the number of its weights, if a supervisor runs it; 0 for those that the configuration names


Connect: TypeAlias = Callable[[ReplicaTarget, ReadLimits], ReplicaChannel]
TransportKind: TypeAlias = Literal["http2", "grpc"]


@dataclass(frozen=True, slots=True)
class ReplicaTls:
    """TLS files for connections to replicas. Raises ValueError if only one of certificate and key is given."""

    ca: Path  # signs the certificates of replicas
    certificate: Path | None = None  # the router's own certificate, for replicas that require one
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("--replica-certificate and --replica-key must be given together")


def open_transport(kind: TransportKind = "http2", tls: ReplicaTls | None = None, *, attach: bool = True) -> Connect:
    """Return a function that opens channels to replicas. With `attach`, the requests to a replica share a call. Raises
    OSError for a TLS file that cannot be read or used."""
    context: Any = None if tls is None else client_tls_context(tls.ca, tls.certificate, tls.key)
    channel: Callable[..., DuplexChannel] = Http2Channel
    if kind == "grpc":
        channel = GrpcChannel
        if tls is not None:
            files = (tls.ca, tls.key, tls.certificate)
            context = grpc.ssl_channel_credentials(*(None if path is None else path.read_bytes() for path in files))

    def connect(target: ReplicaTarget, limits: ReadLimits) -> ReplicaChannel:
        if context is None or target.address.startswith(UNIX):
            opened = channel(target.address, limits)
        else:
            opened = channel(target.address, limits, context, target.authority)
        return AttachedChannel(opened, target.address) if attach else opened

    return connect


def check_address(address: str) -> None:
    """Raises AddressInvalid unless the address has the form host:port, dns:///name:port or unix:PATH."""
    ServerAddress.parse(address.removeprefix(_DNS))


def is_dns(address: str) -> bool:
    return address.startswith(_DNS)


async def resolve_targets(address: str) -> tuple[ReplicaTarget, ...]:
    """Return a target for every IP address of a DNS name, sorted. Only the machine's preferred address family is used,
    so that a replica with an IPv4 and an IPv6 address counts once. Raises OSError when the lookup fails."""
    server = ServerAddress.parse(address.removeprefix(_DNS))
    host, port = server.host, server.port
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    ips = {str(where[0]) for family, _, _, _, where in found if family == found[0][0]}
    places = sorted(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in ips)
    return tuple(ReplicaTarget(place, place, authority=host) for place in places)
