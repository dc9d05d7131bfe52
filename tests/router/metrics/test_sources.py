"""The metrics of breakers, objectives, evaluation, replicas and traces."""

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric

from admission.breakers import BreakerRecord, may_serve
from octet.config.loader import default_ensemble
from octet.telemetry.trace_export import SpanExporter
from octet.v1 import control_pb2, operator_pb2, slo_pb2
from router.observe.metrics.exposition import BREAKER_STATES, HOLDS, control_source, store_source, trace_source
from router.observe.metrics.quality import COMPARISON_RESULTS, EvaluationTotals, slo_source
from router.routing.dispatch_plan import FleetStatus
from router.store.buffer import StoreCounters
from specialist.server.load_report import AdmissionCounters, EngineCounters


def figures(found: Iterable[Metric | None]) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in found
        if family is not None
        for sample in family.samples
    }


@pytest.mark.parametrize("hold", ("", *HOLDS))
@pytest.mark.parametrize("state", BREAKER_STATES)
def test_a_breaker_metric_is_open_when_the_fallback_answers(state: Any, hold: Any) -> None:
    info = control_pb2.BreakerInfo(specialist="sql", state=state, hold=hold, fallback="shell")
    control: Any = SimpleNamespace(
        breakers=lambda: [info],
        knobs=lambda: [],
        replicas=lambda: [],
        escalation=dict,
        fleet_status=FleetStatus.initial(default_ensemble()),
    )
    figures_found = figures(control_source(control))
    assert figures_found["octet_breaker_open", "shell", "sql"] == (
        not may_serve(BreakerRecord(state, hold=hold or None))
    )


class EmptySlos:
    def all(self) -> Sequence[slo_pb2.Slo]:
        return [slo_pb2.Slo(specialist="sql", objectives=[slo_pb2.Objective(name="correctness", share=0.9)])]

    def counts(self, specialist: str) -> dict[str, tuple[int, int]]:
        return {"ttft_p95": (7, 2)}


def test_an_objective_without_samples_begins_with_zero() -> None:
    slos: Any = EmptySlos()
    figures_found = figures(slo_source(slos))
    assert figures_found["octet_slo_samples_total", "correctness", "sql"] == 0
    assert figures_found["octet_slo_breaches_total", "correctness", "sql"] == 0
    assert figures_found["octet_slo_breaches_total", "ttft_p95", "sql"] == 2


def test_evaluation_series_begin_with_every_label() -> None:
    tally = EvaluationTotals()
    tally.add_verdict("sql", "passed")
    tally.add_comparison(operator_pb2.Comparison(primary="sql", shadow="shell+a", why="fresh"))
    assert tally.verdicts == {("sql", "passed"): 1, ("sql", "failed"): 0}
    assert set(tally.compared) == {("sql", "shell", "fresh", passed) for passed in COMPARISON_RESULTS}
    tally.add_verdict("sql", "passed")
    tally.add_comparison(operator_pb2.Comparison(primary="sql", shadow="shell+a", why="fresh"))
    assert tally.verdicts["sql", "passed"] == tally.compared["sql", "shell", "fresh", "unjudged"] == 2


def test_replica_series_begin_with_every_label() -> None:
    assert EngineCounters().preempted == dict.fromkeys(("admission", "growth", "deadline"), 0)
    assert "shed" in EngineCounters().finished
    for verdicts in (AdmissionCounters().decisions, AdmissionCounters().shadow_decisions):
        assert verdicts == dict.fromkeys(("admitted", "deadline_unreachable", "would_delay_others", "queue_full"), 0)


def test_lost_traces_are_counted() -> None:
    outbox = SpanExporter(lambda: pytest.fail("no exporter may be opened"), most=2)
    for _ in range(5):
        outbox.put(lambda: [])
    assert figures(trace_source(outbox)) == {("octet_sent_traces_total",): 0, ("octet_lost_traces_total",): 3}
    assert figures(trace_source(None))["octet_lost_traces_total",] == 0


def test_dropped_verdicts_are_counted() -> None:
    store: Any = SimpleNamespace(counters=lambda: StoreCounters(0, 0, 0, 1, 2, 3, 4), trouble="")
    figures_found = figures(store_source(store))
    kinds = ("receipts", "comparisons", "counts", "verdicts")
    assert [figures_found["octet_store_dropped_rows_total", kind] for kind in kinds] == [1, 2, 3, 4]
