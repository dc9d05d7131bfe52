"""A real gRPC server, and a proxy to it that can be cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc.aio import EOF, AioRpcError

from octet.rpc.certificates import Tls, server_credentials
from tests.ports import free_port

TRAILING = (("said-bin", b"\x00\xff,="), ("said-bin", b"twice"), ("x-plain", "as it is"))


async def count(ask: bytes, context: Any) -> None:
    """Send the requested number of messages of the requested length."""
    number, length = map(int, ask.split())
    for index in range(number):
        await context.write(b"%05d" % index + b"x" * length)


async def blank(_: bytes, context: Any) -> None:
    await context.write(b"")
    await context.write(b"")


async def echo(ask: bytes, _: Any) -> bytes:
    return ask


async def refuse(ask: bytes, context: Any) -> None:
    """Refuse with the requested status after the requested number of messages."""
    number, code, details = ask.split(b"|")
    for _ in range(int(number)):
        await context.write(b"before")
    status = {str(each.value[0]): each for each in grpc.StatusCode}[code.decode()]
    await context.abort(status, details.decode(), TRAILING)


async def hang(_: bytes, context: Any) -> None:
    await context.write(b"begun")
    await asyncio.sleep(60)


async def fail(_: bytes, __: Any) -> None:
    raise RuntimeError("by mistake")


async def said(ask: bytes, context: Any) -> bytes:
    """Return the request, its `x-` metadata, and whether its deadline is less than 100 s away."""
    outcome_of = [f"{key}={value!r}" for key, value in context.invocation_metadata() if key.startswith("x-")]
    has_time = context.time_remaining() is not None and 0 < context.time_remaining() < 100
    return ask + " ".join([*sorted(outcome_of), str(has_time)]).encode()


HANDLERS = {
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "Blank": grpc.unary_stream_rpc_method_handler(blank),
    "Refuse": grpc.unary_stream_rpc_method_handler(refuse),
    "Hang": grpc.unary_stream_rpc_method_handler(hang),
    "Fail": grpc.unary_stream_rpc_method_handler(fail),
    "Echo": grpc.unary_unary_rpc_method_handler(echo),
    "Said": grpc.unary_unary_rpc_method_handler(said),
}


class GrpcServer:
    def __init__(self, server: Any, address: str) -> None:
        self.server = server
        self.address = address


@asynccontextmanager
async def served(
    tls: Tls | None = None, address: str | None = None, most_streams: int = 1000
) -> AsyncIterator[GrpcServer]:
    """Run a server. No other test takes its port after it has stopped."""
    address = address or f"127.0.0.1:{free_port()}"
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", -1),
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", most_streams),
        )
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", HANDLERS),))
    port = (
        server.add_insecure_port(address) if tls is None else server.add_secure_port(address, server_credentials(tls))
    )
    await server.start()
    try:
        yield GrpcServer(server, address if address.startswith("unix:") else f"127.0.0.1:{port}")
    finally:
        await server.stop(0)


class Proxy:
    """A proxy between a client and a server. After `cut`, it accepts no connection."""

    def __init__(self, address: str, delay: float = 0.0) -> None:
        """Each connection forwards nothing in its first `delay` seconds."""
        self._delay = delay
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.num_made = 0

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        await asyncio.sleep(0.01)

    def cut(self) -> None:
        self._server.close()
        self.sever()

    def sever(self) -> None:
        """Cut the open connections. New ones are still accepted."""
        for writer in self._writers:
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_made += 1
        await asyncio.sleep(self._delay)
        there_reader, there = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, there}
        await asyncio.gather(_pass(reader, there), _pass(there_reader, writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def outcome(call: Any) -> tuple[Any, ...]:
    """Read a call to its end. Return its messages and its outcome."""
    messages: list[bytes] = []
    try:
        while (raw := await call.read()) is not EOF:
            messages.append(raw)
    except AioRpcError as error:
        return messages, error.code(), error.details(), tuple(error.trailing_metadata())
    except asyncio.CancelledError:
        return messages, "cancelled"
    return messages, "OK"


def stream(channel: Any, method: str, ask: bytes, **options: Any) -> Any:
    return channel.stream(f"/test.Test/{method}", ask, **options)
