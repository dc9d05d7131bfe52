"""A fake endpoint in a process of its own. The environment variable HOW makes it slow or makes it exit."""

import asyncio
import os
import sys
from typing import Any, NoReturn

from tests.bench.fake_endpoint import FakeEndpoint, Reply, well

DIES, DIES_LATER, SLOW, FAST = "dies", "dies later", "slow", "fast"
SPARED = 47
"""Answers that a server gives before it dies: enough for its trial and the first load."""
_SECONDS = 0.1


def serve(port: int) -> None:
    asyncio.run(_serve(port, os.environ["HOW"]))


async def _serve(port: int, how: str) -> None:
    if how == DIES:
        sys.exit("no such luck")
    replies: dict[str, Reply] = {SLOW: _slowly, DIES_LATER: _dies}
    reply = replies.get(how, well)
    endpoint = FakeEndpoint(reply, ("demo",), spared=SPARED if how == DIES_LATER else 0)
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", port)
    await server.serve_forever()


async def _slowly(endpoint: FakeEndpoint, writer: asyncio.StreamWriter, asked: dict[str, Any]) -> None:
    await asyncio.sleep(_SECONDS)
    await well(endpoint, writer, asked)


async def _dies(*_: object) -> NoReturn:
    print("had enough", file=sys.stderr, flush=True)
    os._exit(3)
