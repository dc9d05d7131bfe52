"""The pages of all replicas as one. Who does not answer in time is left out, and counted."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import grpc
from google.protobuf.message import DecodeError
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from octet.telemetry.families import gauge
from octet.telemetry.page import Written, written
from octet.v1 import specialist_pb2 as wire
from router.replicas.fleet import Fleet
from router.replicas.replica import Replica

ANSWER_SECONDS = 2.0
_UP = "Whether the replica told its own figures to this scrape."


class _Told(NamedTuple):
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
        told = await asyncio.gather(*(self._ask(replica) for replica in self._fleet.replicas))
        malformed: list[str] = []
        page = await written(accept, lambda: merged(told, malformed))
        for each in told:
            if each.text is None:
                self.failures[each.specialist, "silent"] += 1
        for specialist in malformed:
            self.failures[specialist, "malformed"] += 1
        return page

    async def _ask(self, replica: Replica) -> _Told:
        call = replica.channel.unary_unary("/octet.v1.Specialist/GetMetrics", wire.GetMetricsRequest.SerializeToString)
        try:
            async with asyncio.timeout(self._seconds):
                raw = await call(wire.GetMetricsRequest(), timeout=self._seconds)
            text: bytes = wire.GetMetricsResponse.FromString(raw).text
        except (grpc.aio.AioRpcError, TimeoutError, DecodeError):
            return _Told(replica.specialist, replica.name, None)
        return _Told(replica.specialist, replica.name, text)


def merged(told: Sequence[_Told], malformed: list[str]) -> list[Metric]:
    """Every family once, with whose figures they are. Specialists whose pages cannot be read go to `malformed`."""
    families: dict[str, Metric] = {}
    up: list[tuple[tuple[str, str], float]] = []
    for each in told:
        try:
            found = () if each.text is None else _read(each.text.decode())
        except (ValueError, KeyError, IndexError):
            malformed.append(each.specialist)
            found = None
        up.append(((each.specialist, each.replica), float(each.text is not None and found is not None)))
        for family in found or ():
            _add(families, family, {"specialist": each.specialist, "replica": each.replica})
    return [gauge("octet_replica_up", _UP, ("specialist", "replica"), up), *families.values()]


def _read(text: str) -> Iterable[Metric]:
    """Raises ValueError, KeyError, IndexError."""
    return list(text_string_to_metric_families(text))


def _add(families: dict[str, Metric], family: Metric, whose: dict[str, str]) -> None:
    known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
    if known.type == family.type:
        known.samples += [sample._replace(labels={**sample.labels, **whose}) for sample in family.samples]
