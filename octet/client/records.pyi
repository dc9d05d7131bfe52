"""Written by `make proto` from the messages; see records.py and proto/octet/v1."""

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
    floor: float | None
    min_samples: int
    window_seconds: float
    fallback: str
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
    feature_values: tuple[str, ...]
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
    at_unix_ms: int
    audit: AuditEntry | None
    store_trouble: str | None
    dropped: int | None

class RequestExplanation(WireRecord):
    receipt: Receipt
    comparison: Comparison | None
    judged: str
    changes: tuple[AuditEntry, ...]

class BlockUsage(WireRecord):
    total: int
    free: int
    cached: int
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
    samples: int
    p50: float | None
    p95: float | None
    p99: float | None

class Burn(WireRecord):
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

class Slo(WireRecord):
    specialist: str
    window_seconds: float
    ttft: Latency | None
    itl: Latency | None
    admission_to_first_token: Latency | None
    pass_rate: float | None
    judged: int
    floor: float | None
    correctness_window_seconds: float
    answered: int
    preempted_once: float | None
    objectives: tuple[Objective, ...]
    relative_error: float
    routers: int

class HistoryPoint(WireRecord):
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
