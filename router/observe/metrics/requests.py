"""Metrics of requests, and the observers that count them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric

from admission.knobs import UNSPECIFIED_INTENT
from octet.config.ensemble import Ensemble
from octet.rpc.messages import enum_labels
from octet.telemetry import distributions as bounds
from octet.telemetry.distributions import Histogram
from octet.telemetry.exposition import FamilyStream, counter_family, histogram_family
from octet.telemetry.outcomes import OUTCOMES, RequestOutcome, reason_name, request_outcome, responsible_specialist
from octet.v1 import inference_pb2 as wire
from router.observe.observers import RequestObserver, TokenGap
from router.request import Request

_SOURCE_NAMES = enum_labels(wire.DecisionSource.DESCRIPTOR)
_MISS_NAMES = {**enum_labels(wire.MissReason.DESCRIPTOR), wire.MISS_REASON_UNSPECIFIED: "none"}
DECISION_SOURCES = frozenset((*_SOURCE_NAMES.values(), "other"))
MISS_REASONS = frozenset((*_MISS_NAMES.values(), "other"))
ALERTED_REASONS = (  # refusals for lack of capacity, and failures
    *("queue_full", "would_delay_others", "deadline_unreachable", "shed", "below_floor", "demoted"),
    *("no_replica", "replica_failed", "replica_lost", "engine_failed", "deadline", "internal"),
)
_GEN_AI_LABELS = ("specialist", "gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_response_model")


class SpecialistCounters:
    """Counters of a specialist. Those with alerts exist from the start: Prometheus must see their first increase."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self.errors = Counter(dict.fromkeys(ALERTED_REASONS, 0))
        self.decisions = Counter(dict.fromkeys(sorted(DECISION_SOURCES), 0))
        self.failed_attempts: Counter[str] = Counter()
        self.misses = Counter(dict.fromkeys(sorted(MISS_REASONS), 0))
        self.spilled = self.replaced = self.preempted = self.preemptions = 0
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0
        self.seconds: dict[RequestOutcome, Histogram] = {
            each: Histogram(bounds.REQUEST_SECONDS_BOUNDS) for each in OUTCOMES
        }
        self.first_token, self.queued = Histogram(bounds.TTFT_SECONDS_BOUNDS), Histogram(bounds.TTFT_SECONDS_BOUNDS)
        self.admission_to_first_token = Histogram(bounds.TTFT_SECONDS_BOUNDS)
        self.output_token, self.gap = Histogram(bounds.ITL_SECONDS_BOUNDS), Histogram(bounds.ITL_SECONDS_BOUNDS)
        self.decided = Histogram(bounds.DECISION_SECONDS_BOUNDS)
        self.confidence = Histogram(bounds.RATIO_BOUNDS)
        self.prefill = Histogram(bounds.TTFT_SECONDS_BOUNDS)
        self.decode_rate = Histogram(bounds.TOKENS_PER_SECOND_BOUNDS)
        self.input_usage, self.output_usage = Histogram(bounds.TOKENS_BOUNDS), Histogram(bounds.TOKENS_BOUNDS)
        self._begin(UNSPECIFIED_INTENT)

    def ended(self, intent: str, receipt: wire.Receipt) -> None:
        outcome, timings = request_outcome(receipt), receipt.timings
        self._begin(intent)
        self.requests[intent, outcome] += 1
        if outcome != "answered":
            self.errors[reason_name(receipt.error.reason)] += 1
        self.seconds[outcome].add(timings.total)
        if timings.HasField("first_chunk"):
            self.first_token.add(timings.first_chunk)
            if timings.HasField("accepted"):
                self.admission_to_first_token.add(timings.first_chunk - timings.accepted)
        if receipt.HasField("usage"):
            self._add_usage(receipt.usage)
        # the mean time per token after the first, without verification
        after_first = receipt.usage.completion_tokens - 1
        has_times = timings.HasField("first_chunk") and timings.HasField("answered")
        if outcome == "answered" and after_first > 0 and has_times:
            self.output_token.add((timings.answered - timings.first_chunk) / after_first)

    def decided_by(self, decision: wire.Decision, timings: wire.RouterTimings) -> None:
        self.decisions[_SOURCE_NAMES.get(decision.source, "other")] += 1
        self.decided.add(timings.decided)
        if decision.HasField("confidence"):
            self.confidence.add(decision.confidence)

    def _begin(self, intent: str) -> None:
        if (intent, "answered") not in self.requests:
            self.requests.update({(intent, outcome): 0 for outcome in OUTCOMES})

    def _add_usage(self, usage: wire.Usage) -> None:
        self.preempted += usage.times_preempted > 0
        self.preemptions += max(0, usage.times_preempted)
        self.prompt_tokens += max(0, usage.prompt_tokens)
        self.cached_tokens += max(0, usage.cache_hit_tokens)
        self.completion_tokens += max(0, usage.completion_tokens)
        self.misses[_MISS_NAMES.get(usage.miss_reason, "other")] += 1
        self.input_usage.add(usage.prompt_tokens)
        self.output_usage.add(usage.completion_tokens)
        timings = usage.timings
        if timings.HasField("queued"):
            self.queued.add(timings.queued)
        if timings.HasField("prefill"):
            self.prefill.add(timings.prefill)
        if timings.decode > 0 and usage.completion_tokens > 1:
            self.decode_rate.add((usage.completion_tokens - 1) / timings.decode)


