"""The figures of one specialist, put together."""

from dataclasses import dataclass

from octet.config.ensemble import SloConfig
from octet.telemetry.sketch import RELATIVE_ERROR, Sketch
from octet.v1 import control_pb2
from octet.v1 import slo_pb2 as wire
from router.slo.promise import CORRECTNESS, Promise
from router.slo.slice import Counts, Slice, Tally

MOST_BURN = 1000.0
"""No rate is told beyond it: where nothing may fail, one failure would be infinitely many times too much."""


@dataclass(frozen=True, slots=True)
class Known:
    """Of one specialist, now."""

    specialist: str
    slo: SloConfig
    promises: tuple[Promise, ...]
    short: Slice
    """Of the window."""
    long: Tally
    """Of the long one."""
    breaker: control_pb2.BreakerInfo
    routers: int


def slo_of(known: Known) -> wire.Slo:
    short, breaker = known.short, known.breaker
    slo = wire.Slo(
        specialist=known.specialist,
        window_seconds=known.slo.window,
        ttft=_latency(short.ttft),
        itl=_latency(short.itl),
        admission_to_first_token=_latency(short.admission),
        judged=breaker.samples,
        correctness_window_seconds=breaker.window_seconds,
        answered=short.tally.answered,
        relative_error=RELATIVE_ERROR,
        routers=known.routers,
    )
    slo.objectives.extend(_objective(each, known, slo) for each in known.promises)
    if breaker.HasField("pass_rate"):
        slo.pass_rate = breaker.pass_rate
    if breaker.HasField("floor"):
        slo.floor = breaker.floor
        slo.objectives.append(_correctness(breaker))
    if short.tally.answered:
        slo.preempted_once = short.tally.preempted / short.tally.answered
    return slo


def burn_rate(counts: Counts, share: float) -> float | None:
    """What broke it, as a multiple of what may; None without samples."""
    samples, breached = counts
    if not samples:
        return None
    may_fail = 1 - share
    broke = breached / samples
    return min(MOST_BURN, broke / may_fail) if may_fail > 0 else MOST_BURN if breached else 0.0


def _latency(sketch: Sketch) -> wire.Latency:
    p50, p95, p99 = sketch.quantiles((0.5, 0.95, 0.99))
    return wire.Latency(samples=sketch.count, p50=p50, p95=p95, p99=p99)


def _objective(promise: Promise, known: Known, slo: wire.Slo) -> wire.Objective:
    """`slo` has the quantiles."""
    latency: wire.Latency = getattr(slo, promise.measure)
    current = getattr(latency, promise.quantile) if latency.HasField(promise.quantile) else None
    short = known.short.tally.counts.get(promise.key, (0, 0))
    long = known.long.counts.get(promise.key, (0, 0))
    rate = burn_rate(short, promise.share)
    return wire.Objective(
        name=promise.name,
        target=promise.target,
        share=promise.share,
        current=current,
        met=rate <= 1 if rate is not None else current is None or current <= promise.target,
        burns=[
            wire.Burn(window_seconds=known.slo.window, samples=short[0], rate=rate),
            wire.Burn(window_seconds=known.slo.long_window, samples=long[0], rate=burn_rate(long, promise.share)),
        ],
    )


def _correctness(breaker: control_pb2.BreakerInfo) -> wire.Objective:
    """Over its own window: a rate that rests on fewer samples than the breaker itself asks for says nothing."""
    says_something = breaker.HasField("pass_rate") and breaker.samples >= breaker.min_samples
    rate = breaker.pass_rate if says_something else None
    broke = 0 if rate is None else breaker.samples - round(rate * breaker.samples)
    burn = None if rate is None else burn_rate((breaker.samples, broke), breaker.floor)
    return wire.Objective(
        name=CORRECTNESS,
        target=breaker.floor,
        share=breaker.floor,
        current=rate,
        met=rate is None or rate >= breaker.floor,
        burns=[wire.Burn(window_seconds=breaker.window_seconds, samples=breaker.samples, rate=burn)],
    )
