"""Every request is counted once for its specialist, and the counts cover the last minute."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from octet.clock import ManualClock
from octet.telemetry.outcomes import first_asked, request_outcome
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from router.observe.overview.traffic import (
    CAPACITY_OR_FLOOR_REASONS,
    MOST_LINES,
    UNSERVED_REASONS,
    WINDOW_SECONDS,
    TimeBuckets,
    Traffic,
    rates_to_wire,
)
from tests.router.overview.harness import ASK, receipt_of

NAMES = ("debug", "stl", "algo")
REASONS = sorted(error_pb2.ErrorReason.values())


@st.composite
def receipts(draw: st.DrawFn) -> wire.Receipt:
    primary, answerer = draw(st.sampled_from(NAMES)), draw(st.sampled_from(NAMES))
    reason = draw(st.sampled_from(REASONS))
    receipt = receipt_of(primary, reason, tokens=draw(st.integers(0, 9)))
    if draw(st.booleans()):
        receipt.specialist = answerer
        receipt.between.spilled = answerer != primary
    if draw(st.booleans()):
        receipt.timings.first_chunk = 0.1
    if draw(st.booleans()):
        receipt.between.shadow.specialist, receipt.between.shadow.replica = "algo", "algo-0"
    if draw(st.booleans()):
        receipt.decision.source, receipt.decision.confidence = wire.DECISION_SOURCE_CLASSIFIER, draw(st.floats(0, 1))
    return receipt


@given(st.lists(st.tuples(st.floats(0, 20), receipts()), max_size=30), st.floats(0, 100))
def test_a_minute_counts_the_requests_that_ended_in_it(steps: list[tuple[float, wire.Receipt]], later: float) -> None:
    clock = ManualClock()
    traffic, ended = Traffic(clock), []
    for seconds, receipt in steps:
        clock.sleep(seconds)
        traffic.ended(ASK, receipt)
        ended.append((clock.now(), receipt))
    clock.sleep(later)
    recent = [receipt for at, receipt in ended if at // 1 > clock.now() - WINDOW_SECONDS]
    for name in NAMES:
        minute = traffic.of_specialist(name)
        own = [each for each in recent if (each.specialist or first_asked(each)) == name]
        lost = [each for each in recent if each.between.spilled and first_asked(each) == name != each.specialist]
        outcomes = Counter(map(request_outcome, own))
        assert minute.requests == len(own) + len(lost)
        failed = [
            each
            for each in own
            if request_outcome(each) == "failed"
            and each.error.reason not in CAPACITY_OR_FLOOR_REASONS | UNSERVED_REASONS
        ]
        assert (minute.answered, minute.failed) == (outcomes["answered"], len(failed))
        assert minute.refused == sum(each.error.reason in CAPACITY_OR_FLOOR_REASONS | UNSERVED_REASONS for each in own)
        assert minute.unserved == sum(each.error.reason in UNSERVED_REASONS for each in own)
        assert minute.spilled == len(lost)
        assert minute.answered + minute.refused + minute.failed + minute.spilled <= minute.requests
        assert minute.completion_tokens == sum(each.usage.completion_tokens for each in own)
        assert minute.confidence is None or 0 <= minute.confidence <= 1
        rates = rates_to_wire(minute, traffic.seconds())
        assert rates.HasField("confidence") == (minute.decisions > 0)
        assert abs(rates.requests * traffic.seconds() - minute.requests) < 1e-6
    assert traffic.of_router().requests == len(recent)


def test_rates_of_a_new_router_use_its_uptime() -> None:
    clock = ManualClock()
    traffic = Traffic(clock)
    for _ in range(10):
        traffic.ended(ASK, receipt_of())
    clock.sleep(5)
    assert rates_to_wire(traffic.of_specialist("debug"), traffic.seconds()).answered == 2.0
    clock.sleep(40)
    assert traffic.of_specialist("debug").answered == 10


def test_refusals_without_a_callers_fault_are_counted() -> None:
    """Invalid requests, key limits and cancellations are the caller's own doing and do not count as refused."""
    traffic = Traffic(ManualClock())
    for reason in (wire.ERROR_REASON_DEMOTED, wire.ERROR_REASON_QUEUE_FULL, wire.ERROR_REASON_INVALID_FIELD):
        traffic.ended(ASK, receipt_of("debug", reason))
    rates = rates_to_wire(traffic.of_specialist("debug"), 1.0)
    assert (rates.requests, rates.answered, rates.refused, rates.unserved, rates.failed) == (3, 0, 2, 1, 0)


