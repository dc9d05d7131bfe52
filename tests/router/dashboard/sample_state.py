"""The state that most tests show: eight specialists, some of them with problems."""

from collections.abc import Sequence
from math import sin
from typing import Any

from admission.breakers import BreakerRecord, hold_breaker
from admission.budgets import Counts
from admission.escalation import KnobBase, KnobSteps
from admission.knobs import ESCALATION
from octet.config.loader import default_ensemble
from octet.v1 import control_pb2 as control
from octet.v1 import overview_pb2 as wire
from octet.v1 import slo_pb2 as slo
from octet.v1 import specialist_pb2 as replica
from octet.v1.error_pb2 import ERROR_REASON_QUEUE_FULL
from router.observe.overview.traffic import WINDOW_SECONDS, SpecialistTraffic, rates_to_wire
from tests.router.dashboard.router_texts import BREAKER_RULES, FLOOR, LADDER_RULES, add_troubles, escalated, outlook

NOW_MS = 1_794_837_731_000
"""15 November 2026, 14:02:11 UTC, in Unix milliseconds."""
STEP_SECONDS = 10.0
NUM_POINTS = 60
REVISION = "5d1c" * 16
_MINUTE, _HOUR = 60_000, 3_600_000
_FRESH = 4
_HELD = "debug"
_RESTARTED_INDEX = 5
_RESTARTED: dict[str, Any] = {
    "restarts": 1,
    "last_restart_reason": "killed by SIGKILL",
    "last_restart_unix_ms": NOW_MS - 4 * _MINUTE,
}
_FLOOR_WHY = "batch traffic during the incident"
_HOLD_WHY = "bad refresh: answers do not compile since 13:30"
_DESCRIBED = {each.name: each.describe for each in default_ensemble().specialists}
_FALLBACKS = {each.name: each.fallback or "" for each in default_ensemble().specialists}


def overview(names: Sequence[str] = default_ensemble().names, at_ms: int = NOW_MS) -> wire.Overview:
    found = wire.Overview(
        at_unix_ms=at_ms,
        ensemble="cpp",
        version="0.1.0",
        specialists=[specialist(name, index) for index, name in enumerate(names)],
        knobs=knobs(),
        shadow_rows=shadow_rows(),
        shadow_counts=control.ShadowCounts(ordered=412, sent=398, answered=391, shed=14, failed=7, compared=377),
        receipts=receipts(),
        audit=audit(),
    )
    minutes = {name: minute(index) for index, name in enumerate(names)}
    add_troubles(found, minutes, seen_seconds=4 * 60)
    return found


def minute(index: int) -> SpecialistTraffic:
    """Return a minute of a specialist's traffic. The first specialist is overloaded."""
    if index == 0:
        return SpecialistTraffic(
            requests=708, answered=587, refused=85, spilled=36, shadowed=13, completion_tokens=50_520,
            decisions=708, confidence=0.81,
        )  # fmt: skip
    asked = 126 + 24 * index
    return SpecialistTraffic(
        requests=asked, answered=asked, shadowed=13, completion_tokens=9_600 + 1_260 * index, decisions=asked,
        confidence=0.7 + 0.1 / index,
    )  # fmt: skip


def specialist(name: str, index: int) -> wire.SpecialistView:
    full = index == 0
    view = wire.SpecialistView(
        name=name,
        describe=_DESCRIBED.get(name, f"What {name} is good at."),
        slo=objectives(name, full, index),
        breaker=breaker(name, index),
        lanes=[
            control.LaneInfo(
                specialist=name,
                number=3 if index % 3 == 1 else 1,
                adapter="june-tickets" if index % 3 == 1 else "",
                revision=REVISION,
                status="serving",
                since_unix_ms=NOW_MS - (190 * _MINUTE if index == _FRESH else (index + 1) * 2 * _HOUR),
                samples=31 if index == _FRESH else judged(name, index).total,
                by="configuration",
                resident=2,
                replicas=2,
            )
        ],
        fresh=index == _FRESH,
        replicas=[replica_view(name, number, full, index) for number in range(2 if index % 2 == 0 else 1)],
        rates=rates_to_wire(minute(index), WINDOW_SECONDS),
        cache_reuse=0.62 - index * 0.03,
        usual_cache_reuse=0.64 - index * 0.03,
    )
    _add_lanes(view, index)
    return view


