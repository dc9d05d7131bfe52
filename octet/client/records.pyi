"""Written by `make proto` from the messages; see records.py and proto/octet/v1."""

from octet.client.wire_record import WireRecord

class SpecialistScore(WireRecord):
    specialist: str
    probability: float

# Everything that determines the answer, apart from the request.
class LaneIdentity(WireRecord):
    specialist: str
    # Hex sha256 of the model's content.
    revision: str
    # Hex sha256 of each adapter's content, in the order they are applied.
    adapter_digests: tuple[str, ...]

# One attempt to have a replica answer the request.
class AttemptInfo(WireRecord):
    specialist: str
    replica: str
    # Unset if the replica answered.
    reason: str
    message: str
    seconds: float
    # Seconds from the request's arrival to the start of this attempt.
    began: float
    # Hex W3C span id that was sent to the replica. Empty if the request is not traced.
    span_id: str

# Seconds from acceptance, given the queue, the running requests and the measured rates at that time.
class ForecastInfo(WireRecord):
    # Until the first step.
    wait: float
    # Until the end of an answer of typical length, capped at the requested maximum.
    total: float
    # Time left before the deadline at that point. Unset without a deadline.
    slack: float | None
    # Number of lower-priority requests that were shed to admit this one.
    displaced: int
    # Number of lower-priority requests that were suspended for this one and still meet their deadlines.
    set_aside: int

class Shadow(WireRecord):
    specialist: str
    # Adapter names.
    adapters: tuple[str, ...]
    # low_confidence, fresh_lane, or demoted.
    why: str

class Between(WireRecord):
    # Correctness breaker of the decision's primary: closed, shadow_only, recovering, held_open, held_closed.
    correctness: str
    # The specialist named by the decision, if another one was to answer: it is in shadow-only state, its traffic is
    # being reduced, or none of its replicas was available.
    instead_of: str
    # Human-readable reason.
    why: str
    # The lane that was to answer: serving, or fresh while it has too few verified answers.
    lane: str
    # The shadow request, whose answer no caller waits for. Unset if there was none.
    shadow: Shadow | None
    # Values of both knobs for this intent and specialist, and what last changed one: empty, escalation, operator.
    shadow_threshold: float
    priority_floor: int
    knobs_by: str
    # The second choice answered because the primary had no capacity.
    spilled: bool
    # The specialist to try first, if it is not the decision's primary. Also set if that specialist was unreachable.
    # Empty if there was none.
    lead: str

# Seconds. Unset for stages that the request did not reach.
class ReplicaTimings(WireRecord):
    # From arrival to the first admission to the KV pool.
    queued: float | None
    # From there to the first token.
    prefill: float | None
    # From the first token to the last.
    decode: float | None
    total: float
    # The part of prefill and decode during which the request was preempted.
    preempted: float | None

# Seconds from arrival. Unset for stages that the request did not reach.
class Timings(WireRecord):
    decided: float | None
    dispatched: float | None
    accepted: float | None
    first_chunk: float | None
    total: float
    # The replica had sent its whole answer. The time from here to `total` is the validation that the caller requested.
    answered: float | None

# The verifier's result for the whole answer.
class Validation(WireRecord):
    # The task's verifier: cpp, json, python, non-empty, or a custom one.
    verifier: str
    # passed, failed, or skipped if the verifier could not decide.
    outcome: str
    # Human-readable.
    detail: str
    seconds: float

# Correctness breaker of a serving or candidate lane.
class BreakerInfo(WireRecord):
    specialist: str
    # Number and adapters of the lane, for display. No adapters: the base model.
    lane: int
    adapters: tuple[str, ...]
    lane_status: str
    # closed, shadow_only, recovering.
    state: str
    # open, closed, or empty; followed by the holder and the reason.
    hold: str
    hold_by: str
    hold_why: str
    since_unix_ms: int
    # Pass rate within the window. Unset without samples.
    pass_rate: float | None
    samples: int
    # Unset: the pass rate is only recorded.
    floor: float | None
    min_samples: int
    window_seconds: float
    # The specialist that serves the intent while this one does not. Empty: requests are refused.
    fallback: str
    # Human-readable: the next state change and when it is due.
    outlook: str
    verifier: str

class BreakerList(WireRecord):
    breakers: tuple[BreakerInfo, ...]
    # Empty while the store is available.
    store_trouble: str

class KnobInfo(WireRecord):
    # INTENT.shadow_threshold or INTENT.priority_floor; INTENT/SPECIALIST instead of INTENT for a single specialist.
    # Requests without an intent have the intent `unspecified`.
    name: str
    value: float
    # The configured value.
    configured: float
    # configuration, escalation, or the name of the operator.
    set_by: str
    why: str
    # 0 for a configured value.
    since_unix_ms: int

