"""What one specialist's row shows, from its part of an overview."""

from dataclasses import dataclass

from octet.operate.figures import share
from octet.operate.slo import seconds
from octet.sdk.load import Blocks
from octet.sdk.overview import ReplicaView, SpecialistView
from octet.sdk.slo import Latency
from octet.top.text import Span, Tone

_FULL = 0.9
"""Of the blocks: worth a colour."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Each is ready to be shown; an empty one is not known."""

    name: Span
    requests: Span
    refused: Span
    failed: Span
    spilled: Span
    tokens: Span
    waiting: Span
    running: Span
    blocks: Span
    ttft: Span
    itl: Span
    first: Span
    correct: Span
    breaker: Span
    lane: Span


def figures(view: SpecialistView) -> Figures:
    rates = view.rates
    refused, failed, spilled = (0.0,) * 3 if rates is None else (rates.refused, rates.failed, rates.spilled)
    waiting, running = load(view)
    used = blocks_used(view)
    return Figures(
        name=Span.of(view.name),
        requests=Span.of("-" if rates is None else rate(rates.requests)),
        refused=Span.of("-" if rates is None else rate(refused), "bad" if refused > 0 else "plain"),
        failed=Span.of("-" if rates is None else rate(failed), "bad" if failed > 0 else "plain"),
        spilled=Span.of("-" if rates is None else rate(spilled), "warn" if spilled > 0 else "plain"),
        tokens=Span.of("-" if rates is None else rate(rates.completion_tokens)),
        waiting=Span.of(str(waiting), "warn" if waiting else "plain"),
        running=Span.of(str(running)),
        blocks=Span.of(share(used) or "-", "warn" if used is not None and used >= _FULL else "plain"),
        ttft=_latency(view, "ttft_p95", None if view.slo is None else view.slo.ttft),
        itl=_latency(view, "itl_p95", None if view.slo is None else view.slo.itl),
        first=_latency(
            view, "admission_to_first_token_p95", None if view.slo is None else view.slo.admission_to_first_token
        ),
        correct=_correct(view),
        breaker=_breaker(view),
        lane=_lane(view),
    )


def rate(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 0.05 else "<0.1"


def load(view: SpecialistView) -> tuple[int, int]:
    """Waiting and running, of all its replicas."""
    both = [_busy(each) for each in view.replicas]
    return sum(waiting for waiting, _ in both), sum(running for _, running in both)


def _busy(replica: ReplicaView) -> tuple[int, int]:
    found = replica.load or replica.info
    return (0, 0) if found is None else (found.waiting, found.running)


def blocks_used(view: SpecialistView) -> float | None:
    """Of all blocks of all replicas that have reported; None without any."""
    found: list[Blocks] = [each.load.blocks for each in view.replicas if each.load and each.load.blocks]
    total = sum(each.total for each in found)
    return sum(each.used for each in found) / total if total else None


def _latency(view: SpecialistView, objective: str, latency: Latency | None) -> Span:
    promised = None if view.slo is None else view.slo.objective(objective)
    shown = seconds(None if latency is None else latency.p95)
    if promised is None:
        return Span.of(shown)
    tone: Tone = "plain" if promised.current is None else "good" if promised.met else "bad"
    return Span.of(f"{shown}/{seconds(promised.target)}", tone)


def _correct(view: SpecialistView) -> Span:
    slo = view.slo
    if slo is None or slo.pass_rate is None:
        return Span.of("-")
    if slo.floor is None:
        return Span.of(share(slo.pass_rate))
    tone: Tone = "good" if slo.pass_rate >= slo.floor else "bad"
    return Span.of(f"{share(slo.pass_rate)}/{share(slo.floor)}", tone)


def _breaker(view: SpecialistView) -> Span:
    breaker = view.breaker
    if breaker is None:
        return Span.of("-")
    if breaker.hold:
        return Span.of(f"held {breaker.hold}", "warn")
    tone: Tone = "plain" if breaker.state == "closed" else "bad" if breaker.state == "shadow_only" else "warn"
    return Span.of(breaker.state.replace("_", " "), tone)


def _lane(view: SpecialistView) -> Span:
    serving = next((each for each in view.lanes if each.status == "serving"), None)
    name = "-" if serving is None else serving.adapter or "bare"
    notes = [note for note, holds in (("fresh", view.fresh), ("candidate", view.candidate is not None)) if holds]
    return Span.of(" ".join([name, *(f"+{note}" for note in notes)]), "warn" if notes else "plain")