def _add_lanes(view: wire.SpecialistView, index: int) -> None:
    least = default_ensemble().lanes.min_samples
    if index % 3 == 1:
        view.lanes.add(specialist=view.name, number=2, adapter="may-tickets", status="previous", resident=1, replicas=1)
    if index == 2:
        view.lanes.add(
            specialist=view.name,
            number=2,
            adapter="algo-july",
            status="candidate",
            since_unix_ms=NOW_MS - 40 * _MINUTE,
            by="ben",
            why="trained on last month's tickets",
            pass_rate=0.968,
            samples=62,
            outlook=f"shadows: {min(62, least)} of {least} samples; promoted by hand",
            resident=2,
            replicas=2,
        )


def objectives(name: str, full: bool, index: int) -> slo.Slo:
    ttft = slo.Latency(samples=812, p50=0.412 if full else 0.061 + index * 0.004, p95=1.94 if full else 0.148, p99=2.61)
    if not full:
        ttft.p99 = 0.231
    itl = slo.Latency(samples=40_310, p50=0.011, p95=0.019 + index * 0.001, p99=0.034)
    first = slo.Latency(samples=812, p50=0.05, p95=0.92 if full else 0.102, p99=1.1 if full else 0.16)
    counts = judged(name, index)
    burns = [
        slo.Burn(window_seconds=300, samples=812, rate=7.2 if full else 0.4),
        slo.Burn(window_seconds=3600, samples=9120, rate=1.8 if full else 0.6),
    ]
    return slo.Slo(
        specialist=name,
        window_seconds=300,
        ttft=ttft,
        itl=itl,
        admission_to_first_token=first,
        pass_rate=counts.rate,
        judged=counts.total,
        floor=FLOOR,
        correctness_window_seconds=BREAKER_RULES.window,
        answered=812,
        preempted_once=0.011 if full else 0.0,
        relative_error=0.01,
        routers=1,
        objectives=[
            slo.Objective(name="ttft_p95", target=0.25, share=0.95, current=ttft.p95, met=not full, burns=burns),
            slo.Objective(name="itl_p95", target=0.05, share=0.95, current=itl.p95, met=True, burns=burns[1:]),
            slo.Objective(
                name="admission_to_first_token_p95", target=0.2, share=0.95, current=first.p95, met=not full, burns=[]
            ),
            slo.Objective(
                name="correctness", target=FLOOR, share=FLOOR, current=counts.rate, met=(counts.rate or 0) >= FLOOR
            ),
        ],
    )


def judged(name: str, index: int) -> Counts:
    return Counts(138, 32) if name == _HELD else Counts(max(60, 233 - 9 * index), 7 + index % 4)


def breaker(name: str, index: int) -> control.BreakerInfo:
    """Return the breaker of a specialist. Only the breaker of `_HELD` is held open."""
    is_held, counts = name == _HELD, judged(name, index)
    since = NOW_MS - (22 * _MINUTE if is_held else 26 * _HOUR)
    standing = BreakerRecord(since=since / 1000)
    if is_held:
        demoted = BreakerRecord("shadow_only", since / 1000, transition_at=since / 1000)
        standing = hold_breaker(demoted, "open", "ana", _HOLD_WHY, since / 1000)
    return control.BreakerInfo(
        specialist=name,
        lane=1,
        lane_status="serving",
        state=standing.state,
        hold=standing.hold or "",
        hold_by=standing.hold_by,
        hold_why=standing.hold_why,
        since_unix_ms=since,
        pass_rate=counts.rate,
        samples=counts.total,
        floor=BREAKER_RULES.floor,
        min_samples=BREAKER_RULES.min_samples,
        window_seconds=BREAKER_RULES.window,
        fallback=_FALLBACKS.get(name, ""),
        outlook=outlook(standing, counts, NOW_MS),
        verifier="cpp",
    )


