"""What an operator sees: the records of octet.v1.Operator, field by field as on the wire."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from google.protobuf.message import Message

from octet.sdk.decision import word

_RecordT = TypeVar("_RecordT", bound="Record")


@dataclass(frozen=True, slots=True)
class Record:
    KINDS: ClassVar[Mapping[str, type["Record"]]] = MappingProxyType({})
    """Of fields that are records themselves, or tuples of them."""
    WORDS: ClassVar[Mapping[str, tuple[Any, str]]] = MappingProxyType({})
    """Of fields that are enums on the wire and words here: which enum, and what its names begin with."""

    @classmethod
    def from_wire(cls: type[_RecordT], message: Message) -> _RecordT:
        return cls(**{each.name: cls._read(message, each.name) for each in fields(cls)})

    @classmethod
    def _read(cls, message: Message, name: str) -> Any:
        value, kind = _value(message, name), cls.KINDS.get(name)
        if name in cls.WORDS:
            enum, prefix = cls.WORDS[name]
            return word(enum, value, prefix)
        if kind is None or value is None:
            return value
        return tuple(kind.from_wire(each) for each in value) if isinstance(value, tuple) else kind.from_wire(value)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def _value(message: Any, name: str) -> Any:
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.is_repeated:
        return tuple(getattr(message, name))
    if field.has_presence and not message.HasField(name):
        return None
    return getattr(message, name)


@dataclass(frozen=True, slots=True)
class BreakerInfo(Record):
    """Of the lane that serves, or of a candidate."""

    specialist: str
    lane: int
    adapters: tuple[str, ...]
    """Empty for the bare model."""
    lane_status: str
    state: str
    """closed, shadow_only or recovering."""
    hold: str
    """open, closed, or empty."""
    hold_by: str
    hold_why: str
    since_unix_ms: int
    pass_rate: float | None
    """Of the window; None without samples."""
    samples: int
    floor: float | None
    """None: measured, but never the reason for anything."""
    min_samples: int
    window_seconds: float
    fallback: str
    """Who takes the intent while this one does not serve; empty: nobody."""
    outlook: str
    """What would happen next, and when."""
    verifier: str


@dataclass(frozen=True, slots=True)
class KnobInfo(Record):
    name: str
    value: float
    configured: float
    set_by: str
    """configuration, escalation, or whoever set it."""
    why: str
    since_unix_ms: int
    """0 for what the configuration says."""


@dataclass(frozen=True, slots=True)
class LaneInfo(Record):
    specialist: str
    number: int
    adapter: str
    """Empty for the bare model."""
    digests: tuple[str, ...]
    revision: str
    status: str
    """serving, candidate, previous, retired or rolled_back."""
    since_unix_ms: int
    by: str
    why: str
    pass_rate: float | None
    samples: int
    outlook: str
    resident: int
    """Replicas that have it, of all there are."""
    replicas: int


@dataclass(frozen=True, slots=True)
class ReplicaInfo(Record):
    name: str
    specialist: str
    address: str
    status: str
    """serving, connecting, hung, draining or drained_by_operator."""
    health_breaker: str
    waiting: int
    running: int
    shadows: int
    revision: str
    refusing: bool
    usual_wait: float | None
    """Seconds."""
    estimate_error_p90: float | None


@dataclass(frozen=True, slots=True)
class ShadowRow(Record):
    """What came of the shadows of one intent, primary and shadow."""

    intent: str
    primary: str
    shadow: str
    why: str
    compared: int
    verified: int
    primary_passed: int
    shadow_passed: int
    only_primary_passed: int
    only_shadow_passed: int
    agreed: int
    mean_similarity: float


@dataclass(frozen=True, slots=True)
class ShadowCounts(Record):
    """Since the start of the router that was asked."""

    ordered: int
    sent: int
    answered: int
    shed: int
    failed: int
    compared: int


@dataclass(frozen=True, slots=True)
class Comparison(Record):
    """A primary's answer beside a shadow's."""

    request_id: str
    at_unix_ms: int
    intent: str
    primary: str
    shadow: str
    why: str
    """low_confidence, fresh_lane or demoted."""
    confidence: float | None
    """The primary's; None where the classifier was not asked."""
    primary_outcome: str
    """passed, failed, skipped or unavailable."""
    shadow_outcome: str
    similarity: float
    agreed: bool
    feature_indices: tuple[int, ...]
    """What the classifier saw, where the two disagreed."""
    feature_values: tuple[float, ...]
    classifier_digest: str


@dataclass(frozen=True, slots=True)
class AuditEntry(Record):
    number: int
    at_unix_ms: int
    who: str
    """An operator, or the part of Octet that acted by itself: breaker, escalation, lanes, configuration, octet."""
    why: str
    what: str
    subject: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class OperatorEvent:
    """Exactly one of audit, store_trouble and dropped is not None."""

    at_unix_ms: int
    audit: AuditEntry | None
    store_trouble: str | None
    """The store cannot be reached; empty: it can be again."""
    dropped: int | None
    """So many events were not read quickly enough."""

    @classmethod
    def from_wire(cls, message: Any) -> "OperatorEvent":
        return cls(
            at_unix_ms=message.at_unix_ms,
            audit=AuditEntry.from_wire(message.audit) if message.HasField("audit") else None,
            store_trouble=message.store_trouble if message.HasField("store_trouble") else None,
            dropped=message.dropped if message.HasField("dropped") else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: only what happened."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Breakers:
    breakers: tuple[BreakerInfo, ...]
    store_trouble: str
    """Empty while the store answers."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ShadowReport:
    rows: tuple[ShadowRow, ...]
    counts: ShadowCounts

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
