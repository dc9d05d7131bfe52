"""Requests that nobody waits for, as they are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LIVE = ("queued", "running")
ENDED = ("done", "failed", "cancelled")
Ended = Literal["done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class JobRow:
    id: str
    number: int
    """In the order of their submission."""
    tenant: str
    caller: str
    """The name of the key it was submitted with."""
    digest: str
    """Of the request: it is kept when the request itself is not any more."""
    priority: int
    status: str
    submitted_ms: int
    deadline_ms: int
    started_ms: int | None
    ended_ms: int | None
    epoch: int
    """Grows whenever somebody takes it, leaves it or loses it: who holds an older one writes nothing more."""
    attempts: int
    """Times it was begun."""
    lost: int
    """Times that whoever answered it was lost."""
    events: int
    """The number of the last one."""
    num_bytes: int
    """Of its request and its events."""
    request: bytes
    """Empty once it has ended."""
    result: bytes
    """What is known of its end beside its text, which the events tell."""

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class NewJob:
    id: str
    tenant: str
    caller: str
    idempotency_key: str | None
    digest: str
    priority: int
    submitted_ms: int
    deadline_ms: int
    request: bytes
    event: bytes
    """Its first."""


@dataclass(frozen=True, slots=True)
class JobRoom:
    """For jobs that have not ended."""

    most: int
    most_of_tenant: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class NoRoom:
    what: str
    limit: int


@dataclass(frozen=True, slots=True)
class KeyTaken:
    """By another request of the same tenant."""


@dataclass(frozen=True, slots=True)
class Ending:
    status: Ended
    at_ms: int
    result: bytes


@dataclass(frozen=True, slots=True)
class Writing:
    """What follows the events that are known to be written. Made once, however often it is tried."""

    id: str
    epoch: int
    before: int
    """The number of the last event that is written."""
    events: Sequence[bytes] = ()
    begins_ms: int | None = None
    """It is begun with these events."""
    ends: Ending | None = None
    """It ends with these events. One more follows them, which is empty: whoever reads it takes the row for it."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A job in somebody's hands, as others see it: a beat that does not change tells that nobody is there."""

    id: str
    epoch: int
    beat: int


@dataclass(frozen=True, slots=True)
class Head:
    """How far a job has come."""

    id: str
    events: int
    has_ended: bool


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look at the jobs shows."""

    waits: bool
    """One could be taken now."""
    is_late: bool
    """One that nobody has is past its deadline."""
    held: Sequence[Holding]
    heads: Sequence[Head]
    """Of those that were asked for and are there."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """For jobs that have ended."""

    keep_ms: int
    most: int
    most_bytes: int
