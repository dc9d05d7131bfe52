"""Connections for shadows alone: what floods one is not in the way of anybody's answer, and a message too large to be
true never gets here."""

import asyncio
from collections.abc import Iterable
from typing import Any

from octet.rpc.http2.channel import Reading
from router.replicas.channel import LOOKAHEAD_BYTES, Connect, connect
from router.replicas.replica import Replica

MOST_MESSAGE = 1 << 20
"""Bytes of one event."""
_READING = Reading(MOST_MESSAGE, LOOKAHEAD_BYTES)


class Lines:
    """One for every replica that ever got a shadow, as long as it is there."""

    def __init__(self, credentials: Any, dial: Connect = connect) -> None:
        """None for none."""
        self._credentials = credentials
        self._dial = dial
        self._channels: dict[Replica, Any] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._channels)

    def generate(self, replica: Replica, there: Iterable[Replica]) -> Any:
        """Bytes to bytes. Lines to replicas that are not `there` any more are closed."""
        if replica not in self._channels:
            self._leave_all_but({replica, *there})
            self._channels[replica] = self._dial(replica.target, self._credentials, _READING)
        return self._channels[replica].unary_stream("/octet.v1.Specialist/Generate")

    async def close(self) -> None:
        self._leave_all_but(set())
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _leave_all_but(self, there: set[Replica]) -> None:
        for replica in [each for each in self._channels if each not in there]:
            task = asyncio.create_task(self._channels.pop(replica).close(), name=f"leaving {replica.name}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
