"""Published figures equal the measurements of one specialist, and objectives are counted exactly."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import SloConfig, SloTargets
from octet.rpc.refusal import Refusal
from octet.telemetry.distributions import RELATIVE_ERROR
from octet.v1 import error_pb2 as errors
from octet.v1 import inference_pb2 as wire
from octet.v1 import operator_pb2
from router.observe.observers import TokenGap
from router.quality.slo import CACHE_SECONDS, MOST_BURN_RATE, MissedFirstToken, burn_rate
from tests.router.slo.measured_router import ASK, ENSEMBLE, SLO, TARGETS, Router

LATENCIES = st.lists(st.floats(0.001, 5.0), min_size=1, max_size=60)


def exact(samples: list[float], share: float) -> float:
    return sorted(samples)[ceil(share * len(samples)) - 1]


@given(LATENCIES)
def test_quantiles_and_burn_rates_are_those_of_the_samples(samples: list[float]) -> None:
    router = Router()
    for each in samples:
        router.answers(each)
        router.slos.gaps("writer", [TokenGap(each, 1)])
    published = router.published()
    assert published.ttft.samples == published.itl.samples == published.answered == len(samples)
    for share, ttft, itl in (
        (0.5, published.ttft.p50, published.itl.p50),
        (0.95, published.ttft.p95, published.itl.p95),
        (0.99, published.ttft.p99, published.itl.p99),
    ):
        assert ttft == itl == pytest.approx(exact(samples, share), rel=RELATIVE_ERROR)
    objective = router.objective("ttft_p95")
    breached = sum(each > 0.5 for each in samples)
    assert [burn.samples for burn in objective.burns] == [len(samples)] * 2
    assert [burn.rate for burn in objective.burns] == pytest.approx([breached / len(samples) / 0.05] * 2)
    assert objective.met == (breached <= 0.05 * len(samples))
    assert objective.current == published.ttft.p95
    assert router.slos.counts("writer")["ttft_p95"] == (len(samples), breached)
    assert router.slos.counts("writer")["itl_p95"] == (len(samples), sum(each > 0.05 for each in samples))


def test_every_specialist_has_its_own_figures() -> None:
    router = Router()
    router.answers(0.2)
    router.answers(3.0, specialist="critic")
    router.answers(9.0, specialist="nobody")
    router.slos.gaps("nobody", [TokenGap(1.0, 1)])
    writer, critic = router.slos.all()
    assert (writer.specialist, critic.specialist) == ("writer", "critic")
    assert (writer.ttft.samples, critic.ttft.samples) == (1, 1)
    assert critic.ttft.p99 == pytest.approx(3.0, rel=RELATIVE_ERROR)
    assert not critic.objectives, "this specialist has no objective"
    with pytest.raises(Refusal, match="there is no 'ensemble'"):
        router.slos.of("ensemble")


def test_missing_measurements_are_left_out() -> None:
    published = Router().published("writer")
    assert not any(published.ttft.HasField(name) for name in ("p50", "p95", "p99"))
    assert not published.HasField("preempted_once") and not published.HasField("pass_rate")
    for objective in published.objectives:
        assert objective.met and not objective.HasField("current")
        assert not any(burn.HasField("rate") for burn in objective.burns)


def test_the_short_window_expires_before_the_long_one() -> None:
    router = Router()
    router.answers(2.0)
    router.clock.sleep(SLO.window - 1)
    assert router.published().ttft.samples == 1
    router.clock.sleep(SLO.window / 10 + 1)
    assert router.published().ttft.samples == 0
    assert not router.published().HasField("preempted_once")
    short, long = router.objective("ttft_p95").burns
    assert (short.samples, long.samples, long.rate) == (0, 1, pytest.approx(20))
    router.clock.sleep(SLO.long_window)
    assert router.objective("ttft_p95").burns[1].samples == 0
    assert router.slos.counts("writer")["ttft_p95"] == (1, 1), "counts must be those since the start"


def test_the_preempted_share_is_of_answered_requests() -> None:
    router = Router()
    for preempted in (0, 1, 3, 0):
        router.answers(0.1, preempted=preempted)
    cut_off = wire.Receipt(specialist="writer", error=wire.Error(reason=errors.ERROR_REASON_REPLICA_LOST))
    cut_off.timings.accepted, cut_off.timings.first_chunk = 0.1, 0.2
    router.slos.began("writer", 0.2, 0.1)
    router.slos.ended(ASK, cut_off)
    published = router.published()
    assert (published.answered, published.preempted_once) == (4, 0.5)
    assert published.ttft.samples == 5, "the interrupted request had a first token"
    assert router.slos.counts("writer")["ttft_p95"] == (5, 0), "the first token must be counted once"


def test_a_first_token_counts_at_once_and_not_again_at_the_end() -> None:
    router = Router()
    router.slos.began("writer", 2.0, 1.5)
    published = router.published()
    assert (published.ttft.samples, published.admission_to_first_token.samples, published.answered) == (1, 1, 0)
    assert router.slos.counts("writer")["ttft_p95"] == (1, 1)
    receipt = wire.Receipt(specialist="writer")
    receipt.timings.accepted, receipt.timings.first_chunk = 0.5, 2.0
    router.clock.sleep(SLO.window / 3)
    router.slos.ended(ASK, receipt)
    published = router.published()
    assert (published.ttft.samples, published.admission_to_first_token.samples, published.answered) == (1, 1, 1)
    assert router.slos.counts("writer")["admission_to_first_token_p95"] == (1, 1)


def test_an_answer_without_tokens_has_no_first_token() -> None:
    router = Router()
    receipt = wire.Receipt(specialist="writer")
    receipt.timings.accepted, receipt.timings.total = 0.1, 9.0
    router.slos.ended(ASK, receipt)
    published = router.published()
    assert (published.ttft.samples, published.admission_to_first_token.samples, published.answered) == (0, 0, 1)
    assert router.slos.counts("writer")["ttft_p95"] == (0, 0)


@pytest.mark.parametrize(
    ("reason", "waited", "given_seconds", "counts"),
    [
        (errors.ERROR_REASON_QUEUE_FULL, 0.001, 30, True),
        (errors.ERROR_REASON_WOULD_DELAY_OTHERS, 0.001, 30, True),
        (errors.ERROR_REASON_SHED, 0.001, 30, True),
        (errors.ERROR_REASON_NO_REPLICA, 0.001, 30, True),
        (errors.ERROR_REASON_REPLICA_LOST, 0.001, 30, True),
        (errors.ERROR_REASON_ENGINE_FAILED, 0.001, 30, True),
        (errors.ERROR_REASON_INTERNAL, 0.001, 30, True),
        (errors.ERROR_REASON_DEADLINE_UNREACHABLE, 0.001, 30, True),
        (errors.ERROR_REASON_DEADLINE_UNREACHABLE, 0.001, 0.2, False),
        (errors.ERROR_REASON_DEADLINE, 0.2, 0.2, False),
        (errors.ERROR_REASON_DEADLINE, 0.6, 0.6, True),
        (errors.ERROR_REASON_CANCELLED, 0.3, 30, False),
        (errors.ERROR_REASON_CANCELLED, 0.6, 30, True),
        (errors.ERROR_REASON_PROMPT_TOO_LONG, 0.001, 30, False),
        (errors.ERROR_REASON_UNKNOWN_ADAPTER, 0.001, 30, False),
        (errors.ERROR_REASON_BELOW_FLOOR, 0.001, 30, False),
        (errors.ERROR_REASON_DEMOTED, 0.001, 30, False),
        (errors.ERROR_REASON_DEMOTED, 0.6, 30, False),
        (errors.ERROR_REASON_PROMPT_TOO_LONG, 0.6, 30, False),
    ],
)
def test_requests_without_a_first_token_count_by_reason_and_wait(
    reason: int, waited: float, given_seconds: float, counts: bool
) -> None:
    """The target for the first token is 0.5 s."""
    router = Router()
    router.fails(reason, waited, given_seconds)
    assert router.slos.counts("writer")["ttft_p95"] == ((1, 1) if counts else (0, 0))
    published = router.published()
    assert (published.ttft.samples, published.answered) == (0, 0), "there was no first token"
    assert router.objective("ttft_p95").met != counts
    assert router.objective("admission_to_first_token_p95").burns[0].samples == 0


@pytest.mark.parametrize(
    ("reason", "waited", "accepted", "given_seconds", "counts"),
    [
        (errors.ERROR_REASON_DEADLINE, 30.0, 0.1, 30, True),
        (errors.ERROR_REASON_DEADLINE, 30.0, 29.7, 30, False),
        (errors.ERROR_REASON_DEADLINE, 30.0, None, 30, False),
        (errors.ERROR_REASON_CANCELLED, 0.6, 0.1, 30, True),
        (errors.ERROR_REASON_CANCELLED, 0.6, 0.3, 30, False),
        (errors.ERROR_REASON_SHED, 0.11, 0.1, 30, True),
        (errors.ERROR_REASON_REPLICA_LOST, 0.11, 0.1, 30, True),
        (errors.ERROR_REASON_QUEUE_FULL, 0.6, None, 30, False),
        (errors.ERROR_REASON_DEADLINE_UNREACHABLE, 0.15, 0.1, 0.45, False),
        (errors.ERROR_REASON_DEADLINE_UNREACHABLE, 0.15, 0.1, 0.6, True),
        (errors.ERROR_REASON_PROMPT_TOO_LONG, 0.6, 0.1, 30, False),
    ],
)
def test_admitted_requests_without_a_first_token_count_by_reason_and_wait(
    reason: int, waited: float, accepted: float | None, given_seconds: float, counts: bool
) -> None:
    """The target is 0.4 s after admission. Requests that were never admitted do not count."""
    router = Router()
    router.fails(reason, waited, given_seconds, accepted)
    assert router.slos.counts("writer")["admission_to_first_token_p95"] == ((1, 1) if counts else (0, 0))
    assert router.published().admission_to_first_token.samples == 0
    assert router.objective("admission_to_first_token_p95").met != counts


def test_every_error_reason_is_classified() -> None:
    names = {number: name.removeprefix("ERROR_REASON_") for name, number in errors.ErrorReason.items()}
    at_once = {names[each] for each in names if MissedFirstToken(each, 0.0, 0.0).breaches(1.0)}
    in_time = {names[each] for each in names if MissedFirstToken(each, 2.0, 0.0).breaches(1.0)} - at_once
    assert at_once == {
        *("QUEUE_FULL", "WOULD_DELAY_OTHERS", "SHED", "DRAINING", "NOT_READY", "NO_REPLICA"),
        *("REPLICA_LOST", "REPLICA_FAILED", "ENGINE_FAILED", "INTERNAL"),
    }
    assert in_time == {"UNSPECIFIED", "DEADLINE", "DEADLINE_UNREACHABLE", "CANCELLED", "CALLER_STALLED"}
    assert set(names.values()) - at_once - in_time == {
        *("MALFORMED", "INVALID_FIELD", "PROMPT_TOO_LONG", "UNKNOWN_ADAPTER", "ADAPTER_REFUSED", "NO_TOOLS"),
        "QUARANTINED",
        *("NO_SPECIALIST", "UNKNOWN_SPECIALIST", "UNKNOWN_REQUEST", "UNKNOWN_NAME", "UNKNOWN_JOB"),
        *("DUPLICATE_REQUEST", "BELOW_FLOOR", "DEMOTED", "CONFLICT", "UNAUTHENTICATED", "FORBIDDEN", "KEY_LIMIT"),
        "STORE_UNAVAILABLE",
    }


def test_a_failing_fallback_does_not_count_for_the_primary() -> None:
    router = Router()
    decision, attempts = wire.Decision(primary="writer"), [wire.Attempt(specialist="critic")]
    full, away = errors.ERROR_REASON_QUEUE_FULL, errors.ERROR_REASON_NO_REPLICA
    router.fails(full, specialist="", decision=decision, attempts=attempts)
    router.fails(away, specialist="", decision=decision, between=wire.Between(lead="critic"))
    assert router.slos.counts("writer")["ttft_p95"] == (0, 0)


def test_a_refusal_counts_for_the_first_asked() -> None:
    router = Router()
    full = errors.ERROR_REASON_QUEUE_FULL
    attempts = [wire.Attempt(specialist="writer", reason=full), wire.Attempt(specialist="critic", reason=full)]
    router.fails(full, specialist="", attempts=attempts)
    router.fails(full, specialist="", decision=wire.Decision(primary="writer"))
    router.fails(full, specialist="")
    assert router.slos.counts("writer")["ttft_p95"] == (2, 2)


def test_a_new_target_counts_from_now_and_an_old_one_keeps_its_counts() -> None:
    router = Router()
    router.answers(0.3)
    assert router.objective("ttft_p95").burns[0].samples == 1
    stricter = replace(ENSEMBLE.specialists[0], slo=replace(TARGETS, ttft_p95=0.2))
    router.slos.reload(replace(ENSEMBLE, specialists=(stricter, ENSEMBLE.specialists[1])))
    objective = router.objective("ttft_p95")
    assert (objective.target, objective.burns[0].samples) == (0.2, 0)
    assert not objective.met, "the current value must exceed the new target"
    router.answers(0.1)
    assert router.objective("ttft_p95").met
    router.slos.reload(ENSEMBLE)
    assert router.objective("ttft_p95").burns[0].samples == 1
    assert router.slos.counts("writer")["ttft_p95"] == (2, 0)


def test_a_dropped_objective_is_not_published() -> None:
    router = Router()
    bare = replace(ENSEMBLE.specialists[0], slo=SloTargets(), floor="none")
    router.slos.reload(replace(ENSEMBLE, specialists=(bare, ENSEMBLE.specialists[1])))
    assert not router.published().objectives


def test_a_new_window_keeps_the_samples() -> None:
    router = Router()
    router.answers(0.3)
    router.slos.reload(replace(ENSEMBLE, slo=SloConfig(window=120.0, long_window=1200.0)))
    router.answers(0.3)
    router.clock.sleep(SLO.window * 1.5)
    published = router.published()
    assert (published.window_seconds, published.ttft.samples) == (120.0, 2)
    assert router.objective("ttft_p95").burns[1].samples == 2


def test_correctness_is_the_pass_rate_of_the_serving_lane() -> None:
    serving = operator_pb2.BreakerInfo(
        specialist="writer", lane_status="serving", pass_rate=0.8, samples=50, floor=0.9, window_seconds=86_400
    )
    candidate = operator_pb2.BreakerInfo(specialist="writer", lane_status="candidate", pass_rate=0.1, samples=9)
    router = Router(breakers=[serving, candidate])
    published, objective = router.published(), router.objective("correctness")
    assert (published.pass_rate, published.judged, published.floor, published.correctness_window_seconds) == (
        0.8,
        50,
        0.9,
        86_400,
    )
    assert (objective.target, objective.share, objective.current, objective.met) == (0.9, 0.9, 0.8, False)
    assert objective.burns[0].rate == pytest.approx(2.0)
    router.slos.verified("writer", passed=True)
    router.slos.verified("writer", passed=False)
    assert router.slos.counts("writer")["correctness"] == (2, 1)


@pytest.mark.parametrize(("samples", "says"), [(1, False), (19, False), (20, True)])
def test_correctness_on_too_few_samples_burns_nothing(samples: int, says: bool) -> None:
    breaker = operator_pb2.BreakerInfo(specialist="writer", pass_rate=0.0, samples=samples, floor=0.9, min_samples=20)
    router = Router(breakers=[breaker])
    published, objective = router.published(), router.objective("correctness")
    assert (published.pass_rate, published.judged) == (0.0, samples), "the known rate must be published"
    (burn,) = objective.burns
    assert (objective.met, objective.HasField("current"), burn.HasField("rate")) == (not says, says, says)
    assert burn.samples == samples


def test_a_burn_rate_is_always_a_number() -> None:
    assert burn_rate((0, 0), 0.95) is None
    assert burn_rate((100, 5), 0.95) == pytest.approx(1.0)
    assert burn_rate((100, 100), 0.95) == pytest.approx(20.0)
    assert burn_rate((100, 0), 1.0) == 0.0
    assert burn_rate((100, 1), 1.0) == MOST_BURN_RATE
    assert burn_rate((2, 2), 0.99999) == MOST_BURN_RATE


def test_figures_are_cached_for_a_moment() -> None:
    router = Router()
    first = router.slos.of("writer")
    router.answers(0.3)
    assert router.slos.of("writer") is first and "ttft" not in router.slos.header("writer")
    router.clock.sleep(CACHE_SECONDS)
    assert router.slos.of("writer").ttft.samples == 1 and "ttft" in router.slos.header("writer")
