"""Replicas without a network."""

from collections.abc import Sequence
from typing import Any

from admission.breakers import CircuitBreaker
from octet.clock import Clock, ManualClock
from octet.config.ensemble import DispatchConfig
from octet.v1 import specialist_pb2 as wire
from router.dispatch.replicas.replica import Replica, ReplicaSet
from router.dispatch.replicas.selection import ReplicaSnapshot, affinity_score
from router.dispatch.transport import ReplicaTarget


class NoChannel:
    def stream(self, *_: object, **__: object) -> Any:
        return None

    call = stream

    async def close(self) -> None: ...


class FakeCall:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def replica(clock: Clock | None = None, index: int = 0, specialist: str = "stl") -> Replica:
    clock = clock or ManualClock()
    config = DispatchConfig()
    breaker = CircuitBreaker(clock, failures=config.failures, cool_down=1.0, max_cool_down=8.0)
    made = Replica(
        specialist, ReplicaTarget(str(index), f"127.0.0.1:{index + 1}"), NoChannel(), breaker, clock, max_running=8
    )
    made.health_reported(is_serving=True)
    return made


def lane(clock: Clock, count: int, dispatch: DispatchConfig | None = None, specialist: str = "stl") -> ReplicaSet:
    made = ReplicaSet(specialist, dispatch or DispatchConfig(), clock)
    for index in range(count):
        each = replica(clock, index, specialist)
        made.replicas[each.name] = each
    return made


def report(**fields: Any) -> wire.LoadReport:
    return wire.LoadReport(**{"max_running": 8, "max_waiting": 8, **fields})


def rendezvous_replica(session: bytes, snapshots: Sequence[ReplicaSnapshot]) -> ReplicaSnapshot:
    return max(snapshots, key=affinity_score(session))
