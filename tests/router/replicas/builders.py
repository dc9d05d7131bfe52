"""Replicas without a network."""

from typing import Any

from admission.breaker import Breaker
from octet.clock import Clock, ManualClock
from octet.config.ensemble import DispatchConfig
from octet.v1 import specialist_pb2 as wire
from router.replicas.address import fixed
from router.replicas.lane import Lane
from router.replicas.replica import Replica


class NoChannel:
    def unary_stream(self, *_: object) -> Any:
        return None

    unary_unary = unary_stream


class FakeCall:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def replica(clock: Clock | None = None, index: int = 0, specialist: str = "stl") -> Replica:
    clock = clock or ManualClock()
    config = DispatchConfig()
    breaker = Breaker(clock, failures=config.failures, cool_down=1.0, max_cool_down=8.0)
    made = Replica(specialist, fixed(index, f"127.0.0.1:{index + 1}"), NoChannel(), breaker, clock, max_running=8)
    made.connected(warm=True)
    return made


def lane(clock: Clock, count: int, dispatch: DispatchConfig | None = None, specialist: str = "stl") -> Lane:
    made = Lane(specialist, dispatch or DispatchConfig(), clock)
    for index in range(count):
        each = replica(clock, index, specialist)
        made.replicas[each.name] = each
    return made


def report(**fields: Any) -> wire.LoadReport:
    return wire.LoadReport(**{"max_running": 8, "max_waiting": 8, **fields})
