"""A channel to one server over one HTTP/2 connection at a time, opened on demand."""

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from random import uniform
from typing import TypedDict, TypeVar, Unpack

from grpc.aio import UsageError

from router.dispatch.http2.call import Http2Call, Http2DuplexCall, Http2UnaryCall, ReadLimits, unavailable
from router.dispatch.http2.connection import Http2Connection
from router.dispatch.http2.frames import MetadataPairs, encode_call_headers, encode_metadata

_log = logging.getLogger(__name__)
_CallT = TypeVar("_CallT", bound=Http2Call)
DIAL_SECONDS = 1.0  # time limit for each IP address
_CLOSING_SECONDS = 0.5
_FIRST_BACKOFF_SECONDS = 0.1
_MAX_BACKOFF_SECONDS = 0.5  # short, so that a server that is back is found before waiting requests time out
_BACKOFF_FACTOR = 1.6
_BACKOFF_JITTER = 0.2
_USER_TIMEOUT_MS = 5_000  # TCP_USER_TIMEOUT: sent data that stays unacknowledged for this long ends the connection
UNIX = "unix:"
_ALPN = "h2"


class CallOptions(TypedDict, total=False):
    timeout: float | None
    metadata: MetadataPairs
    wait_for_ready: bool


class AddressInvalid(ValueError):
    """The address is invalid; the message describes a valid one."""


class ServerUnreachable(Exception):
    """The server cannot be reached; the message states why."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    host: str
    port: int
    path: str = ""  # the path of a Unix socket; empty for TCP

    @classmethod
    def parse(cls, address: str) -> "ServerAddress":
        """Parse host:port or unix:PATH. Raises AddressInvalid."""
        if address.startswith(UNIX):
            path = address.removeprefix(UNIX)
            if not path:
                raise AddressInvalid(f"a Unix socket must be given as unix:PATH, got {address!r}")
            return cls("localhost", 0, path.removeprefix("//") if path.startswith("///") else path)
        host, _, port = address.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not bare or "/" in bare or not port.isdecimal() or not 0 < int(port) < 65536:
            raise AddressInvalid(f"an address must be host:port, dns:///name:port or unix:PATH, got {address!r}")
        return cls(bare, int(port))

    async def resolve(self) -> tuple[str, ...]:
        """Return every IP address of the host, in the system's order. Raises OSError if the lookup fails."""
        found = await asyncio.get_running_loop().getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        return tuple(dict.fromkeys(str(where[0]) for *_, where in found))


def client_tls_context(ca: Path, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """Return a context that trusts servers with a certificate signed by `ca`. Raises OSError for an unusable file."""
    for path in (ca, certificate, key):  # OpenSSL's own error does not name the file
        if path is not None:
            path.read_bytes()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # accept an intermediate CA, as grpcio does
    context.set_alpn_protocols([_ALPN])
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise OSError(f"{ca} contains no certificates: {error}") from None
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key, password=_refuse_password)
        except ssl.SSLError as error:
            raise OSError(f"{certificate} and {key} are not a certificate and its key: {error}") from None
    return context


def _refuse_password() -> str:
    raise OSError("a key with a password cannot be used")