class LaneInfo(WireRecord):
    specialist: str
    number: int
    # Empty for the base model.
    adapter: str
    # Hex sha256 of the content.
    digests: tuple[str, ...]
    revision: str
    # serving, candidate, previous, retired, rolled_back.
    status: str
    since_unix_ms: int
    by: str
    why: str
    pass_rate: float | None
    samples: int
    # Human-readable: the next state change.
    outlook: str
    # Number of replicas that have loaded the lane, and number of all replicas.
    resident: int
    replicas: int

class ReplicaInfo(WireRecord):
    name: str
    specialist: str
    address: str
    # serving, connecting, hung, draining, drained_by_operator.
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
    # The shadow's specialist; for a candidate lane with its adapter appended: debug+my-lora.
    shadow: str
    why: str
    compared: int
    # Number of comparisons that could be verified, passes of each side, and passes of one side alone.
    verified: int
    primary_passed: int
    shadow_passed: int
    only_primary_passed: int
    only_shadow_passed: int
    # Same outcome and similar text.
    agreed: int
    mean_similarity: float

class ShadowCounts(WireRecord):
    ordered: int
    sent: int
    answered: int
    shed: int
    failed: int
    # Comparisons that were completed.
    compared: int

class ShadowReport(WireRecord):
    rows: tuple[ShadowRow, ...]
    # Counts since the start of this router. Shed: by the budget, the queue or a replica.
    counts: ShadowCounts

# Comparison of a primary's answer with a shadow's.
class Comparison(WireRecord):
    request_id: str
    at_unix_ms: int
    intent: str
    primary: str
    shadow: str
    why: str
    # Confidence in the primary. Unset if the classifier did not run.
    confidence: float | None
    # passed, failed, skipped, unavailable.
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
    # An operator, or the component that acted by itself: breaker, escalation, lanes, configuration, octet.
    who: str
    why: str
    # hold_breaker, trip, recover, set_knob, escalate, load_lane, promote, roll_back, drain, ...
    what: str
    # The specialist, knob or replica, or `store`.
    subject: str
    before: str
    after: str

class OperatorEvent(WireRecord):
    at_unix_ms: int
    audit: AuditEntry | None
    # Why the store is unavailable; empty when it is available again.
    store_trouble: str | None
    # Number of events dropped because the stream was read too slowly.
    dropped: int | None

# total = free + cached + used.
class BlockUsage(WireRecord):
    total: int
    free: int
    # Unused by any sequence, but reusable by prefix.
    cached: int
    used: int

class EstimateError(WireRecord):
    # Of step durations.
    step_p50: float
    step_p90: float
    # Of total durations, for requests that no higher priority delayed.
    total_p50: float | None
    total_p90: float | None
    num_requests: int

class ResidentAdapter(WireRecord):
    name: str
    # Hex sha256 of the content.
    digest: str

class LoadReport(WireRecord):
    waiting: int
    running: int
    blocks: BlockUsage | None
    # Whether a sequence was preempted within the last second.
    preempting: bool
    # Since the start.
    times_preempted: int
    # Tokens per second within steps, weighted towards recent steps. Unset until measured.
    prefill_rate: float | None
    decode_rate: float | None
    # Requests completed per second while others wait. Unset until measured.
    drain_rate: float | None
    adapters: tuple[ResidentAdapter, ...]
    draining: bool
    max_running: int
    max_waiting: int
    # Hex sha256 of the model's content.
    revision: str
    # Whether a non-shadow request was refused for lack of capacity within the last second.
    refusing: bool
    # Number of shadow requests that are waiting or running.
    shadows: int
    # Seconds that a typical request would wait before its first step. Unset until measured or calibrated.
    usual_wait: float | None
    # Relative error of the forecasts. Unset until measured.
    estimate_error: EstimateError | None
    # Since the start: prompt tokens of requests that started to run, and those of them found in the cache.
    prompt_tokens: int
    cache_hit_tokens: int
    # Since the start: evicted blocks.
    evicted_blocks: int
    # Random id of the process, to tell apart processes at the same address.
    instance: str

# Seconds. Unset without samples.
class Latency(WireRecord):
    samples: int
    p50: float | None
    p95: float | None
    p99: float | None

# Burn rate of the error budget: 1 consumes the budget exactly within its period.
class Burn(WireRecord):
    window_seconds: float
    samples: int
    # Unset without samples.
    rate: float | None

class Objective(WireRecord):
    # ttft_p50, ttft_p95, ttft_p99, the same for itl, admission_to_first_token_p95, or correctness.
    name: str
    # Seconds; for correctness, the floor.
    target: float
    # The share of samples that must meet the target: 0.95 for a p95.
    share: float
    # Value within the window. Unset without samples.
    current: float | None
    # Also true without samples; `current` is unset in that case.
    met: bool
    # Shortest window first.
    burns: tuple[Burn, ...]

