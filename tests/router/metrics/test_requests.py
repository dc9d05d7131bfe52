"""Every request is counted once, and labels have only configured values."""

import re
from collections import defaultdict
from collections.abc import Set
from math import inf, nan
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import Ensemble, IntentConfig, SpecialistConfig
from octet.telemetry.outcomes import OUTCOMES, REASON_NAMES, reason_name, request_outcome, responsible_specialist
from octet.v1 import inference_pb2 as wire
from router.observe.metrics.requests import DECISION_SOURCES, MISS_REASONS, RequestCounters, request_source
from router.observe.observers import TokenGap
from router.request import Request, TraceContext

RULES = Path(__file__).parents[3] / "helm" / "monitoring" / "rules.yml"
HOUSE = Ensemble(
    specialists=(SpecialistConfig("writer"), SpecialistConfig("coder")), intents=(IntentConfig("build-fix"),)
)
names = st.sampled_from(("writer", "coder", "", "absent", 'evil"\n{}', "\u2028"))
words = st.one_of(names, st.text(max_size=8), st.just("build-fix"))
seconds = st.one_of(st.floats(), st.sampled_from((0.0, -1.0, nan, inf, 0.02)))
numbers = st.integers(-(2**40), 2**40)
enums: st.SearchStrategy[Any] = st.integers(0, 90)
"""Enum numbers, known and unknown."""
KNOWN: dict[str, Set[str]] = {
    "specialist": {"writer", "coder"},
    "intent": {"build-fix", "unspecified"},
    "outcome": set(OUTCOMES),
    "reason": REASON_NAMES | MISS_REASONS,
    "source": DECISION_SOURCES,
    "error_type": {"", *OUTCOMES},
    "gen_ai_token_type": {"input", "output"},
    "gen_ai_operation_name": {"chat"},
    "gen_ai_provider_name": {"octet"},
    "gen_ai_response_model": {"octet/writer", "octet/coder"},
}


@st.composite
def receipts(draw: st.DrawFn) -> wire.Receipt:
    receipt = wire.Receipt(specialist=draw(names), replica=draw(words), tenant=draw(words), session_id=draw(words))
    receipt.decision.primary = draw(names)
    receipt.decision.source = draw(enums)
    receipt.decision.confidence = draw(seconds)
    timings = receipt.timings
    timings.total, timings.decided = draw(seconds), draw(seconds)
    if draw(st.booleans()):
        timings.accepted, timings.first_chunk = draw(seconds), draw(seconds)
    if draw(st.booleans()):
        receipt.error.reason, receipt.error.message = draw(enums), draw(words)
    if draw(st.booleans()):
        usage = receipt.usage
        usage.prompt_tokens, usage.completion_tokens = draw(numbers), draw(numbers)
        usage.cache_hit_tokens, usage.times_preempted = draw(numbers), draw(numbers)
        usage.miss_reason = draw(enums)
        usage.timings.queued, usage.timings.prefill, usage.timings.decode = (draw(seconds) for _ in range(3))
    receipt.between.spilled, receipt.between.instead_of = draw(st.booleans()), draw(names)
    receipt.attempts.add(specialist=draw(names), replica=draw(words), reason=draw(enums))
    return receipt


def asked(intent: str) -> Request:
    return Request("id", (), "", 0.0, 1.0, TraceContext("0" * 32, ""), intent=intent)


@given(st.lists(st.tuples(words, receipts()), max_size=3), st.lists(enums, max_size=2))
def test_every_request_is_counted_once_and_labels_are_known(
    ended: list[tuple[str, wire.Receipt]], rejected: list[Any]
) -> None:
    counters = RequestCounters(HOUSE)
    for intent, receipt in ended:
        counters.ended(asked(intent), receipt)
    for reason in rejected:
        counters.rejected(wire.Error(reason=reason))
    families = list(filter(None, request_source(counters)))
    counted = 0.0
    for family in families:
        for sample in family.samples:
            for label, value in sample.labels.items():
                assert label == "le" or value in KNOWN[label], (sample.name, label, value)
            if sample.name in ("octet_requests_total", "octet_unrouted_requests_total"):
                counted += sample.value
            assert sample.value >= 0
        if "_seconds" in family.name or "per_second" in family.name:
            assert all(sample.labels["specialist"] for sample in family.samples)
    assert counted == len(ended) + len(rejected)


