"""The pages of all replicas as one. Who does not answer in time is left out, and counted."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import grpc
from google.protobuf.message import DecodeError
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from octet.telemetry.page import Written
from octet.v1 import specialist_pb2 as wire
from router.metrics.splice import Malformed, Splice
from router.replicas.fleet import Fleet
from router.replicas.replica import Replica

ANSWER_SECONDS = 2.0
BREATH_SECONDS = 0.0005
"""Between two pages, for whoever serves: the interpreter is theirs, too."""
_UP = "octet_replica_up", "Whether the replica told its own figures to this scrape."


class Told(NamedTuple):
    specialist: str
    replica: str
    text: bytes | None
    """None: it did not answer."""


class ReplicaPages:
    """Belongs to the event loop."""

    def __init__(self, fleet: Fleet, seconds: float = ANSWER_SECONDS) -> None:
        self._fleet = fleet
        self._seconds = seconds
        self.failures: Counter[tuple[str, str]] = Counter()
        """By specialist and why: silent, malformed."""

    async def write(self, accept: str) -> Written:
        """In Prometheus' text format, whatever `accept` would rather have: that is what replicas tell."""
        told = await asyncio.gather(*(self._ask(replica) for replica in self._fleet.replicas))
        malformed: list[str] = []
        page = await asyncio.to_thread(merged, told, malformed)
        for each in told:
            if each.text is None:
                self.failures[each.specialist, "silent"] += 1
        for specialist in malformed:
            self.failures[specialist, "malformed"] += 1
        return Written(page, CONTENT_TYPE_PLAIN_0_0_4)

    async def _ask(self, replica: Replica) -> Told:
        call = replica.channel.unary_unary("/octet.v1.Specialist/GetMetrics", wire.GetMetricsRequest.SerializeToString)
        try:
            async with asyncio.timeout(self._seconds):
                raw = await call(wire.GetMetricsRequest(), timeout=self._seconds)
            text: bytes = wire.GetMetricsResponse.FromString(raw).text
        except (grpc.aio.AioRpcError, TimeoutError, DecodeError):
            return Told(replica.specialist, replica.name, None)
        return Told(replica.specialist, replica.name, text)


def merged(told: Sequence[Told], malformed: list[str], breath: float = BREATH_SECONDS) -> bytes:
    """Every family once, with whose figures they are. Specialists whose pages cannot be read go to `malformed`."""
    splice = Splice(*_UP)
    for each in told:
        is_read = False
        if each.text is not None:
            try:
                splice.add(each.text, each.specialist, each.replica)
                is_read = True
            except Malformed:
                malformed.append(each.specialist)
            time.sleep(breath)
        splice.tell(each.specialist, each.replica, is_read)
    return splice.page()
