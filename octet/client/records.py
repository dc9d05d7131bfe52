"""Records for operators: breakers, knobs, lanes, replicas, shadows, the audit log, service levels, the overview.

The fields are documented in proto/octet/v1/{control,operator,overview,slo,specialist}.proto.
"""

from typing import Any

from octet.client.receipts import Receipt
from octet.client.wire_record import WireRecord


class BreakerInfo(WireRecord):
    specialist: str
    lane: int
    adapters: tuple[str, ...]
    lane_status: str
    state: str
    hold: str
    hold_by: str
    hold_why: str
    since_unix_ms: int
    pass_rate: float | None
    samples: int
    floor: float | None  # None: the pass rate is only recorded
    min_samples: int
    window_seconds: float
    fallback: str  # the specialist that serves the intent while this one does not. Empty: requests are refused.
    outlook: str
    verifier: str


class BreakerList(WireRecord):
    breakers: tuple[BreakerInfo, ...]
    store_trouble: str


class KnobInfo(WireRecord):
    name: str
    value: float
    configured: float
    set_by: str
    why: str
    since_unix_ms: int


class LaneInfo(WireRecord):
    specialist: str
    number: int
    adapter: str
    digests: tuple[str, ...]
    revision: str
    status: str
    since_unix_ms: int
    by: str
    why: str
    pass_rate: float | None
    samples: int
    outlook: str
    resident: int
    replicas: int


class ReplicaInfo(WireRecord):
    name: str
    specialist: str
    address: str
    status: str
    health_breaker: str
    waiting: int
    running: int
    shadows: int
    revision: str
    refusing: bool
    usual_wait: float | None
    estimate_error_p90: float | None


class ShadowRow(WireRecord):
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


class ShadowCounts(WireRecord):
    """Counts since the router's start."""

    ordered: int
    sent: int
    answered: int
    shed: int
    failed: int
    compared: int


class ShadowReport(WireRecord):
    rows: tuple[ShadowRow, ...]
    counts: ShadowCounts


class Comparison(WireRecord):
    request_id: str
    at_unix_ms: int
    intent: str
    primary: str
    shadow: str
    why: str
    confidence: float | None
    primary_outcome: str
    shadow_outcome: str
    similarity: float
    agreed: bool
    feature_indices: tuple[int, ...]
    feature_values: tuple[float, ...]
    classifier_digest: str


class AuditEntry(WireRecord):
    number: int
    at_unix_ms: int
    who: str
    why: str
    what: str
    subject: str
    before: str
    after: str


class OperatorEvent(WireRecord):
    """Exactly one of audit, store_trouble and dropped is not None."""

    at_unix_ms: int
    audit: AuditEntry | None
    store_trouble: str | None  # why the store is unavailable; empty when it is available again
    dropped: int | None  # number of events dropped because the stream was read too slowly

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON without the fields that are None."""
        return {name: value for name, value in WireRecord.to_dict(self).items() if value is not None}


class RequestExplanation(WireRecord):
    receipt: Receipt
    comparison: Comparison | None
    """Comparison with the shadow's answer; None without a shadow, or until the comparison is complete."""
    judged: str  # the verifier's later result: passed, failed, or empty if the answer was not evaluated
    changes: tuple[AuditEntry, ...]
    """Changes to its specialist, knobs and replicas in the hour before the request and during it, newest first."""


class BlockUsage(WireRecord):
    total: int
    free: int
    cached: int  # unused by any sequence, but reusable by prefix
    used: int


class EstimateError(WireRecord):
    step_p50: float
    step_p90: float
    total_p50: float | None
    total_p90: float | None
    num_requests: int


class ResidentAdapter(WireRecord):
    name: str
    digest: str


class LoadReport(WireRecord):
    """The load of a replica. Rates are None until they are measured."""

    waiting: int
    running: int
    blocks: BlockUsage | None
    preempting: bool
    times_preempted: int
    prefill_rate: float | None
    decode_rate: float | None
    drain_rate: float | None
    adapters: tuple[ResidentAdapter, ...]
    draining: bool
    max_running: int
    max_waiting: int
    revision: str
    refusing: bool
    shadows: int
    usual_wait: float | None
    estimate_error: EstimateError | None
    prompt_tokens: int
    cache_hit_tokens: int
    evicted_blocks: int
    instance: str


class Latency(WireRecord):
    """Quantiles in seconds; None without samples."""

    samples: int
    p50: float | None
    p95: float | None
    p99: float | None


class Burn(WireRecord):
    """Burn rate of the error budget: 1 consumes the budget exactly within its period."""

    window_seconds: float
    samples: int
    rate: float | None


class Objective(WireRecord):
    name: str
    target: float
    share: float
    current: float | None
    met: bool
    burns: tuple[Burn, ...]

    @property
    def is_latency(self) -> bool:
        return self.name != "correctness"


class Slo(WireRecord):
    """Service levels of one specialist. There are none for the whole ensemble."""

    specialist: str
    window_seconds: float
    ttft: Latency | None
    itl: Latency | None
    admission_to_first_token: Latency | None
    pass_rate: float | None  # of the serving lane's evaluated answers; None if there are none
    judged: int
    floor: float | None  # None: no floor is configured; the pass rate is only recorded
    correctness_window_seconds: float
    answered: int
    preempted_once: float | None
    objectives: tuple[Objective, ...]
    relative_error: float
    routers: int

    def objective(self, name: str) -> Objective | None:
        return next((each for each in self.objectives if each.name == name), None)


class HistoryPoint(WireRecord):
    """Latencies are in seconds and rates per second; None without samples."""

    at_unix_ms: int
    ttft_p95: float | None
    itl_p95: float | None
    admission_to_first_token_p95: float | None
    pass_rate: float | None
    requests: float
    refused: float
    completion_tokens: float
    waiting: int
    running: int
    blocks_used: float | None
    cache_reuse: float | None
    burn: float | None


class SpecialistHistory(WireRecord):
    name: str
    points: tuple[HistoryPoint, ...]


class OverviewHistory(WireRecord):
    step_seconds: float
    specialists: tuple[SpecialistHistory, ...]


class OverviewFinding(WireRecord):
    severity: str
    kind: str
    subject: str
    text: str
    since_unix_ms: int
    runbook: str


class RequestRates(WireRecord):
    """All rates are per second."""

    requests: float
    answered: float
    refused: float
    failed: float
    spilled: float
    shadowed: float
    completion_tokens: float
    confidence: float | None
    unserved: float


class ReplicaView(WireRecord):
    info: ReplicaInfo | None
    load: LoadReport | None


class SpecialistView(WireRecord):
    name: str
    describe: str
    slo: Slo | None
    breaker: BreakerInfo | None
    candidate: BreakerInfo | None
    lanes: tuple[LaneInfo, ...]
    fresh: bool
    replicas: tuple[ReplicaView, ...]
    rates: RequestRates | None
    cache_reuse: float | None
    usual_cache_reuse: float | None


class ReceiptLine(WireRecord):
    request_id: str
    tenant: str
    at_unix_ms: int
    specialist: str
    primary: str
    replica: str
    intent: str
    outcome: str
    reason: str
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


class Overview(WireRecord):
    at_unix_ms: int
    ensemble: str
    version: str
    troubles: tuple[OverviewFinding, ...]
    specialists: tuple[SpecialistView, ...]
    knobs: tuple[KnobInfo, ...]
    shadow_rows: tuple[ShadowRow, ...]
    shadow_counts: ShadowCounts | None
    receipts: tuple[ReceiptLine, ...]
    audit: tuple[AuditEntry, ...]
    store_trouble: str
    unrouted_per_second: float
    headline: str