@given(receipts())
def test_metrics_and_windows_name_the_same_specialist(receipt: wire.Receipt) -> None:
    counters = RequestCounters(HOUSE)
    counters.ended(asked(""), receipt)
    named = responsible_specialist(receipt)
    counted = [name for name, fare in counters.by_specialist.items() if fare.requests.total()]
    assert counted == ([named] if named in counters.by_specialist else [])


def test_all_metrics_of_one_answer() -> None:
    counters = RequestCounters(HOUSE)
    receipt = wire.Receipt(specialist="writer")
    receipt.decision.primary, receipt.decision.source = "writer", wire.DECISION_SOURCE_RULE
    receipt.timings.accepted, receipt.timings.first_chunk = 0.25, 0.5
    receipt.timings.answered, receipt.timings.total = 2.5, 7.5
    receipt.usage.prompt_tokens, receipt.usage.completion_tokens, receipt.usage.cache_hit_tokens = 100, 5, 64
    receipt.usage.timings.queued, receipt.usage.timings.prefill, receipt.usage.timings.decode = 0.1, 0.2, 2.0
    counters.ended(asked("build-fix"), receipt)
    counters.gaps("writer", [TokenGap(0.25, 3)])
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for sample in (sample for family in filter(None, request_source(counters)) for sample in family.samples):
        if "specialist" in sample.labels and "le" not in sample.labels and not sample.labels.get("error_type"):
            found[sample.name, sample.labels["specialist"]] += sample.value
    assert found["gen_ai_server_time_to_first_token_seconds_sum", "writer"] == 0.5
    assert found["gen_ai_server_time_per_output_token_seconds_sum", "writer"] == 0.5
    assert found["gen_ai_server_request_duration_seconds_sum", "writer"] == 7.5
    assert found["octet_admission_to_first_token_seconds_sum", "writer"] == 0.25
    assert found["octet_itl_seconds_sum", "writer"] == 0.75
    assert found["octet_queue_seconds_sum", "writer"] == 0.1
    assert found["octet_prefill_seconds_sum", "writer"] == 0.2
    assert found["octet_decode_tokens_per_second_sum", "writer"] == 2.0
    assert found["octet_cached_prompt_tokens_total", "writer"] == 64
    assert found["octet_prompt_tokens_total", "writer"] == 100
    assert found["octet_completion_tokens_total", "writer"] == 5
    assert found["octet_requests_total", "writer"] == 1
    assert found["octet_completion_tokens_total", "coder"] == 0


def samples_of(counters: RequestCounters) -> set[tuple[str, float, tuple[str, ...]]]:
    samples = [sample for family in filter(None, request_source(counters)) for sample in family.samples]
    return {(sample.name, sample.value, tuple(sorted(sample.labels.values()))) for sample in samples}


def test_series_of_alerts_begin_with_zero() -> None:
    """A series that an alert uses starts with 0, because Prometheus sees no increase in a series that starts with 1."""
    counters = RequestCounters(HOUSE)
    reasons = set(re.findall(r"[a-z_]+", "|".join(re.findall(r'reason=~?"([^"]+)"', RULES.read_text())))) & REASON_NAMES
    assert {"queue_full", "demoted"} <= reasons
    began = samples_of(counters)
    for reason in reasons:
        assert ("octet_errors_total", 0, (reason, "writer")) in began
    for outcome in OUTCOMES:
        assert ("octet_requests_total", 0, tuple(sorted((outcome, "coder", "unspecified")))) in began
    counters.ended(asked("build-fix"), wire.Receipt(specialist="writer"))
    assert ("octet_requests_total", 1, ("answered", "build-fix", "writer")) in samples_of(counters)
    assert ("octet_requests_total", 0, ("build-fix", "failed", "writer")) in samples_of(counters)


def test_an_outcome_is_one_of_four() -> None:
    samples_of = {
        reason_name(number): request_outcome(wire.Receipt(error=wire.Error(reason=number)))
        for number in wire.ErrorReason.values()
    }
    assert request_outcome(wire.Receipt()) == "answered"
    assert samples_of["cancelled"] == "cancelled" and samples_of["queue_full"] == samples_of["below_floor"] == "refused"
    assert samples_of["replica_lost"] == samples_of["internal"] == samples_of["deadline"] == "failed"
    assert set(samples_of.values()) == {"refused", "failed", "cancelled"}
