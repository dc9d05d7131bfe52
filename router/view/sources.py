"""Whom an overview is made from."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from octet.v1 import operator_pb2 as wire
from octet.v1 import specialist_pb2
from router.between.standing import Standing
from router.operator.controls import EventSource


class Controlled(Protocol):
    """What `router.control` shows."""

    @property
    def standing(self) -> Standing: ...

    @property
    def store_trouble(self) -> str: ...

    @property
    def events(self) -> EventSource: ...

    def breakers(self) -> Sequence[wire.BreakerInfo]: ...

    def knobs(self) -> Sequence[wire.KnobInfo]: ...

    def lanes(self, specialist: str = "") -> Sequence[wire.LaneInfo]: ...

    def replicas(self) -> Sequence[wire.ReplicaInfo]: ...

    async def audit(self, most: int, subject: str) -> Sequence[wire.AuditEntry]: ...


class Slos(Protocol):
    def all(self) -> Sequence[wire.Slo]:
        """One for each specialist that is measured."""


Loads = Callable[[], Mapping[str, specialist_pb2.LoadReport]]
"""What replicas last said of themselves, by name."""
