"""As much of HTTP/1.1 as a caller of streams needs, on connections that are kept."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from bench.serving.usage import ServeMistake

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_PORTS = {"http": 80, "https": 443}
_LIMIT = 1 << 20
_READ = 1 << 16
_MOST_ERROR = 1 << 16


class Broken(ConnectionError):
    """The other side does not speak HTTP, or stopped in the middle of it."""


@dataclass(frozen=True, slots=True)
class Origin:
    scheme: str
    host: str
    port: int
    path: str
    """Up to and with /v1."""

    @property
    def name(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_origin(url: str) -> Origin:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise ServeMistake(f"{url}: {error}") from error
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ServeMistake(f"{url}: must be http://HOST:PORT/v1 or https://HOST/v1")
    path = parts.path.rstrip("/")
    if not path.endswith("/v1"):
        raise ServeMistake(f"{url}: an OpenAI endpoint ends with /v1; did you mean {url.rstrip('/')}/v1?")
    return Origin(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], path)


class Head(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""


class Exchange:
    """One request and its response. Either it is read to its end, or the connection is not used again."""

    def __init__(self, connection: Connection) -> None:
        self._reader, self._writer = connection
        self.reusable = False

    async def send(self, request: bytes) -> Head:
        self._writer.write(request)
        try:
            raw = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise Broken("the connection was closed before an answer") from error
        except asyncio.LimitOverrunError as error:
            raise Broken("an answer that is no HTTP") from error
        self._head = _head_of(raw)
        return self._head

    async def body(self) -> AsyncIterator[bytes]:
        headers = self._head.headers
        if "chunked" in headers.get("transfer-encoding", "").lower():
            async for part in self._chunks():
                yield part
        elif "content-length" in headers:
            async for part in self._exactly(_length(headers["content-length"], 10)):
                yield part
        else:
            while part := await self._reader.read(_READ):
                yield part
            return
        self.reusable = headers.get("connection", "").lower() != "close"

    async def whole_body(self) -> bytes:
        """Of an error, as far as anybody would read it."""
        parts = b""
        async for part in self.body():
            parts = (parts + part)[:_MOST_ERROR]
        return parts

    async def _chunks(self) -> AsyncIterator[bytes]:
        try:
            while size := _length((await self._reader.readuntil(b"\n")).partition(b";")[0].strip().decode("ascii"), 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            while (await self._reader.readuntil(b"\n")).strip():
                continue
        except asyncio.IncompleteReadError as error:
            raise Broken("the answer was cut off") from error
        except (asyncio.LimitOverrunError, UnicodeDecodeError) as error:
            raise Broken("an answer with broken chunks") from error

    async def _exactly(self, left: int) -> AsyncIterator[bytes]:
        while left:
            part = await self._reader.read(min(left, _READ))
            if not part:
                raise Broken("the answer was cut off")
            left -= len(part)
            yield part


class Connections:
    """To one origin; as many as there are calls at once."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self._idle: list[Connection] = []
        self._tls = ssl.create_default_context() if origin.scheme == "https" else None

    async def take(self) -> Connection:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
        return await asyncio.open_connection(self.origin.host, self.origin.port, ssl=self._tls, limit=_LIMIT)

    def give_back(self, connection: Connection, *, reusable: bool) -> None:
        if reusable:
            self._idle.append(connection)
        else:
            connection[1].close()

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


def _head_of(raw: bytes) -> Head:
    first, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not status.isdecimal():
        raise Broken(f"an answer that is no HTTP/1.1: {first[:60]!r}")
    fields = (line.partition(":") for line in lines if ":" in line)
    return Head(int(status), {name.strip().lower(): value.strip() for name, _, value in fields})


def _length(text: str, base: int) -> int:
    try:
        length = int(text, base)
    except ValueError as error:
        raise Broken(f"a length of {text[:20]!r}") from error
    if length < 0:
        raise Broken(f"a length of {text[:20]!r}")
    return length