def new_breaker(name: str) -> control.BreakerInfo:
    """Return a breaker without samples."""
    found = breaker(name, 0)
    found.samples, found.outlook = 0, outlook(BreakerRecord(), Counts(), NOW_MS)
    found.ClearField("pass_rate")
    return found


def replica_view(name: str, number: int, full: bool, index: int) -> wire.ReplicaView:
    waiting, running = (14, 8) if full else (0, 1 + index % 4)
    used = 1180 if full else 210 + 40 * index
    cached = 330 if full else 620
    return wire.ReplicaView(
        info=control.ReplicaInfo(
            name=f"{name}-{number}",
            specialist=name,
            address=f"10.0.0.{index}:5006{number}",
            status="serving",
            health_breaker="closed",
            waiting=waiting,
            running=running,
            revision=REVISION,
            refusing=full,
            usual_wait=1.31 if full else 0.012,
            estimate_error_p90=0.18,
            **(_RESTARTED if index == _RESTARTED_INDEX else {}),
        ),
        load=replica.LoadReport(
            waiting=waiting,
            running=running,
            max_running=8,
            max_waiting=16,
            blocks=replica.Blocks(total=1536, used=used, cached=cached, free=1536 - used - cached),
            revision=REVISION,
            refusing=full,
            preempting=full,
        ),
    )


def knobs() -> list[control.KnobInfo]:
    raised = control.KnobInfo(
        name="codegen/template.shadow_threshold",
        value=KnobBase(0.3, 0).raised(KnobSteps(1), LADDER_RULES)[0],
        configured=0.3,
        set_by=ESCALATION,
        why="level 1",
        since_unix_ms=NOW_MS - 3 * _MINUTE,
    )
    by_hand = control.KnobInfo(
        name="review.priority_floor",
        value=5,
        configured=0,
        set_by="ana",
        why=_FLOOR_WHY,
        since_unix_ms=NOW_MS - 11 * _MINUTE,
    )
    intents = ("codegen", "debug", "build-fix", "review", "unspecified")
    rest = [
        control.KnobInfo(name=f"{intent}.{knob}", value=value, configured=value, set_by="configuration")
        for intent in intents
        for knob, value in (("shadow_threshold", 0.3), ("priority_floor", 0.0))
        if f"{intent}.{knob}" not in (raised.name, by_hand.name)
    ]
    return [raised, by_hand, *rest]


def shadow_rows() -> list[control.ShadowRow]:
    def row(intent: str, primary: str, shadow: str, why: str, compared: int, agreed: int) -> control.ShadowRow:
        verified = compared * 2 // 3
        return control.ShadowRow(
            intent=intent,
            primary=primary,
            shadow=shadow,
            why=why,
            compared=compared,
            agreed=agreed,
            verified=verified,
            primary_passed=verified - 3,
            shadow_passed=verified - 5,
            only_primary_passed=4,
            only_shadow_passed=2,
            mean_similarity=0.71,
        )

    return [
        row("codegen", "algo", "algo+algo-july", "fresh_lane", 92, 81),
        row("codegen", "template", "stl", "low_confidence", 61, 44),
        row("unspecified", "memory", "debug", "demoted", 48, 29),
        row("review", "concurrency", "systems", "low_confidence", 17, 15),
    ]


