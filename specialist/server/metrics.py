"""Prometheus metrics of a replica. Every series names the specialist: a replica may be scraped without a router."""

from collections.abc import Iterable, Iterator
from functools import partial

from prometheus_client.metrics_core import Metric

from kvpool import HostCache
from octet import __version__
from octet.telemetry.distributions import Histogram
from octet.telemetry.exposition import FamilyStream, Labels, Sample, counter_family, gauge_family, histogram_family
from octet.telemetry.trace_export import SpanExporter
from octet.v1 import specialist_pb2 as wire
from specialist.scheduling.drafting import DraftProposer
from specialist.scheduling.ledger import Hybrid
from specialist.scheduling.scheduler import Scheduler
from specialist.server.load_report import MODES, EngineCounters
from specialist.server.service import SpecialistService

_DIGEST_DIGITS = 12


def add_replica_metrics(service: SpecialistService, exporter: SpanExporter | None) -> None:
    """Add the replica's metrics. Its state is read on the event loop; the families are built on another thread."""
    families = _SpecialistFamilies(service.replica.lane.specialist)
    metrics = service.exposition
    metrics.add(partial(_engine_source, families, service))
    metrics.add(partial(_admission_source, families, service))
    metrics.add(partial(_load_source, families, service))
    metrics.add(partial(_kv_source, families, service.replica.scheduler))
    metrics.add(partial(_trace_source, families, exporter))


class _SpecialistFamilies:
    """Builds metric families whose first label is the specialist."""

    def __init__(self, specialist: str) -> None:
        self._specialist = specialist

    def gauge(self, name: str, help_text: str, value: float | None) -> Metric:
        return self.gauges(name, help_text, (), [((), value)])

    def gauges(self, name: str, help_text: str, labels: Labels, samples: Iterable[Sample]) -> Metric:
        labelled = (((self._specialist, *values), value) for values, value in samples)
        return gauge_family(f"octet_replica_{name}", help_text, ("specialist", *labels), labelled)

    def counter(self, name: str, help_text: str, value: float) -> Metric:
        return self.counters(name, help_text, (), [((), value)])

    def counters(self, name: str, help_text: str, labels: Labels, samples: Iterable[Sample]) -> Metric:
        labelled = (((self._specialist, *values), value) for values, value in samples)
        return counter_family(f"octet_replica_{name}", help_text, ("specialist", *labels), labelled)

    def histograms(self, name: str, help_text: str, labels: Labels, each: Iterable[tuple[Labels, Histogram]]) -> Metric:
        labelled = (((self._specialist, *values), histogram) for values, histogram in each)
        return histogram_family(f"octet_replica_{name}", help_text, ("specialist", *labels), labelled)


def _engine_source(families: _SpecialistFamilies, service: SpecialistService) -> FamilyStream:
    counters, scheduler = service.engine.counters, service.replica.scheduler
    since = service.engine.stepping_since
    step_seconds = 0.0 if since is None else max(0.0, service.replica.clock.now() - since)
    yield None  # the rest runs on another thread
    yield from _step_families(families, counters)
    text = "Seconds since the current step began; 0 when idle."
    yield families.gauge("step_under_way_seconds", text, step_seconds)
    text = "Step results that arrived late or twice and were ignored."
    yield families.counter("stale_commits_total", text, scheduler.num_stale_commits)
    yield from _draft_families(families, counters, scheduler, service.replica.proposer)
    text = "Saved recurrent states that could not be used."
    yield families.counter("unusable_snapshots_total", text, scheduler.num_unusable_snapshots)
    yield from _request_families(families, counters)


def _step_families(families: _SpecialistFamilies, counters: EngineCounters) -> Iterator[Metric]:
    labels = ("mode",)
    text = "Duration of a step, by mode: prefill (a chunk of prompts), decode, spec_verify (checks speculated tokens)."
    yield families.histograms("step_seconds", text, labels, (((mode,), counters.step_seconds[mode]) for mode in MODES))
    text = "Sequences in a step."
    yield families.histograms("step_rows", text, labels, (((mode,), counters.step_rows[mode]) for mode in MODES))
    text = "Prompt tokens computed and tokens generated, including those of shadow requests."
    yield families.counters(
        "step_tokens_total", text, labels, (((mode,), counters.step_tokens[mode]) for mode in MODES)
    )
    text = "Steps whose adapters differ from the previous step's."
    yield families.counter("adapter_switches_total", text, counters.adapter_switches)


