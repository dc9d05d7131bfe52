"""Published SLOs. Each belongs to one specialist: there is no figure for all of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.metrics_core import Metric

from octet.telemetry.families import Figure, counter, gauge
from octet.telemetry.page import Build
from octet.v1 import slo_pb2 as wire

_OBJECTIVE = ("specialist", "objective")


class Slos(Protocol):
    def all(self) -> Sequence[wire.Slo]:
        """One a specialist."""

    def counted(self, specialist: str) -> Mapping[str, tuple[int, int]]:
        """Samples and those that broke the promise, by objective, since the start."""


def slo_source(slos: Slos) -> Build:
    found = slos.all()
    counted = {slo.specialist: _begun(slo) | dict(slos.counted(slo.specialist)) for slo in found}

    def build() -> Iterator[Metric]:
        yield from _latencies(found)
        yield gauge(
            "octet_slo_preempted_once_ratio",
            "Of the requests answered in the window, the share that gave way at least once.",
            ("specialist",),
            (((slo.specialist,), slo.preempted_once if slo.HasField("preempted_once") else None) for slo in found),
        )
        yield from _objectives(found)
        yield from _counts(counted)

    return build


_LATENCIES: tuple[tuple[str, str, Callable[[wire.Slo], wire.Latency]], ...] = (
    ("octet_slo_ttft_seconds", "From arrival to the first piece, over the window.", lambda slo: slo.ttft),
    ("octet_slo_itl_seconds", "Between two pieces, over the window.", lambda slo: slo.itl),
    (
        "octet_slo_admission_to_first_token_seconds",
        "From the replica's acceptance to the first piece, over the window.",
        lambda slo: slo.admission_to_first_token,
    ),
)


def _latencies(found: Sequence[wire.Slo]) -> Iterator[Metric]:
    for name, about, latency in _LATENCIES:
        figures = (figure for slo in found for figure in _quantiles(slo.specialist, latency(slo)))
        yield gauge(name, about, ("specialist", "p"), figures)


def _quantiles(specialist: str, latency: wire.Latency) -> Iterator[Figure]:
    """By percentile: the label `quantile` is for summaries alone."""
    for percentile in ("50", "95", "99"):
        if latency.HasField(f"p{percentile}"):
            yield (specialist, percentile), getattr(latency, f"p{percentile}")


def _objectives(found: Sequence[wire.Slo]) -> Iterator[Metric]:
    each = [((slo.specialist, objective.name), objective) for slo in found for objective in slo.objectives]
    yield gauge(
        "octet_slo_objective_target",
        "What is promised: seconds, of correctness the floor.",
        _OBJECTIVE,
        ((labels, objective.target) for labels, objective in each),
    )
    yield gauge(
        "octet_slo_objective_budget_ratio",
        "The share of samples that may break the objective.",
        _OBJECTIVE,
        ((labels, 1 - objective.share) for labels, objective in each),
    )
    yield gauge(
        "octet_slo_objective_met",
        "Whether the objective is kept now; left out while nothing was measured.",
        _OBJECTIVE,
        ((labels, one.met if one.HasField("current") else None) for labels, one in each),
    )
    yield gauge(
        "octet_slo_burn_rate",
        "How fast what may fail is used up over the window; 1 uses up exactly what there is.",
        (*_OBJECTIVE, "window"),
        (
            ((*labels, f"{burn.window_seconds:g}s"), burn.rate if burn.HasField("rate") else None)
            for labels, objective in each
            for burn in objective.burns
        ),
    )


def _begun(slo: wire.Slo) -> dict[str, tuple[int, int]]:
    """What nothing was seen of yet: Prometheus sees no growth in what begins with 1."""
    return {objective.name: (0, 0) for objective in slo.objectives}


def _counts(counted: Mapping[str, Mapping[str, tuple[int, int]]]) -> Iterator[Metric]:
    each = [((name, objective), total, bad) for name, of in counted.items() for objective, (total, bad) in of.items()]
    about = "Samples that count for the objective."
    yield counter("octet_slo_samples_total", about, _OBJECTIVE, ((labels, total) for labels, total, _ in each))
    about = "Samples that broke the objective."
    yield counter("octet_slo_breaches_total", about, _OBJECTIVE, ((labels, bad) for labels, _, bad in each))