def test_unrouted_requests_count_for_no_specialist() -> None:
    traffic = Traffic(ManualClock())
    traffic.rejected(wire.Error(reason=wire.ERROR_REASON_INVALID_FIELD))
    traffic.rejected(wire.Error(reason=wire.ERROR_REASON_QUEUE_FULL))
    traffic.ended(ASK, receipt_of("", wire.ERROR_REASON_NO_SPECIALIST))
    door = traffic.of_router()
    assert (door.requests, door.unrouted, door.unroutable, door.no_room) == (3, 3, 1, 1)
    assert traffic.of_specialist("").requests == 0


def test_the_newest_receipts_are_lines_newest_first_and_no_more_than_a_few() -> None:
    traffic = Traffic(ManualClock())
    for number in range(30):
        traffic.ended(ASK, receipt_of(request_id=f"r{number}"))
    assert [line.request_id for line in traffic.lines()][:2] == ["r29", "r28"]
    for number in range(30, 200):
        traffic.ended(ASK, receipt_of(request_id=f"r{number}"))
    assert [line.request_id for line in traffic.lines()] == [f"r{199 - index}" for index in range(MOST_LINES)]
    assert traffic.lines() == traffic.lines()


def test_a_receipt_line_describes_the_route_of_a_request() -> None:
    receipt = receipt_of("debug", wire.ERROR_REASON_QUEUE_FULL, spilled=True, instead_of="stl")
    receipt.attempts.add(specialist="debug", replica="debug-0")
    receipt.attempts.add(specialist="algo", replica="algo-0")
    receipt.timings.first_chunk = 0.0
    traffic = Traffic(ManualClock())
    traffic.ended(ASK, receipt)
    (line,) = traffic.lines()
    assert (line.outcome, line.reason, line.attempts) == ("failed", wire.ERROR_REASON_QUEUE_FULL, 2)
    assert line.spilled and line.instead_of == "stl" and line.specialist == line.primary == "debug"
    assert line.HasField("ttft") and not line.HasField("confidence")


def test_every_reason_has_one_outcome() -> None:
    answered = {reason for reason in REASONS if request_outcome(receipt_of(reason=reason)) == "answered"}
    assert answered == {0}
    assert all(request_outcome(receipt_of(reason=reason)) == "refused" for reason in CAPACITY_OR_FLOOR_REASONS)
    assert request_outcome(receipt_of(reason=wire.ERROR_REASON_REPLICA_LOST)) == "failed"
    assert request_outcome(receipt_of(reason=wire.ERROR_REASON_CANCELLED)) == "cancelled"


def test_removed_specialists_are_forgotten() -> None:
    traffic = Traffic(ManualClock())
    traffic.ended(ASK, receipt_of("debug"))
    traffic.forget_all_but({"stl"})
    assert traffic.of_specialist("debug").requests == 0


@given(st.lists(st.floats(0, 3), max_size=60), st.floats(1, 20), st.floats(0.5, 5))
def test_the_number_of_buckets_is_bounded_and_their_sums_are_exact(
    pauses: list[float], span: float, grain: float
) -> None:
    buckets, now, added = TimeBuckets(span, grain), 0.0, []
    for pause in pauses:
        now += pause
        buckets.at(now)["x"] += 1
        added.append(now)
        assert len(buckets._buckets) <= span / grain + 2
    expected = sum(at // grain * grain > now - span for at in added)
    assert buckets.sums(now - span, now)["x"] == expected
