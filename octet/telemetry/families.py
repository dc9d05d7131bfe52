"""Figures as Prometheus has them."""

from collections.abc import Iterable, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from octet.telemetry.histogram import Histogram

Labels = Sequence[str]
Figure = tuple[Labels, float | None]
"""The values of its labels, and its own; None: there is none."""


def gauge(name: str, about: str, labels: Labels, figures: Iterable[Figure]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=labels)
    for values, figure in figures:
        if figure is not None:
            family.add_metric(values, figure)
    return family


def counter(name: str, about: str, labels: Labels, figures: Iterable[Figure]) -> Metric:
    """Its name ends with _total."""
    family = CounterMetricFamily(name, about, labels=labels)
    for values, figure in figures:
        if figure is not None:
            family.add_metric(values, figure)
    return family


def histogram(name: str, about: str, labels: Labels, found: Iterable[tuple[Labels, Histogram]]) -> Metric:
    family = HistogramMetricFamily(name, about, labels=labels)
    for values, each in found:
        family.add_metric(values, _cumulative(each), each.total)
    return family


def states(
    name: str, about: str, labels: Labels, all_states: Iterable[str], figures: Iterable[tuple[Labels, str]]
) -> Metric:
    """One figure a state, 1 for the one that is. The state is the last label."""
    known = tuple(all_states)
    rows = [((*values, state), float(state == now)) for values, now in figures for state in known]
    return gauge(name, about, labels, rows)


def _cumulative(found: Histogram) -> list[tuple[str, float]]:
    so_far = 0
    rows: list[tuple[str, float]] = []
    for bound, count in zip((*map(repr, map(float, found.bounds)), "+Inf"), list(found.counts), strict=True):
        so_far += count
        rows.append((bound, so_far))
    return rows
