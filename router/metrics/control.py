"""Breakers, knobs, escalation, and replicas as the router sees them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

from prometheus_client.metrics_core import Metric

from admission.knobs import ESCALATION
from octet.telemetry.families import counter, gauge, states
from octet.telemetry.page import Build
from octet.v1 import operator_pb2 as wire
from router.view.stand_ins import is_open

BREAKER_STATES = ("closed", "shadow_only", "recovering")
HOLDS = ("open", "closed")
REPLICA_STATES = ("serving", "connecting", "hung", "draining", "drained_by_operator")
HEALTH_STATES = ("closed", "half_open", "open")
SCRAPE_FAILURES = ("silent", "malformed")
_CONFIGURATION = "configuration"
SETTERS = (_CONFIGURATION, ESCALATION, "operator")
_KNOB = ("intent", "specialist", "knob")


class Controls(Protocol):
    def breakers(self) -> Sequence[wire.BreakerInfo]: ...

    def knobs(self) -> Sequence[wire.KnobInfo]: ...

    def replicas(self) -> Sequence[wire.ReplicaInfo]: ...

    def escalation(self) -> dict[str, int]:
        """The level of each specialist's ladder."""


def control_source(control: Controls) -> Build:
    breakers, knobs, replicas = control.breakers(), control.knobs(), control.replicas()
    levels = control.escalation()

    def build() -> Iterator[Metric]:
        yield from _breakers([each for each in breakers if each.lane_status != "candidate"])
        yield from _candidates([each for each in breakers if each.lane_status == "candidate"])
        yield from _knobs(knobs)
        about = "How far escalation has gone for the specialist; 0: not at all."
        yield gauge("octet_escalation_level", about, ("specialist",), (((name,), at) for name, at in levels.items()))
        yield from _replicas(replicas, tuple(levels))

    return build


def _breakers(infos: Sequence[wire.BreakerInfo]) -> Iterator[Metric]:
    yield states(
        "octet_breaker_state",
        "Of the correctness breaker, 1 for the state that it is in, held or not: closed, shadow_only, recovering.",
        ("specialist", "state"),
        BREAKER_STATES,
        (((info.specialist,), info.state) for info in infos),
    )
    yield states(
        "octet_breaker_held",
        "1 where an operator holds the breaker open or closed.",
        ("specialist", "hold"),
        HOLDS,
        (((info.specialist,), info.hold) for info in infos),
    )
    yield gauge(
        "octet_breaker_open",
        "Whether another is to answer, by the breaker's state or an operator's hold; fallback: who, empty for nobody.",
        ("specialist", "fallback"),
        (((info.specialist, info.fallback), is_open(info)) for info in infos),
    )
    yield gauge(
        "octet_correctness_pass_ratio",
        "Of the judged answers of the lane that serves, in the breaker's window, the share that passed.",
        ("specialist",),
        (((info.specialist,), info.pass_rate if info.HasField("pass_rate") else None) for info in infos),
    )
    yield gauge(
        "octet_correctness_floor_ratio",
        "The share below which the specialist is demoted.",
        ("specialist",),
        (((info.specialist,), info.floor if info.HasField("floor") else None) for info in infos),
    )
    yield gauge(
        "octet_correctness_samples",
        "Judged answers in the breaker's window.",
        ("specialist",),
        (((info.specialist,), info.samples) for info in infos),
    )
    yield gauge(
        "octet_correctness_needed_samples",
        "Judged answers that the breaker needs to do anything.",
        ("specialist",),
        (((info.specialist,), info.min_samples) for info in infos),
    )
    yield gauge(
        "octet_serving_lane",
        "The number of the lane that serves; 0 before its replicas are known.",
        ("specialist",),
        (((info.specialist,), info.lane) for info in infos),
    )


def _candidates(infos: Sequence[wire.BreakerInfo]) -> Iterator[Metric]:
    yield gauge(
        "octet_candidate_lane",
        "The number of the lane that is tried beside the one that serves.",
        ("specialist",),
        (((info.specialist,), info.lane) for info in infos),
    )
    yield gauge(
        "octet_candidate_pass_ratio",
        "Of the candidate's judged answers, the share that passed.",
        ("specialist",),
        (((info.specialist,), info.pass_rate if info.HasField("pass_rate") else None) for info in infos),
    )


def _knobs(infos: Sequence[wire.KnobInfo]) -> Iterator[Metric]:
    named = [(_knob_labels(info.name), info) for info in infos]
    yield gauge(
        "octet_knob",
        "shadow_threshold or priority_floor of an intent, as in force; specialist: where it is one's alone.",
        _KNOB,
        ((labels, info.value) for labels, info in named),
    )
    yield gauge(
        "octet_knob_configured",
        "What the configuration says of the knob.",
        _KNOB,
        ((labels, info.configured) for labels, info in named),
    )
    yield states(
        "octet_knob_set_by",
        "1 for who has set the knob: configuration, escalation, operator.",
        (*_KNOB, "by"),
        SETTERS,
        ((labels, _setter(info.set_by)) for labels, info in named),
    )


def _knob_labels(name: str) -> tuple[str, str, str]:
    """INTENT.KNOB or INTENT/SPECIALIST.KNOB."""
    place, _, knob = name.rpartition(".")
    intent, _, specialist = place.partition("/")
    return intent, specialist, knob


def _setter(set_by: str) -> str:
    return set_by if set_by in (_CONFIGURATION, ESCALATION) else "operator"


def _replicas(infos: Sequence[wire.ReplicaInfo], specialists: Sequence[str]) -> Iterator[Metric]:
    found = Counter((info.specialist, info.status) for info in infos)
    yield gauge(
        "octet_replicas",
        "Replicas by what the router knows of them.",
        ("specialist", "status"),
        (((name, status), found[name, status]) for name in specialists for status in REPLICA_STATES),
    )
    yield states(
        "octet_replica_health_breaker",
        "1 for the state that the replica's health breaker is in.",
        ("specialist", "replica", "state"),
        HEALTH_STATES,
        (((info.specialist, info.name), info.health_breaker) for info in infos),
    )


def scrape_failures(failures: Counter[tuple[str, str]], specialists: Sequence[str]) -> Build:
    counted = [((name, why), failures[name, why]) for name in specialists for why in SCRAPE_FAILURES]
    about = "Replicas that were left out of /metrics/replicas, by why."
    return lambda: [counter("octet_replica_scrape_failures_total", about, ("specialist", "reason"), counted)]
