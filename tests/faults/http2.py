"""Hand-made HTTP/2 frames over a plain socket, enough to misuse the protocol."""

import asyncio
import struct
from collections import Counter

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7
_END_STREAM, _ACK, _END_HEADERS = 0x1, 0x1, 0x4
_CANCEL = 8


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def headers(stream: int, path: str) -> bytes:
    """Return a HEADERS frame that opens a call, without header compression."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields.items())
    return frame(HEADERS, _END_HEADERS, stream, block)


def message(stream: int, raw: bytes) -> bytes:
    """Return a DATA frame with the call's only message."""
    return frame(DATA, _END_STREAM, stream, b"\x00" + struct.pack(">I", len(raw)) + raw)


def reset(stream: int) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", _CANCEL))


def ping(number: int) -> bytes:
    return frame(PING, 0, 0, struct.pack(">Q", number))


def _text(value: str) -> bytes:
    return bytes((len(value),)) + value.encode()


class Connection:
    """Counts the server's frames by type and ignores their content."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.received: Counter[int] = Counter()
        """Number of frames by type."""
        self.closed = asyncio.Event()
        self._listening = asyncio.create_task(self._listen(reader))

    @classmethod
    async def open(cls, address: str, *, settings: bool = True) -> "Connection":
        host, _, port = address.rpartition(":")
        made = cls(*await asyncio.open_connection(host, int(port)))
        await made.send(PREFACE + (frame(SETTINGS, 0, 0) if settings else b""))
        return made

    async def send(self, raw: bytes) -> bool:
        """Send raw frames. Return False once the server has closed the connection."""
        try:
            self._writer.write(raw)
            await self._writer.drain()
        except ConnectionError:
            self.closed.set()
        return not self.closed.is_set()

    async def close(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                self.received[head[3]] += 1
                if head[3] == SETTINGS and not head[4] & _ACK:
                    self._writer.write(frame(SETTINGS, _ACK, 0))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed.set()