class RequestCounters(RequestObserver):
    def __init__(self, ensemble: Ensemble) -> None:
        self.by_specialist = {name: SpecialistCounters() for name in ensemble.names}
        self.reload(ensemble)
        self.unrouted: Counter[str] = Counter()  # requests that belong to no specialist, by reason

    def reload(self, ensemble: Ensemble) -> None:
        self._intents = frozenset(intent.name for intent in ensemble.intents)

    def gaps(self, specialist: str, gaps: Sequence[TokenGap]) -> None:
        add = self.by_specialist[specialist].gap.add
        for seconds, count in gaps:
            add(seconds, count)

    def ended(self, request: Request, receipt: wire.Receipt) -> None:
        found, decision = self.by_specialist, receipt.decision
        if decision.primary in found:
            found[decision.primary].decided_by(decision, receipt.timings)
        counters = found.get(responsible_specialist(receipt))
        if counters is None:
            self.unrouted[reason_name(receipt.error.reason)] += 1
            return
        intent = request.intent if request.intent in self._intents else UNSPECIFIED_INTENT
        counters.ended(intent, receipt)
        if receipt.between.spilled and decision.primary in found:
            found[decision.primary].spilled += 1
        if receipt.between.instead_of in found:
            found[receipt.between.instead_of].replaced += 1
        for attempt in receipt.attempts:
            if attempt.reason and attempt.specialist in found:
                found[attempt.specialist].failed_attempts[reason_name(attempt.reason)] += 1

    def rejected(self, error: wire.Error) -> None:
        self.unrouted[reason_name(error.reason)] += 1


def request_source(counters: RequestCounters) -> FamilyStream:
    found, unrouted = counters.by_specialist, tuple(counters.unrouted.items())
    # counters that may get new entries are copied on the event loop
    requests = {name: tuple(each.requests.items()) for name, each in found.items()}
    labelled = [
        (name, about, label, {each: tuple(getattr(counters, attribute).items()) for each, counters in found.items()})
        for attribute, name, label, about in _LABELLED_COUNTERS
    ]
    yield None  # the rest runs on another thread
    about = "Requests that ended without a specialist: none should answer, or the router refused them before routing."
    yield counter_family("octet_unrouted_requests_total", about, ("reason",), (((why,), n) for why, n in unrouted))
    yield from _gen_ai_families(found)
    for attribute, name, about in _HISTOGRAMS:
        rows = [((specialist,), getattr(each, attribute)) for specialist, each in found.items()]
        yield histogram_family(name, about, ("specialist",), rows)
    about = "Requests that ended, by outcome (answered, refused, failed, cancelled) and the specialist that "
    labels = ("specialist", "intent", "outcome")
    ended = (((specialist, *key), n) for specialist, counts in requests.items() for key, n in counts)
    yield counter_family("octet_requests_total", f"{about}answered or should have.", labels, ended)
    for name, about, label, by_specialist in labelled:
        samples = (((specialist, key), n) for specialist, counts in by_specialist.items() for key, n in counts)
        yield counter_family(name, about, ("specialist", label), samples)
    for attribute, name, about in _TOTALS:
        totals = [((specialist,), getattr(each, attribute)) for specialist, each in found.items()]
        yield counter_family(name, about, ("specialist",), totals)