# Sent with every answer as the metadata `octet-slo`, and over HTTP as the header of the same name.
class Slo(WireRecord):
    specialist: str
    # Window of the latencies and of the preempted share.
    window_seconds: float
    # From the request's arrival at the router to the first chunk of the answer.
    ttft: Latency | None
    # Between two chunks of an answer, as they leave the router.
    itl: Latency | None
    # From the replica's acceptance to the first chunk.
    admission_to_first_token: Latency | None
    # Pass rate of the serving lane's evaluated answers. Unset if there are none.
    pass_rate: float | None
    judged: int
    # Unset: no floor is configured; the pass rate is only recorded.
    floor: float | None
    correctness_window_seconds: float
    # Number of answered requests, and the share of them that was preempted at least once (unset if there are none). This
    # is informational; no objective applies to it.
    answered: int
    preempted_once: float | None
    # The configured objectives.
    objectives: tuple[Objective, ...]
    # Maximum relative error of the quantiles.
    relative_error: float
    # Number of routers whose requests are included.
    routers: int

class HistoryPoint(WireRecord):
    at_unix_ms: int
    ttft_p95: float | None
    itl_p95: float | None
    admission_to_first_token_p95: float | None
    pass_rate: float | None
    # Per second.
    requests: float
    refused: float
    completion_tokens: float
    waiting: int
    running: int
    # Share of all blocks in use.
    blocks_used: float | None
    cache_reuse: float | None
    # The highest burn rate of its objectives, over the shortest window.
    burn: float | None

class SpecialistHistory(WireRecord):
    name: str
    # Oldest first.
    points: tuple[HistoryPoint, ...]

class OverviewHistory(WireRecord):
    step_seconds: float
    specialists: tuple[SpecialistHistory, ...]

class OverviewFinding(WireRecord):
    severity: str
    # nobody_serves, no_replica, replica_hung, replica_lost, burning, refusing, unserved, failing, correctness,
    # breaker_open, breaker_held, escalated, knob_set, fresh_lane, cache_drift, misrouting, estimator, store_down,
    # draining.
    kind: str
    # The specialist, replica, knob, `router` or `store`.
    subject: str
    # One human-readable sentence.
    text: str
    since_unix_ms: int
    # The runbook section that applies: capacity, bad-refresh, both, cache-drift, wrong-specialist; or empty.
    runbook: str

# Per second.
class RequestRates(WireRecord):
    # Requests for this specialist. Each was answered, refused, failed, spilled, declined for another reason, or
    # abandoned by its caller.
    requests: float
    answered: float
    # For lack of capacity, or of a specialist that could answer.
    refused: float
    failed: float
    # Answered by a second choice for lack of capacity. They count there as well.
    spilled: float
    shadowed: float
    # Of completed answers.
    completion_tokens: float
    # Mean confidence of the decisions for this specialist. Unset if there are none.
    confidence: float | None
    # The part of `refused` for which the specialist was not serving and had no fallback.
    unserved: float

class ReplicaView(WireRecord):
    info: ReplicaInfo | None
    # Unset until the replica has reported.
    load: LoadReport | None

class SpecialistView(WireRecord):
    name: str
    describe: str
    slo: Slo | None
    breaker: BreakerInfo | None
    # Breaker of the candidate lane. Unset without a candidate.
    candidate: BreakerInfo | None
    # The serving, candidate and previous lanes.
    lanes: tuple[LaneInfo, ...]
    # Whether the serving lane has too few evaluated answers.
    fresh: bool
    replicas: tuple[ReplicaView, ...]
    # Within the last minute.
    rates: RequestRates | None
    # Share of the last five minutes' prompt tokens that was found in the cache. Unset without prompt tokens.
    cache_reuse: float | None
    # The same share for the hour before.
    usual_cache_reuse: float | None

class ReceiptLine(WireRecord):
    request_id: str
    tenant: str
    at_unix_ms: int
    # The specialist that answered or was to answer.
    specialist: str
    # The specialist named by the decision.
    primary: str
    replica: str
    intent: str
    # answered, refused, failed, cancelled.
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
    # Current problems, worst first.
    troubles: tuple[OverviewFinding, ...]
    specialists: tuple[SpecialistView, ...]
    knobs: tuple[KnobInfo, ...]
    # Within the last hour.
    shadow_rows: tuple[ShadowRow, ...]
    shadow_counts: ShadowCounts | None
    # The most recent receipts, newest first.
    receipts: tuple[ReceiptLine, ...]
    audit: tuple[AuditEntry, ...]
    # Empty while the store is available.
    store_trouble: str
    # Requests without a specialist: no specialist should answer them, or they could not be parsed.
    unrouted_per_second: float
    # The problems in one line.
    headline: str
