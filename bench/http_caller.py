"""A caller over HTTP that costs next to nothing itself: streams on connections that are kept."""

import asyncio
import json
from time import perf_counter

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_TOKEN = b'"content":'
_OK = b"HTTP/1.1 200"
_END = b"0\r\n\r\n"
_HOST = "127.0.0.1"


class HttpCaller:
    """Of `/v1/chat/completions`. Belongs to the event loop."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Connection] = []

    async def first_token(self, specialist: str, prompt: str, tokens: int) -> float:
        """Seconds to the first token of an answer that is read to its end."""
        begun = perf_counter()
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(_HOST, self._port)
        writer.write(stream_request(specialist, prompt, tokens))
        first, heard = 0.0, b""
        while not heard.endswith(_END):
            part = await reader.read(1 << 16)
            if not part:
                raise RuntimeError(f"an answer that was cut off: {heard[:300]!r}")
            heard += part
            if not heard.startswith(_OK):
                raise RuntimeError(f"a refusal: {heard[:600]!r}")
            if not first and _TOKEN in heard:
                first = perf_counter() - begun
        if not first:
            raise RuntimeError(f"an answer without a token: {heard[:300]!r}")
        self._idle.append((reader, writer))
        return first

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


def stream_request(specialist: str, prompt: str, tokens: int) -> bytes:
    """`specialist` empty: the router decides."""
    body = json.dumps(
        {
            "model": f"octet/{specialist}" if specialist else "octet",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "stream": True,
        }
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {_HOST}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
