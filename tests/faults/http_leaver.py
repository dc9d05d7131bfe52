"""HTTP callers that behave badly: they close mid-stream, close one half, or never read."""

import asyncio
import json
import socket
from urllib.parse import urlsplit

_AT_ONCE = b"\x01\x00\x00\x00\x00\x00\x00\x00"


async def dial(http: str, max_tokens: int, *, window: int = 0) -> socket.socket:
    """Start a streamed request and return its socket. `window` is the size of the kernel's receive buffer; 0 leaves the
    default."""
    place = urlsplit(http)
    assert place.hostname is not None and place.port is not None
    made = socket.socket()
    if window:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    made.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(made, (place.hostname, place.port))
    await loop.sock_sendall(made, _request(place.netloc, max_tokens))
    return made


def _request(host: str, max_tokens: int) -> bytes:
    how = {"model": "octet/writer", "stream": True, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    asked = {**how, "messages": [{"role": "user", "content": "hello"}], "octet": {"timeout_ms": 120_000}}
    body = json.dumps(asked).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def is_answered(http: str) -> bool:
    """Return whether the server answers a request with status 200."""
    made = await dial(http, 4)
    try:
        return (await asyncio.get_running_loop().sock_recv(made, 100)).startswith(b"HTTP/1.1 200 ")
    finally:
        made.close()


async def slam(http: str, seconds: float) -> None:
    """Start a request and reset its connection after `seconds`."""
    made = await dial(http, 64)
    await asyncio.sleep(seconds)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    made.close()


async def half_close(http: str, seconds: float) -> None:
    """Start a request, close the sending half of its connection after `seconds`, and the rest after another
    `seconds`."""
    made = await dial(http, 64)
    await asyncio.sleep(seconds)
    made.shutdown(socket.SHUT_WR)
    await asyncio.sleep(seconds)
    made.close()
