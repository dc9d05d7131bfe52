"""A hostile HTTP/2 client: `python -m tests.faults.flood ADDRESS KIND NUMBER` prints what it observed."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

from octet.v1 import inference_pb2 as wire
from tests.faults.http2 import Connection, headers, message, ping, reset

GENERATE = "/octet.v1.Inference/Generate"
KINDS = ("resets", "requests", "streams", "pings")
_LINGER_SECONDS = 1.0
REQUEST = wire.InferRequest(
    prompt="taken back", force_specialists=["writer"], max_tokens=200, ignore_eos=True
).SerializeToString()


async def resets(connection: Connection, number: int) -> int:
    """Open streams and reset each immediately."""
    return await _each(number, lambda at: connection.send(headers(at, GENERATE) + reset(at)))


async def requests(connection: Connection, number: int) -> int:
    """Send requests and reset the stream of each immediately."""
    return await _each(number, lambda at: connection.send(headers(at, GENERATE) + message(at, REQUEST) + reset(at)))


async def streams(connection: Connection, number: int) -> int:
    """Open calls without sending a message."""
    return await _each(number, lambda at: connection.send(headers(at, GENERATE)))


async def pings(connection: Connection, number: int) -> int:
    return await _each(number, lambda at: connection.send(ping(at)))


async def _each(number: int, send: Callable[[int], Awaitable[bool]]) -> int:
    """Call `send` with up to `number` stream ids. Return how many calls succeeded before the server closed the
    connection."""
    for count in range(number):
        if not await send(2 * count + 1):
            return count
    return number


async def main(address: str, kind: str, number: int) -> None:
    attack = {"resets": resets, "requests": requests, "streams": streams, "pings": pings}[kind]
    connection = await Connection.open(address)
    sent = await attack(connection, number)
    await asyncio.sleep(_LINGER_SECONDS)
    print(json.dumps({"kind": kind, "sent": sent, "was_closed": connection.closed.is_set()}), flush=True)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
