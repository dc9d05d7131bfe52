"""The router's exposition, and the metric families of the store, traces, endpoint, control plane and scrapes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric

from admission.knobs import ESCALATION, UNSPECIFIED_INTENT
from octet import __version__
from octet.telemetry.exposition import Exposition, FamilyStream, counter_family, gauge_family, state_family
from octet.telemetry.outcomes import error_reasons, reason_name
from octet.telemetry.trace_export import SpanExporter
from octet.v1 import operator_pb2 as wire
from router.control.control import ControlPlane
from router.dispatch.replicas.replica import RESTART_KINDS
from router.observe.metrics.quality import evaluation_source, slo_source
from router.observe.metrics.requests import request_source
from router.observe.overview.findings import is_breaker_open
from router.store.store import Store

if TYPE_CHECKING:
    from router.server import RouterServer

BREAKER_STATES = ("closed", "shadow_only", "recovering")
HOLDS = ("open", "closed")
REPLICA_STATES = ("serving", "connecting", "hung", "draining", "drained_by_operator")
HEALTH_STATES = ("closed", "half_open", "open")
SCRAPE_FAILURES = ("silent", "malformed")
_CONFIGURATION = "configuration"
SETTERS = (_CONFIGURATION, ESCALATION, "operator")
_GATE_REASONS = sorted(error_reasons("UNAUTHENTICATED FORBIDDEN KEY_LIMIT"))
_JOB_ENDINGS = ("done", "failed", "cancelled")


def store_source(store: Store) -> FamilyStream:
    figures, up = store.counters(), not store.trouble
    yield None  # the rest runs on another thread
    yield gauge_family("octet_store_up", "Whether the database answers.", (), [((), up)])
    about = "Rows waiting to be written: receipts, comparisons, counts."
    held = [((kind,), getattr(figures, f"held_{kind}")) for kind in ("receipts", "comparisons", "counts")]
    yield gauge_family("octet_store_held_rows", about, ("kind",), held)
    about = "Lost rows: the buffer was full, or the database refused them."
    kinds = ("receipts", "comparisons", "counts", "verdicts")
    dropped = [((kind,), getattr(figures, f"dropped_{kind}")) for kind in kinds]
    yield counter_family("octet_store_dropped_rows_total", about, ("kind",), dropped)


def trace_source(exporter: SpanExporter | None) -> FamilyStream:
    sent, dropped = (0, 0) if exporter is None else (exporter.sent, exporter.dropped)
    yield None  # the rest runs on another thread
    about = "Requests, shadows and late verdicts whose spans the collector accepted."
    yield counter_family("octet_sent_traces_total", about, (), [((), sent)])
    about = "Requests, shadows and late verdicts whose spans were lost: not accepted, or the queue was full."
    yield counter_family("octet_lost_traces_total", about, (), [((), dropped)])


def endpoint_source(router: "RouterServer") -> FamilyStream:
    service, jobs, responses = router.service, router.jobs, tuple(router.responses.items())
    live, refused, memory = service.live, service.gate.refused, service.memory.share or 0.0
    num_connections = 0 if router.http is None else len(router.http.live_connections)
    refusals = [((reason_name(reason),), refused[reason]) for reason in _GATE_REASONS]
    tickets = [((each,), num) for each, num in service.pipeline.dispatcher.tickets.counts.items()]
    submitted, ended = jobs.counters.submitted, [((each,), jobs.counters.ended[each]) for each in _JOB_ENDINGS]
    gauges: list[tuple[str, str, float]] = [
        ("octet_warm", "Whether every specialist has had a warm replica.", router.is_warm),
        ("octet_draining", "Whether the router is draining.", service.draining),
        ("octet_inflight_requests", "Requests in flight.", len(live)),
        ("octet_inflight_requests_limit", "Limit on requests in flight.", live.max_requests),
        ("octet_inflight_bytes", "Bytes of requests in flight.", live.num_bytes),
        ("octet_memory_share", "Share of the process's memory limit in use; 0 without a limit.", memory),
        ("octet_http_connections", "Open HTTP connections.", num_connections),
        ("octet_jobs_running", "Jobs running on this router.", jobs.num_running),
        ("octet_job_watchers", "Callers watching a job.", len(jobs.watchers)),
    ]
    yield None  # the rest runs on another thread
    about = "Always 1; the label is this router's version."
    yield gauge_family("octet_build_info", about, ("version",), [((__version__,), 1)])
    for name, about, value in gauges:
        yield gauge_family(name, about, (), [((), value)])
    about = "HTTP responses by route and status; the route none stands for unknown routes."
    rows = (((route or "none", str(status)), num) for (route, status), num in responses)
    yield counter_family("octet_http_responses_total", about, ("route", "status"), rows)
    about = "Calls that the access gate refused, by reason: unauthenticated, forbidden, key_limit."
    yield counter_family("octet_gate_refusals_total", about, ("reason",), refusals)
    about = "Tickets: issued, honoured, not_honoured (the place was gone or could not be given), invalid (forged, "
    about += "expired, or of another caller or request)."
    yield counter_family("octet_tickets_total", about, ("outcome",), tickets)
    yield counter_family("octet_jobs_submitted_total", "Jobs submitted to this router.", (), [((), submitted)])
    about = "Jobs that this router ended: done, failed, cancelled (by the id of the running request). "
    about += "Jobs cancelled by job id are not counted."
    yield counter_family("octet_jobs_ended_total", about, ("status",), ended)


def control_source(control: ControlPlane) -> FamilyStream:
    breakers, knobs, replicas = control.breakers(), control.knobs(), control.replicas()
    ladders, names = control.escalation(), control.fleet_status.specialists
    restarts = [((info.specialist, info.name), control.restarts(info.name)) for info in replicas]
    yield None  # the rest runs on another thread
    yield from _breaker_families([each for each in breakers if each.lane_status != "candidate"])
    candidates = [each for each in breakers if each.lane_status == "candidate"]
    yield from _breaker_gauges(_CANDIDATE_GAUGES, candidates)
    yield from _knob_families(knobs)
    about = "Escalation level of the intent at the specialist; 0 means no escalation. "
    about += "Intents that were never escalated are left out, except unspecified."
    levels = {(UNSPECIFIED_INTENT, name): 0 for name in names} | {key: each.level for key, each in ladders.items()}
    rows = levels.items()
    yield gauge_family("octet_escalation_level", about, ("intent", "specialist"), rows)
    found = Counter((info.specialist, info.status) for info in replicas)
    statuses = (((name, status), found[name, status]) for name in names for status in REPLICA_STATES)
    about = "Replicas by status."
    yield gauge_family("octet_replicas", about, ("specialist", "status"), statuses)
    about = "1 for the current state of the replica's health breaker."
    states = (((info.specialist, info.name), info.health_breaker) for info in replicas)
    labels = ("specialist", "replica", "state")
    yield state_family("octet_replica_health_breaker", about, labels, HEALTH_STATES, states)
    about = "Restarts of the replica by reason: killed, out_of_memory, exited, hung, drained, unknown. "
    about += "All routers count the same ones."
    numbers = (((*who, kind), counts.get(kind, 0)) for who, counts in restarts for kind in RESTART_KINDS)
    yield counter_family("octet_replica_restarts_total", about, ("specialist", "replica", "reason"), numbers)


def _breaker_families(infos: Sequence[wire.BreakerInfo]) -> Iterator[Metric]:
    about = "1 for the current state of the correctness breaker, ignoring holds: closed, shadow_only, recovering."
    states = (((info.specialist,), info.state) for info in infos)
    yield state_family("octet_breaker_state", about, ("specialist", "state"), BREAKER_STATES, states)
    about = "1 if an operator holds the breaker open or closed."
    holds = (((info.specialist,), info.hold) for info in infos)
    yield state_family("octet_breaker_held", about, ("specialist", "hold"), HOLDS, holds)
    about = "Whether the breaker is open or held open; the label fallback is the specialist that answers instead."
    rows = (((info.specialist, info.fallback), is_breaker_open(info)) for info in infos)
    yield gauge_family("octet_breaker_open", about, ("specialist", "fallback"), rows)
    yield from _breaker_gauges(_BREAKER_GAUGES, infos)


def _breaker_gauges(gauges: Sequence[tuple[str, str, str]], infos: Sequence[wire.BreakerInfo]) -> Iterator[Metric]:
    for field, name, about in gauges:
        is_optional = wire.BreakerInfo.DESCRIPTOR.fields_by_name[field].has_presence
        known = [info for info in infos if not is_optional or info.HasField(field)]
        yield gauge_family(name, about, ("specialist",), (((info.specialist,), getattr(info, field)) for info in known))


_BREAKER_GAUGES = (
    ("pass_rate", "octet_correctness_pass_ratio", "Pass rate of the serving lane over the breaker's window."),
    ("floor", "octet_correctness_floor_ratio", "Pass rate below which the specialist is demoted."),
    (
        "floor_learned",
        "octet_correctness_floor_learned",
        "1 if the floor was learned from answers, 0 if configured.",
    ),
    ("samples", "octet_correctness_samples", "Verdicts in the breaker's window."),
    ("min_samples", "octet_correctness_needed_samples", "Verdicts needed before the breaker acts."),
    ("lane", "octet_serving_lane", "Number of the serving lane; 0 before its replicas are known."),
)
_CANDIDATE_GAUGES = (
    ("lane", "octet_candidate_lane", "Number of the candidate lane."),
    ("pass_rate", "octet_candidate_pass_ratio", "Pass rate of the candidate lane."),
)


def _knob_families(infos: Sequence[wire.KnobInfo]) -> Iterator[Metric]:
    labels = ("intent", "specialist", "knob")
    named = []
    for info in infos:  # INTENT.KNOB or INTENT/SPECIALIST.KNOB
        place, _, knob = info.name.rpartition(".")
        intent, _, specialist = place.partition("/")
        named.append(((intent, specialist, knob), info))
    about = "Current shadow_threshold or priority_floor of an intent; an empty specialist label means all specialists."
    yield gauge_family("octet_knob", about, labels, ((values, info.value) for values, info in named))
    rows = ((values, info.configured) for values, info in named)
    yield gauge_family("octet_knob_configured", "Configured value of the knob.", labels, rows)
    about = "1 for the source of the knob's value: configuration, escalation, operator."
    setters = ((values, info.set_by if info.set_by in SETTERS else "operator") for values, info in named)
    yield state_family("octet_knob_set_by", about, (*labels, "by"), SETTERS, setters)


def scrape_failures(failures: Counter[tuple[str, str]], specialists: Sequence[str]) -> FamilyStream:
    counted = [((name, why), failures[name, why]) for name in specialists for why in SCRAPE_FAILURES]
    yield None  # the rest runs on another thread
    about = "Failed scrapes of a replica for /metrics/replicas, by reason."
    yield counter_family("octet_replica_scrape_failures_total", about, ("specialist", "reason"), counted)


def router_exposition(router: "RouterServer") -> Exposition:
    exposition, services, counters = Exposition(), router.services, router.request_counters
    for source in (
        partial(request_source, counters),
        partial(control_source, services.control),
        partial(evaluation_source, services.evaluations, services.shadows, services.evaluation_totals),
        partial(store_source, services.store),
        partial(endpoint_source, router),
        partial(scrape_failures, router.replica_metrics.failures, tuple(counters.by_specialist)),
        partial(slo_source, services.slos),
        partial(trace_source, router.traces.exporter),
    ):
        exposition.add(source)
    return exposition
