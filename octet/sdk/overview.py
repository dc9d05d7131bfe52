"""Everything at a glance."""

from dataclasses import dataclass
from types import MappingProxyType

from octet.sdk.load import LoadReport
from octet.sdk.operating import (
    AuditEntry,
    BreakerInfo,
    KnobInfo,
    LaneInfo,
    Record,
    ReplicaInfo,
    ShadowCounts,
    ShadowRow,
)
from octet.sdk.slo import Slo
from octet.v1 import error_pb2, overview_pb2


@dataclass(frozen=True, slots=True)
class Trouble(Record):
    """One thing that is wrong now."""

    WORDS = MappingProxyType({"severity": (overview_pb2.Trouble.Severity, "SEVERITY_")})

    severity: str
    """note, warning or critical."""
    kind: str
    subject: str
    """The specialist, replica, knob, `router` or `store`."""
    text: str
    since_unix_ms: int
    runbook: str
    """Which part of it tells what to do: capacity, bad-refresh, both, cache-drift, wrong-specialist; or empty."""


@dataclass(frozen=True, slots=True)
class Rates(Record):
    """A second."""

    requests: float
    answered: float
    refused: float
    """For want of capacity, or of anybody to answer."""
    failed: float
    spilled: float
    shadowed: float
    completion_tokens: float
    confidence: float | None
    """The mean of the decisions for it; None without any."""
    unserved: float
    """Of the refused, those that nobody was left to answer."""


@dataclass(frozen=True, slots=True)
class ReplicaView(Record):
    KINDS = MappingProxyType({"info": ReplicaInfo, "load": LoadReport})

    info: ReplicaInfo | None
    load: LoadReport | None
    """None while it has not reported."""


@dataclass(frozen=True, slots=True)
class SpecialistView(Record):
    KINDS = MappingProxyType(
        {
            "slo": Slo,
            "breaker": BreakerInfo,
            "candidate": BreakerInfo,
            "lanes": LaneInfo,
            "replicas": ReplicaView,
            "rates": Rates,
        }
    )

    name: str
    describe: str
    slo: Slo | None
    breaker: BreakerInfo | None
    candidate: BreakerInfo | None
    """Of the candidate; None without one."""
    lanes: tuple[LaneInfo, ...]
    fresh: bool
    """The lane that serves has too little history to be trusted."""
    replicas: tuple[ReplicaView, ...]
    rates: Rates | None
    """Of the last minute."""
    cache_reuse: float | None
    """Of the prompt tokens of the last five minutes, the share that was found in the cache."""
    usual_cache_reuse: float | None
    """The same of the hour before."""


@dataclass(frozen=True, slots=True)
class ReceiptLine(Record):
    """A receipt in short."""

    WORDS = MappingProxyType({"reason": (error_pb2.ErrorReason, "ERROR_REASON_")})

    request_id: str
    tenant: str
    at_unix_ms: int
    specialist: str
    """Who answered, or was to."""
    primary: str
    """Whom the decision named."""
    replica: str
    intent: str
    outcome: str
    """answered, refused, failed or cancelled."""
    reason: str
    """Empty: it was answered."""
    ttft: float | None
    total: float
    completion_tokens: int
    cache_hit_tokens: int
    prompt_tokens: int
    times_preempted: int
    spilled: bool
    instead_of: str
    shadow: str
    attempts: int
    confidence: float | None


@dataclass(frozen=True, slots=True)
class Overview(Record):
    KINDS = MappingProxyType(
        {
            "troubles": Trouble,
            "specialists": SpecialistView,
            "knobs": KnobInfo,
            "shadow_rows": ShadowRow,
            "shadow_counts": ShadowCounts,
            "receipts": ReceiptLine,
            "audit": AuditEntry,
        }
    )

    at_unix_ms: int
    ensemble: str
    version: str
    troubles: tuple[Trouble, ...]
    """Worst first; none: nothing is wrong now."""
    specialists: tuple[SpecialistView, ...]
    knobs: tuple[KnobInfo, ...]
    shadow_rows: tuple[ShadowRow, ...]
    """Of the last hour."""
    shadow_counts: ShadowCounts | None
    receipts: tuple[ReceiptLine, ...]
    """Newest first, a few."""
    audit: tuple[AuditEntry, ...]
    store_trouble: str
    """Empty while the store answers."""
    unrouted_per_second: float
    """Requests that came and belong to nobody."""
    headline: str
    """The troubles in one line."""
