"""How the requests of one specialist fare, counted since the start."""

from collections import Counter

from admission.knobs import UNSPECIFIED
from octet.telemetry import bounds
from octet.telemetry.histogram import Histogram
from octet.telemetry.outcome import OUTCOMES, Outcome, outcome_of, reason_name
from octet.v1 import inference_pb2 as wire


class Fare:
    """Belongs to the event loop; whoever scrapes only reads."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """By intent and outcome. Here and below, what alerts are about begins with 0: Prometheus sees no growth in what
        begins with 1."""
        self.errors = Counter(dict.fromkeys(WATCHED, 0))
        self.decisions = Counter(dict.fromkeys(sorted(SOURCES), 0))
        """By what decided."""
        self.failed_attempts: Counter[str] = Counter()
        self.misses = Counter(dict.fromkeys(sorted(MISSES), 0))
        self.spilled = self.stood_in = self.preempted = self.preemptions = 0
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0
        self.seconds: dict[Outcome, Histogram] = {each: Histogram(bounds.REQUEST_SECONDS) for each in OUTCOMES}
        self.first_token = Histogram(bounds.TTFT_SECONDS)
        self.admission_to_first_token = Histogram(bounds.TTFT_SECONDS)
        self.output_token = Histogram(bounds.ITL_SECONDS)
        self.gap = Histogram(bounds.ITL_SECONDS)
        self.decided = Histogram(bounds.DECISION_SECONDS)
        self.confidence = Histogram(bounds.RATIO)
        self.queued = Histogram(bounds.TTFT_SECONDS)
        self.prefill = Histogram(bounds.TTFT_SECONDS)
        self.decode_rate = Histogram(bounds.TOKENS_A_SECOND)
        self.input_usage = Histogram(bounds.TOKENS)
        self.output_usage = Histogram(bounds.TOKENS)
        self._begin(UNSPECIFIED)

    def ended(self, intent: str, receipt: wire.Receipt) -> None:
        outcome = outcome_of(receipt)
        self._begin(intent)
        self.requests[intent, outcome] += 1
        if outcome != "answered":
            self.errors[reason_name(receipt.error.reason)] += 1
        self.seconds[outcome].add(receipt.timings.total)
        self._time(receipt.timings)
        if receipt.HasField("usage"):
            self._use(receipt.usage)
        if outcome == "answered":
            self._speed(receipt.timings, receipt.usage)

    def _begin(self, intent: str) -> None:
        if (intent, "answered") not in self.requests:
            self.requests.update({(intent, outcome): 0 for outcome in OUTCOMES})

    def decided_by(self, decision: wire.Decision, timings: wire.RouterTimings) -> None:
        self.decisions[_SOURCES.get(decision.source, "other")] += 1
        self.decided.add(timings.decided)
        if decision.HasField("confidence"):
            self.confidence.add(decision.confidence)

    def _time(self, timings: wire.RouterTimings) -> None:
        if not timings.HasField("first_chunk"):
            return
        self.first_token.add(timings.first_chunk)
        if timings.HasField("accepted"):
            self.admission_to_first_token.add(timings.first_chunk - timings.accepted)

    def _use(self, usage: wire.Usage) -> None:
        self.preempted += usage.times_preempted > 0
        self.preemptions += max(0, usage.times_preempted)
        self.prompt_tokens += max(0, usage.prompt_tokens)
        self.cached_tokens += max(0, usage.cache_hit_tokens)
        self.completion_tokens += max(0, usage.completion_tokens)
        self.misses[_MISSES.get(usage.miss_reason, "other")] += 1
        self.input_usage.add(usage.prompt_tokens)
        self.output_usage.add(usage.completion_tokens)
        times = usage.timings
        if times.HasField("queued"):
            self.queued.add(times.queued)
        if times.HasField("prefill"):
            self.prefill.add(times.prefill)
        if times.decode > 0 and usage.completion_tokens > 1:
            self.decode_rate.add((usage.completion_tokens - 1) / times.decode)

    def _speed(self, timings: wire.RouterTimings, usage: wire.Usage) -> None:
        """The mean over the tokens behind the first, as OpenTelemetry's conventions have it; without the verdict."""
        behind_first = usage.completion_tokens - 1
        if behind_first > 0 and timings.HasField("first_chunk") and timings.HasField("answered"):
            self.output_token.add((timings.answered - timings.first_chunk) / behind_first)


_SOURCES: dict[int, str] = {
    number: name.removeprefix("DECISION_SOURCE_").lower() for name, number in wire.DecisionSource.items()
}
_MISSES: dict[int, str] = {
    number: "none" if number == wire.MISS_REASON_UNSPECIFIED else name.removeprefix("MISS_REASON_").lower()
    for name, number in wire.MissReason.items()
}
SOURCES = frozenset((*_SOURCES.values(), "other"))
MISSES = frozenset((*_MISSES.values(), "other"))
WATCHED = (
    *("queue_full", "would_delay_others", "deadline_unreachable", "shed", "below_floor", "demoted"),
    *("no_replica", "replica_failed", "replica_lost", "engine_failed", "deadline", "internal"),
)
"""Reasons for which requests are refused for want of room, or fail."""