def receipts() -> list[wire.ReceiptLine]:
    def line(number: int, name: str, intent: str, **more: object) -> wire.ReceiptLine:
        fields: dict[str, object] = {
            "request_id": f"{number * 2654435761 % 2**64:016x}{number:016x}",
            "at_unix_ms": NOW_MS - number * 730,
            "specialist": name,
            "primary": name,
            "replica": f"{name}-0",
            "intent": intent,
            "outcome": "answered",
            "ttft": 0.08 + number * 0.013,
            "total": 1.1 + number * 0.21,
            "completion_tokens": 96 + 7 * number,
            "prompt_tokens": 412 - 3 * number,
            "attempts": 1,
            "confidence": 0.83,
        }
        return wire.ReceiptLine(**{**fields, **more})  # type: ignore[arg-type]

    refused = {"outcome": "refused", "reason": ERROR_REASON_QUEUE_FULL, "ttft": None, "total": 0.004}
    return [
        line(1, "template", "codegen", cache_hit_tokens=256),
        line(2, "template", "codegen", **refused, completion_tokens=0, replica=""),
        line(3, "stl", "codegen", primary="template", spilled=True, instead_of="template", attempts=2),
        line(4, "memory", "debug", primary="debug", instead_of="debug", shadow="debug"),
        line(5, "build", "build-fix", cache_hit_tokens=128),
        line(6, "algo", "codegen", shadow="algo", times_preempted=1),
        line(7, "systems", "unspecified"),
        line(8, "concurrency", "review", attempts=2),
    ]


_BEFORE, _AFTER = (f"codegen: shadow_threshold {value:g}, priority_floor 0" for value in (0.3, 0.45))


def audit() -> list[control.AuditEntry]:
    move = escalated(103, 15)
    rows = [
        (41, 3, ESCALATION, move.what, "template", _BEFORE, _AFTER, move.why),
        (40, 11, "ana", "set_knob", "review.priority_floor", "0 as configured", "5 by ana", _FLOOR_WHY),
        (39, 22, "ana", "hold_breaker", _HELD, "closed", "held open", _HOLD_WHY),
        (38, 40, "ben", "load_lane", "algo", "", "algo-july", "trained on last month's tickets"),
        (37, 190, "lanes", "promote", "concurrency", "bare model", "june-tickets", "no worse over 100 answers"),
    ]
    return [
        control.AuditEntry(
            number=number,
            at_unix_ms=NOW_MS - minutes * _MINUTE,
            who=who,
            what=what,
            subject=subject,
            before=before,
            after=after,
            why=why,
        )
        for number, minutes, who, what, subject, before, after, why in rows
    ]


def history(names: Sequence[str] = default_ensemble().names, points: int = NUM_POINTS) -> wire.History:
    return wire.History(
        step_seconds=STEP_SECONDS,
        specialists=[
            wire.SpecialistHistory(name=name, points=[point(index, number, points) for number in range(points)])
            for index, name in enumerate(names)
        ],
    )


def point(index: int, number: int, points: int) -> wire.Point:
    back = points - 1 - number
    wave = sin(number / 17 + index) * 0.5 + sin(number / 5.3 + 2 * index) * 0.2
    burst = max(0.0, 1 - back / 40) if index == 0 else 0.0
    return wire.Point(
        at_unix_ms=NOW_MS - int(back * STEP_SECONDS * 1000),
        ttft_p95=0.148 + 0.03 * wave + 1.75 * burst,
        itl_p95=0.019 + 0.003 * wave,
        admission_to_first_token_p95=0.102 + 0.02 * wave + 0.8 * burst,
        pass_rate=0.972 - index * 0.004 + 0.006 * wave,
        requests=3.1 + wave + 8 * burst,
        refused=1.42 * burst,
        completion_tokens=220 + 60 * wave + 600 * burst,
        waiting=int(28 * burst),
        running=2 + int(6 * burst),
        blocks_used=min(1.0, 0.35 + 0.1 * wave + 0.42 * burst),
        cache_reuse=0.62 - index * 0.03 + 0.04 * wave,
        burn=0.5 + 0.1 * wave + 6.6 * burst,
    )
