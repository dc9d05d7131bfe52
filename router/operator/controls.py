"""What the service stands on: whoever decides, whoever keeps comparisons, whoever counts shadows."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from octet.store import ReceiptQuery
from octet.v1 import operator_pb2 as wire

Telling = AsyncIterator[wire.OperatorEvent]


class EventSource(Protocol):
    def subscribe(self) -> AbstractContextManager[Telling]:
        """Events from now on; ends when there will be no more. Bounded: whoever reads too slowly loses the oldest."""


class Controls(Protocol):
    """Everything raises Refusal and nothing else. A change is written down when it returns, and what it returns is how
    things stand then."""

    @property
    def store_trouble(self) -> str:
        """Empty while the store answers."""

    @property
    def events(self) -> EventSource: ...

    def breakers(self) -> Sequence[wire.BreakerInfo]: ...

    def knobs(self) -> Sequence[wire.KnobInfo]: ...

    def lanes(self, specialist: str = "") -> Sequence[wire.LaneInfo]: ...

    def replicas(self) -> Sequence[wire.ReplicaInfo]: ...

    async def hold_breaker(self, specialist: str, hold: str, *, who: str, why: str) -> wire.BreakerInfo: ...

    async def release_breaker(self, specialist: str, *, who: str, why: str) -> wire.BreakerInfo: ...

    async def set_knob(self, name: str, value: float, *, who: str, why: str) -> wire.KnobInfo: ...

    async def release_knob(self, name: str, *, who: str, why: str) -> wire.KnobInfo: ...

    async def load_adapter(self, specialist: str, path: str, name: str, *, who: str, why: str) -> wire.LaneInfo: ...

    async def promote(self, specialist: str, name: str, *, who: str, why: str) -> wire.LaneInfo: ...

    async def roll_back(self, specialist: str, *, who: str, why: str) -> wire.LaneInfo: ...

    async def drain_replica(self, replica: str, *, who: str, why: str) -> wire.ReplicaInfo: ...

    async def undrain_replica(self, replica: str, *, who: str, why: str) -> wire.ReplicaInfo: ...

    async def audit(self, most: int, subject: str) -> Sequence[wire.AuditEntry]:
        """Newest first."""


class Archive(Protocol):
    def comparisons(self, since_ms: int) -> AsyncGenerator[bytes, None]:
        """Serialised octet.v1.Comparison, oldest first, read piece by piece. Raises Refusal."""


class Library(Protocol):
    """Receipts of everybody, and what is known of single requests. Raises Refusal and nothing else."""

    async def newest(self, query: ReceiptQuery) -> Sequence[bytes]:
        """Serialised octet.v1.Receipt, newest first."""

    async def story(self, request_id: str, tenant: str, own: str) -> wire.Story:
        """Of that tenant's request; where none is named of `own`'s, or else of the only one's who has it."""


class SloSource(Protocol):
    def of(self, specialist: str) -> wire.Slo:
        """Raises Refusal."""

    def all(self) -> Sequence[wire.Slo]: ...


ShadowCounts = Callable[[], wire.ShadowCounts]
"""Since this router began."""