class Http2Channel:
    """A channel to one server. It connects when it is used without a connection. After a failed dial, calls fail at
    once until the backoff is over; calls with `wait_for_ready` wait instead. Used only on the event loop."""

    def __init__(
        self, address: str, limits: ReadLimits, tls: ssl.SSLContext | None = None, authority: str = ""
    ) -> None:
        """`authority` is the name on the certificate, if it differs from the address. Raises AddressInvalid."""
        self._address = ServerAddress.parse(address)
        self._limits = limits
        self._tls = tls
        self._name = authority or self._address.host
        self._authority = authority or (self._address.host if self._address.path else address)
        self._headers: dict[str, bytes] = {}  # encoded call headers by method
        self._connection: Http2Connection | None = None
        self._connections: set[Http2Connection] = set()  # the current one, and older ones that still have calls
        self._queued: dict[Http2Call, bool] = {}  # calls without a connection, each with its `wait_for_ready`
        self._dialling: asyncio.Task[None] | None = None
        self._redial: asyncio.TimerHandle | None = None
        self._backoff = _FIRST_BACKOFF_SECONDS
        self._not_before = 0.0
        self._down: str | None = None  # why the last dial failed; None after a success and while a new dial is due
        self._closed = False

    def stream(self, method: str, request: bytes, **options: Unpack[CallOptions]) -> Http2Call:
        return self._start(Http2Call, method, request, **options)

    def call(self, method: str, request: bytes, **options: Unpack[CallOptions]) -> Http2UnaryCall:
        return self._start(Http2UnaryCall, method, request, **options)

    def duplex(self, method: str, lookahead: int) -> Http2DuplexCall:
        call = self._start(Http2DuplexCall, method, b"", wait_for_ready=True)
        call.look_ahead(lookahead)
        return call

    def _start(
        self,
        kind: type[_CallT],
        method: str,
        request: bytes,
        timeout: float | None = None,
        metadata: MetadataPairs = (),
        wait_for_ready: bool = False,
    ) -> _CallT:
        headers = self._headers.get(method)
        if headers is None:
            scheme = "http" if self._tls is None else "https"
            headers = self._headers[method] = encode_call_headers(scheme, self._authority, method)
        if metadata:
            headers += encode_metadata(metadata)
        call = kind(asyncio.get_running_loop(), headers, request, timeout, self._limits)
        if self._closed:
            call.cancel()
            raise UsageError("the channel is closed")
        if self._connection is not None:
            self._connection.begin(call)
        elif not wait_for_ready and self._is_down():
            call.end(unavailable(self._down or ""))
        else:
            self._queued[call] = wait_for_ready
            call.owner = self
            self._dial_when_due()
        return call

    async def close(self) -> None:
        """Cancel the remaining calls and close the connections."""
        self._closed = True
        for call in [*self._queued]:
            call.cancel()
        if self._redial is not None:
            self._redial.cancel()
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.gather(self._dialling, return_exceptions=True)
        closing = [*self._connections]
        for connection in closing:
            connection.close()
        if closing:
            await asyncio.wait([connection.closed for connection in closing], timeout=_CLOSING_SECONDS)

    def _is_down(self) -> bool:
        """Whether new calls fail at once because the last dial failed. A failure is forgotten after the backoff."""
        if self._down is None:
            return False
        if self._dialling is None and asyncio.get_running_loop().time() >= self._not_before:
            self._down = None
            return False
        return True

    def leave(self, call: Http2Call) -> None:
        self._queued.pop(call, None)
        if not self._queued and self._redial is not None:
            self._redial.cancel()
            self._redial = None

    def widen(self, call: Http2Call) -> None:
        """Do nothing: a queued call receives nothing."""

    def push(self, call: Http2Call) -> None:
        """Do nothing: what a queued call has to send is sent when its stream is opened."""

    def _dial_when_due(self) -> None:
        if self._dialling is not None or self._redial is not None:
            return
        loop = asyncio.get_running_loop()
        seconds = self._not_before - loop.time()
        if seconds > 0:
            self._redial = loop.call_later(seconds, self._dial_now)
        else:
            self._dial_now()

    def _dial_now(self) -> None:
        self._redial = None
        self._dialling = asyncio.get_running_loop().create_task(self._dial(), name=f"dial {self._authority}")

    async def _dial(self) -> None:
        try:
            connection = await self._connect_any()
        except Exception as error:
            if not isinstance(error, ServerUnreachable):
                _log.error("dialling %s failed", self._authority, exc_info=True)
            self._dialling = None
            self._dial_failed(str(error))
        else:
            self._dialling = None
            self._connected(connection)

    def _connected(self, connection: Http2Connection) -> None:
        self._down = None
        self._not_before = 0.0
        self._backoff = _FIRST_BACKOFF_SECONDS
        self._connection = connection
        self._connections.add(connection)
        connection.closed.add_done_callback(lambda _: self._connections.discard(connection))
        queued, self._queued = self._queued, {}
        for call in queued:
            connection.begin(call)

    def _dial_failed(self, reason: str) -> None:
        self._down = reason
        pause = self._backoff * uniform(1 - _BACKOFF_JITTER, 1 + _BACKOFF_JITTER)
        self._not_before = asyncio.get_running_loop().time() + pause
        self._backoff = min(self._backoff * _BACKOFF_FACTOR, _MAX_BACKOFF_SECONDS)
        for call in [call for call, waits in self._queued.items() if not waits]:
            del self._queued[call]
            call.end(unavailable(reason))
        if self._queued:
            self._dial_when_due()

    def _connection_closing(self, connection: Http2Connection) -> None:
        if self._connection is connection:
            self._connection = None

    async def _connect_any(self) -> Http2Connection:
        """Connect to the first IP address that answers. Raises ServerUnreachable if none does."""
        address = self._address
        try:
            hosts = (address.path,) if address.path else await address.resolve()
        except (OSError, UnicodeError) as error:
            raise ServerUnreachable(f"cannot look up {address.host}: {error}") from None
        reason = "no address found"
        for host in hosts:
            try:
                async with asyncio.timeout(DIAL_SECONDS):
                    return await self._connect(host)
            except TimeoutError:
                reason = f"{host}: no answer within {DIAL_SECONDS:g} s"
            except (OSError, ssl.CertificateError) as error:
                reason = f"{host}: {error}"
        raise ServerUnreachable(f"failed to connect: {reason}")

    async def _connect(self, host: str) -> Http2Connection:
        loop, tls = asyncio.get_running_loop(), self._tls

        def make() -> Http2Connection:
            return Http2Connection(loop, self._limits.lookahead, self._connection_closing)

        if self._address.path:
            transport, connection = await loop.create_unix_connection(make, host)
        else:
            name = None if tls is None else self._name
            port = self._address.port
            transport, connection = await loop.create_connection(make, host, port, ssl=tls, server_hostname=name)
        try:
            if tls is not None and transport.get_extra_info("ssl_object").selected_alpn_protocol() != _ALPN:
                raise ConnectionError("the server does not offer HTTP/2 over TLS")
            _set_socket_options(transport.get_extra_info("socket"))
            if not (await connection.ready and connection.is_open):
                raise ConnectionError(connection.reason)
        except BaseException:
            transport.abort()
            raise
        return connection


def _set_socket_options(connected: socket.socket) -> None:
    if connected.family in (socket.AF_INET, socket.AF_INET6):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
