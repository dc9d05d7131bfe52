"""Connections for shadows alone: what floods one is not in the way of anybody's answer, and a message too large to be
true never gets here."""

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc

from router.replicas.address import Target
from router.replicas.replica import Replica

MOST_MESSAGE = 1 << 20
"""Bytes of one event."""
_OPTIONS = (
    ("grpc.max_receive_message_length", MOST_MESSAGE),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class Lines:
    """One for every replica that ever got a shadow, as long as it is there."""

    def __init__(self, credentials: Any) -> None:
        """None for none."""
        self._credentials = credentials
        self._channels: dict[Replica, Any] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._channels)

    def generate(self, replica: Replica, there: Iterable[Replica]) -> Any:
        """Bytes to bytes. Lines to replicas that are not `there` any more are closed."""
        if replica not in self._channels:
            self._leave_all_but({replica, *there})
            self._channels[replica] = _dial(replica.target, self._credentials)
        return self._channels[replica].unary_stream("/octet.v1.Specialist/Generate")

    async def close(self) -> None:
        self._leave_all_but(set())
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _leave_all_but(self, there: set[Replica]) -> None:
        for replica in [each for each in self._channels if each not in there]:
            task = asyncio.create_task(self._channels.pop(replica).close(), name=f"leaving {replica.name}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def _dial(target: Target, credentials: Any) -> Any:
    if credentials is None or target.address.startswith("unix:"):
        return grpc.aio.insecure_channel(target.address, options=_OPTIONS)
    name = (("grpc.ssl_target_name_override", target.authority),) if target.authority else ()
    return grpc.aio.secure_channel(target.address, credentials, options=(*_OPTIONS, *name))