def _gen_ai_families(found: Mapping[str, SpecialistCounters]) -> Iterator[Metric]:
    labels = {name: (name, "chat", "octet", f"octet/{name}") for name in found}
    about = "Time from a request's arrival to its end; error_type is empty if it was answered, otherwise refused, "
    durations = [
        ((*labels[name], "" if outcome == "answered" else outcome), each.seconds[outcome])
        for name, each in found.items()
        for outcome in OUTCOMES
        if outcome == "answered" or each.seconds[outcome].num_values
    ]
    names = (*_GEN_AI_LABELS, "error_type")
    yield histogram_family("gen_ai_server_request_duration_seconds", f"{about}failed or cancelled.", names, durations)
    about = "Time from a request's arrival to the first chunk of its answer."
    times = [(labels[name], each.first_token) for name, each in found.items()]
    yield histogram_family("gen_ai_server_time_to_first_token_seconds", about, _GEN_AI_LABELS, times)
    about = "Mean time per token after the first, for one answer."
    times = [(labels[name], each.output_token) for name, each in found.items()]
    yield histogram_family("gen_ai_server_time_per_output_token_seconds", about, _GEN_AI_LABELS, times)
    about = "Tokens of one request: input for the prompt, output for the answer."
    usage = [
        ((*labels[name], kind), histogram)
        for name, each in found.items()
        for kind, histogram in (("input", each.input_usage), ("output", each.output_usage))
    ]
    yield histogram_family("gen_ai_client_token_usage", about, (*_GEN_AI_LABELS, "gen_ai_token_type"), usage)


# Attributes of SpecialistCounters, and their families.
_HISTOGRAMS = (
    ("gap", "octet_itl_seconds", "Time from one token of an answer to the next as they leave the router."),
    (
        "admission_to_first_token",
        "octet_admission_to_first_token_seconds",
        "Time from the replica's acceptance to the first chunk of the answer.",
    ),
    ("decided", "octet_decision_seconds", "Time from arrival to the routing decision."),
    ("queued", "octet_queue_seconds", "Time from arrival at the replica to the first step."),
    ("prefill", "octet_prefill_seconds", "Time from the first step to the first token."),
    ("decode_rate", "octet_decode_tokens_per_second", "Tokens per second of one answer after its first token."),
    (
        "confidence",
        "octet_decision_confidence_ratio",
        "The classifier's probability for the specialist it chose.",
    ),
)
_LABELLED_COUNTERS = (
    ("errors", "octet_errors_total", "reason", "Unanswered requests, by reason."),
    ("decisions", "octet_decisions_total", "source", "Routing decisions, by source."),
    (
        *("failed_attempts", "octet_failed_attempts_total", "reason"),
        "Failed attempts at a replica; another attempt may have answered the request.",
    ),
    (
        *("misses", "octet_cache_misses_total", "reason"),
        "Requests, by reason for an incomplete cache hit; the reason none means that all reusable blocks were found.",
    ),
)
_TOTALS = (
    (
        *("spilled", "octet_spilled_requests_total"),
        "Requests answered by the second choice because this specialist had no capacity.",
    ),
    (
        *("replaced", "octet_stand_in_requests_total"),
        "Requests answered by a fallback because this specialist was demoted, overloaded or without usable replicas.",
    ),
    ("preempted", "octet_preempted_requests_total", "Requests preempted at least once."),
    ("preemptions", "octet_preemptions_total", "Preemptions of requests."),
    ("prompt_tokens", "octet_prompt_tokens_total", "Prompt tokens."),
    ("cached_tokens", "octet_cached_prompt_tokens_total", "Prompt tokens found in the cache."),
    ("completion_tokens", "octet_completion_tokens_total", "Tokens of answers."),
)
