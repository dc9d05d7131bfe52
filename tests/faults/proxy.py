"""A proxy to a replica that adds delay and breaks connections."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_CHUNK = 16 << 10
_AT_ONCE = b"\x01\x00\x00\x00\x00\x00\x00\x00"
"""SO_LINGER with zero seconds: closing the socket sends a reset."""


class Proxy:
    """A TCP proxy to a replica's Unix socket."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.delay = 0.0
        """Delay in seconds, in both directions."""
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def num_open(self) -> int:
        return len(self._writers) // 2

    def reset(self) -> int:
        """Reset every connection. Return how many there were."""
        number = self.num_open
        for writer in self._writers:
            end: socket.socket = writer.get_extra_info("socket")
            if end.family == socket.AF_INET:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            writer.transport.abort()
        return number

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, to_there = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, to_there}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._carry(reader, to_there))
                tasks.create_task(self._carry(there, writer))
        finally:
            self._writers -= {writer, to_there}

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # The proxy reset the connection.
            while data := await reader.read(_CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def proxying(port: int, target: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.connect, "127.0.0.1", port)
    try:
        yield proxy
    finally:
        server.close()
        proxy.reset()
        await server.wait_closed()