def _draft_families(
    families: _SpecialistFamilies, counters: EngineCounters, scheduler: Scheduler, proposer: DraftProposer | None
) -> Iterator[Metric]:
    text = "Steps without drafts because their proposer failed, or without those of the draft model because it failed."
    num_failed = 0 if proposer is None else proposer.num_failed
    yield families.counter("failed_proposals_total", text, scheduler.rows.num_failed_proposals + num_failed)
    drafts: list[Sample] = []
    for source, num_drafted in list(counters.drafted.items()):
        num_accepted = counters.accepted[source]
        drafts += [((source, "accepted"), num_accepted), ((source, "rejected"), num_drafted - num_accepted)]
    text = "Drafts (tokens that steps guessed ahead) of requests that have ended, by source: own_text, lane (other "
    text += "answers of the same lane and tenant), model (the draft model); accepted (right) or rejected."
    yield families.counters("draft_tokens_total", text, ("source", "result"), drafts)
    lane = None if proposer is None else proposer.lane
    text = "Bytes of ended answers that are kept as sources of drafts, with their index; at most 32 MiB."
    yield families.gauge("lane_text_bytes", text, 0 if lane is None else lane.num_bytes)
    model = None if proposer is None or proposer.model is None else proposer.model.model
    text = "Seconds that the draft model computed."
    yield families.counter("draft_model_seconds_total", text, 0.0 if model is None else model.seconds)
    used, free = (0, 0) if model is None else (model.pool.num_used, model.pool.num_free)
    text = "Blocks of the draft model's KV pool: free (also those with reusable content), used."
    yield families.gauges("draft_kv_blocks", text, ("state",), [(("free",), free), (("used",), used)])


def _request_families(families: _SpecialistFamilies, counters: EngineCounters) -> Iterator[Metric]:
    text = "Requests that ended, including shadow requests, by reason: stop, length, cancelled, deadline, error, shed."
    finished = (((reason,), num) for reason, num in list(counters.finished.items()))
    yield families.counters("finished_requests_total", text, ("reason",), finished)
    text = "Preemptions of a sequence, by cause: another request's admission, growth or deadline."
    preempted = (((cause,), num) for cause, num in list(counters.preempted.items()))
    yield families.counters("preemptions_total", text, ("cause",), preempted)
    yield families.histograms("queue_seconds", "Time from arrival to the first step.", (), [((), counters.queued)])
    text = "Time from the first step to the first token."
    yield families.histograms("prefill_seconds", text, (), [((), counters.prefill)])
    yield families.counter("prompt_tokens_total", "Prompt tokens of requests that ran.", counters.prompt_tokens)
    text = "Prompt tokens found in the cache, for requests that ran."
    yield families.counter("cached_prompt_tokens_total", text, counters.cached_tokens)
    yield families.counter("completion_tokens_total", "Tokens of answers.", counters.completion_tokens)


def _admission_source(families: _SpecialistFamilies, service: SpecialistService) -> FamilyStream:
    handler, preparer = service.handler, service.preparer
    counters = handler.counters
    decisions = [((each, "no"), num) for each, num in counters.decisions.items()]
    decisions += [((each, "yes"), num) for each, num in counters.shadow_decisions.items()]
    open_calls, watchers, tokenizing = handler.num_open, len(service.publisher.watchers), preparer.num_tokenizing
    memory, attached = handler.memory.share or 0.0, len(service.attachments)
    places = service.places
    num_places, ended = len(places), [((each,), num) for each, num in places.ended.items()]
    yield None  # the rest runs on another thread
    text = "Places in the forecast that are kept for refused callers."
    yield families.gauge("places", text, num_places)
    text = "Places that ended: taken, lapsed, lost (the caller came in time and was refused), released (not needed)."
    yield families.counters("places_ended_total", text, ("end",), ended)
    text = "Admission decisions: admitted, deadline_unreachable, would_delay_others, queue_full."
    yield families.counters("verdicts_total", text, ("verdict", "shadow"), decisions)
    text = "Requests shed to admit a request of higher priority."
    yield families.counter("displaced_requests_total", text, counters.displaced)
    text = "Requests suspended to admit a request of higher priority."
    yield families.counter("set_aside_requests_total", text, counters.suspended)
    yield families.gauge("open_calls", "Requests whose status has not been sent yet.", open_calls)
    text = "Calls that clients have attached, each for many requests; 0: each request is a call of its own."
    yield families.gauge("attached_calls", text, attached)
    yield families.gauge("watchers", "Callers watching the replica's load.", watchers)
    yield families.gauge("tokenizing_requests", "Requests being tokenised or waiting to be.", tokenizing)
    text = "Limit on requests being tokenised or waiting to be."
    yield families.gauge("tokenizing_requests_limit", text, preparer.max_tokenizing)
    text = "Share of the process's memory limit in use; 0 without a limit."
    yield families.gauge("memory_share", text, memory)
    text = "Duration of tokenisation, including queueing."
    yield families.histograms("tokenize_seconds", text, (), [((), preparer.tokenize_seconds)])


def _trace_source(families: _SpecialistFamilies, exporter: SpanExporter | None) -> FamilyStream:
    yield None  # the rest runs on another thread
    sent, dropped = (0, 0) if exporter is None else (exporter.sent, exporter.dropped)
    yield families.counter("sent_traces_total", "Requests whose spans were exported.", sent)
    text = "Requests whose spans were lost: not accepted by the collector, or the queue was full."
    yield families.counter("lost_traces_total", text, dropped)


def _load_source(families: _SpecialistFamilies, service: SpecialistService) -> FamilyStream:
    report, is_open = service.publisher.report(), service.handler.state == "open"
    margin = service.controller.estimator.margin
    yield None  # the rest runs on another thread
    labels = ("version", "engine", "revision")
    values = (__version__, service.replica.engine_name, report.revision[:_DIGEST_DIGITS])
    yield families.gauges("info", "Always 1; describes the replica.", labels, [(values, 1)])
    yield families.gauge("serving", "1 if the replica accepts requests.", is_open)
    for name, text, field in _LOAD_GAUGES:
        is_unknown = wire.LoadReport.DESCRIPTOR.fields_by_name[field].has_presence and not report.HasField(field)
        yield families.gauge(name, text, None if is_unknown else getattr(report, field))
    blocks = [(("free",), report.blocks.free), (("cached",), report.blocks.cached), (("used",), report.blocks.used)]
    text = "Blocks of the KV pool: free, cached (unused but reusable), used."
    yield families.gauges("kv_blocks", text, ("state",), blocks)
    yield from _forecast_families(families, report, margin)
    yield families.gauge("adapters", "Loaded adapters.", len(report.adapters))
    adapters = [((each.name, each.digest[:_DIGEST_DIGITS]), 1.0) for each in report.adapters]
    yield families.gauges("adapter_info", "1 for each loaded adapter.", ("adapter", "digest"), adapters)


_LOAD_GAUGES = (  # name, help text, field of the load report
    ("waiting_requests", "Waiting and suspended requests.", "waiting"),
    ("running_requests", "Running requests.", "running"),
    ("shadow_requests", "Shadow requests, waiting or running.", "shadows"),
    ("waiting_requests_limit", "Limit on waiting requests.", "max_waiting"),
    ("running_requests_limit", "Limit on running requests.", "max_running"),
    ("draining", "1 if the replica only finishes the requests it has.", "draining"),
    ("refusing", "1 if a request was refused for lack of capacity within the last second.", "refusing"),
    ("prefill_tokens_per_second", "Recent tokens per second in prefill steps.", "prefill_rate"),
    ("decode_tokens_per_second", "Recent tokens per second in decode steps.", "decode_rate"),
    ("drained_requests_per_second", "Recent rate at which requests end while the replica is busy.", "drain_rate"),
    ("usual_wait_seconds", "Expected wait of a typical request for its first step.", "usual_wait"),
)


def _forecast_families(families: _SpecialistFamilies, report: wire.LoadReport, margin: float) -> Iterator[Metric]:
    errors = report.estimate_error
    samples: list[Sample] = []
    if report.HasField("estimate_error"):
        samples = [(("step", "50"), errors.step_p50), (("step", "90"), errors.step_p90)]
        samples += [
            ((of, percentile), getattr(errors, field) if errors.HasField(field) else None)
            for of, part in (("first_token", "first"), ("request", "total"), ("stated", "stated"))
            for percentile, field in (("50", f"{part}_p50"), ("90", f"{part}_p90"))
        ]
    text = "Error of recent forecasts as a share of the actual time: of steps, of the time to the first token, of "
    text += "whole requests with the tokens that they had, of the totals stated at admission."
    yield families.gauges("estimate_error_ratio", text, ("of", "p"), samples)
    yield families.gauge("estimate_margin_ratio", "Share added to forecasts as a safety margin.", margin)


def _kv_source(families: _SpecialistFamilies, scheduler: Scheduler) -> FamilyStream:
    yield None  # the rest runs on another thread: the counters are only read
    pool, states = scheduler.pool, scheduler.states
    counters = pool.counters
    yield families.gauge("kv_block_tokens", "Tokens per block of the KV pool.", pool.block_size)
    text = "Prompt blocks not reused, by reason: cold (never cached), evicted, tokens_differ, "
    text += "no_boundary (no saved recurrent state), disabled."
    misses = (((reason,), num) for reason, num in counters.misses.items())
    yield families.counters("kv_block_misses_total", text, ("reason",), misses)
    for name, text, num in (
        ("hits", "Prompt blocks found in the cache.", counters.hits),
        ("evictions", "Cached blocks evicted.", counters.evictions),
        ("reads", "Blocks that steps read.", counters.reads),
        ("writes", "Blocks that steps wrote tokens into.", counters.writes),
    ):
        yield families.counter(f"kv_block_{name}_total", text, num)
    yield from _host_families(families, pool.host)
    saved = states.num_snapshot_bytes if isinstance(states, Hybrid) else 0
    text = "Bytes of saved states of recurrent layers; 0 for a model without any."
    yield families.gauge("snapshot_bytes", text, saved)


def _host_families(families: _SpecialistFamilies, host: HostCache | None) -> Iterator[Metric]:
    text = "Most evicted KV blocks that host memory keeps; 0 without such memory."
    yield families.gauge("kv_host_blocks_limit", text, 0 if host is None else host.capacity)
    yield families.gauge("kv_host_blocks", "Evicted KV blocks in host memory.", 0 if host is None else len(host.blocks))
    for name, text, num in (
        ("spills", "Evicted KV blocks copied to host memory.", 0 if host is None else host.num_spilled),
        ("restores", "KV blocks copied back from host memory.", 0 if host is None else host.num_restored),
        ("drops", "KV blocks that left host memory, or found no room in it.", 0 if host is None else host.num_dropped),
    ):
        yield families.counter(f"kv_block_{name}_total", text, num)
