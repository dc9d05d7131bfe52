"""All that a replica tells Prometheus. Every figure carries the specialist: it may be scraped without a router."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from prometheus_client.metrics_core import Metric

from octet import __version__
from octet.telemetry.families import Figure, Labels, counter, gauge, histogram
from octet.telemetry.histogram import Histogram
from octet.telemetry.outbox import Outbox
from octet.telemetry.page import Build, Page
from octet.v1 import specialist_pb2 as wire
from specialist.service.board import LoadBoard
from specialist.service.engine_thread import EngineThread
from specialist.service.generate import Generator
from specialist.service.kv_families import kv_families
from specialist.service.reception import Reception
from specialist.service.replica import Replica
from specialist.service.tally import MODES, EngineTally

_DIGITS = 12


def metrics_page(
    replica: Replica,
    engine: EngineThread,
    generator: Generator,
    reception: Reception,
    board: LoadBoard,
    outbox: Outbox | None,
) -> Page:
    specialist = replica.lane.specialist
    page = Page({"specialist": specialist})
    of = _Of(specialist)
    page.add(partial(_engine_source, of, replica, engine))
    page.add(partial(_door_source, of, generator, reception, board))
    page.add(partial(_load_source, of, replica, generator, board))
    page.add(lambda: partial(kv_families, specialist, replica.scheduler))
    page.add(lambda: partial(_traces, of, outbox))
    return page


class _Of:
    """Families of one specialist."""

    def __init__(self, specialist: str) -> None:
        self._specialist = specialist

    def gauge(self, name: str, about: str, figure: float | None) -> Metric:
        return self.gauges(name, about, (), [((), figure)])

    def gauges(self, name: str, about: str, labels: Labels, figures: Iterable[Figure]) -> Metric:
        return gauge(f"octet_replica_{name}", about, ("specialist", *labels), self._ours(figures))

    def counter(self, name: str, about: str, figure: float) -> Metric:
        return self.counters(name, about, (), [((), figure)])

    def counters(self, name: str, about: str, labels: Labels, figures: Iterable[Figure]) -> Metric:
        return counter(f"octet_replica_{name}", about, ("specialist", *labels), self._ours(figures))

    def histograms(self, name: str, about: str, labels: Labels, found: Iterable[tuple[Labels, Histogram]]) -> Metric:
        ours = (((self._specialist, *values), each) for values, each in found)
        return histogram(f"octet_replica_{name}", about, ("specialist", *labels), ours)

    def _ours(self, figures: Iterable[Figure]) -> Iterator[Figure]:
        for values, figure in figures:
            yield (self._specialist, *values), figure


def _engine_source(of: _Of, replica: Replica, engine: EngineThread) -> Build:
    tally, scheduler = engine.tally, replica.scheduler
    since = engine.stepping_since
    under_way = 0.0 if since is None else max(0.0, replica.clock.now() - since)

    def build() -> Iterator[Metric]:
        yield from _steps(of, tally)
        yield of.gauge("step_under_way_seconds", "How long the step under way has taken; 0 without one.", under_way)
        about = "Ends of steps that came late or twice, and changed nothing."
        yield of.counter("stale_commits_total", about, scheduler.num_stale_commits)
        about = "Saved states of recurrent layers that could not be used."
        yield of.counter("unusable_snapshots_total", about, scheduler.num_unusable_snapshots)
        yield from _requests(of, tally)

    return build


def _steps(of: _Of, tally: EngineTally) -> Iterator[Metric]:
    about = "One step: prefill (a chunk of prompts), decode, spec_verify."
    yield of.histograms("step_seconds", about, ("mode",), (((mode,), tally.step_seconds[mode]) for mode in MODES))
    about = "Sequences in one step."
    yield of.histograms("step_rows", about, ("mode",), (((mode,), tally.step_rows[mode]) for mode in MODES))
    about = "Prompt tokens that were computed, and tokens that were generated, shadows and all."
    yield of.counters("step_tokens_total", about, ("mode",), (((mode,), tally.step_tokens[mode]) for mode in MODES))
    about = "Steps with other adapters than the one before."
    yield of.counter("adapter_switches_total", about, tally.adapter_switches)


def _requests(of: _Of, tally: EngineTally) -> Iterator[Metric]:
    about = "Requests that ended, shadows and all: stop, length, cancelled, deadline, error, shed."
    finished = (((reason,), num) for reason, num in list(tally.finished.items()))
    yield of.counters("finished_requests_total", about, ("reason",), finished)
    about = "How often a sequence gave way: for admission, growth, or somebody's deadline."
    preempted = (((cause,), num) for cause, num in list(tally.preempted.items()))
    yield of.counters("preemptions_total", about, ("cause",), preempted)
    about = "From arrival to the first step."
    yield of.histograms("queue_seconds", about, (), [((), tally.queued)])
    yield of.histograms("prefill_seconds", "From the first step to the first token.", (), [((), tally.prefill)])
    yield of.counter("prompt_tokens_total", "Prompt tokens of requests that ran.", tally.prompt_tokens)
    about = "Prompt tokens of requests that ran that were found in the cache."
    yield of.counter("cached_prompt_tokens_total", about, tally.cached_tokens)
    yield of.counter("completion_tokens_total", "Tokens of their answers.", tally.completion_tokens)


def _door_source(of: _Of, generator: Generator, reception: Reception, board: LoadBoard) -> Build:
    tally = generator.tally
    verdicts = [((each, "no"), num) for each, num in tally.verdicts.items()]
    verdicts += [((each, "yes"), num) for each, num in tally.shadow_verdicts.items()]
    open_calls, watchers, receiving = generator.num_open, len(board.watchers), reception.num_receiving
    memory = generator.memory.share or 0.0

    def build() -> Iterator[Metric]:
        about = "What the desk said: admitted, deadline_unreachable, would_delay_others, queue_full."
        yield of.counters("verdicts_total", about, ("verdict", "shadow"), verdicts)
        about = "Requests that were shed for others of higher priority when those were let in."
        yield of.counter("displaced_requests_total", about, tally.displaced)
        about = "Requests that had to wait beside the line for others of higher priority when those were let in."
        yield of.counter("set_aside_requests_total", about, tally.set_aside)
        yield of.gauge("open_calls", "Calls that have not had their status yet.", open_calls)
        yield of.gauge("watchers", "Callers that watch the load.", watchers)
        yield of.gauge("tokenizing_requests", "Requests that are being tokenised, or wait for it.", receiving)
        yield of.gauge(
            "tokenizing_requests_limit",
            "Requests that may be tokenised or wait for it at once.",
            reception.max_receiving,
        )
        about = "Memory that is taken of what the kernel lets the process have; 0 where there is no limit."
        yield of.gauge("memory_share", about, memory)
        about = "What tokenising took on its thread, with the time in line for it."
        yield of.histograms("tokenize_seconds", about, (), [((), reception.seconds)])

    return build


def _traces(of: _Of, outbox: Outbox | None) -> Iterator[Metric]:
    sent, dropped = (0, 0) if outbox is None else (outbox.sent, outbox.dropped)
    yield of.counter("sent_traces_total", "Requests whose spans were taken where traces are sent.", sent)
    about = "Requests whose spans were lost: nobody took them, or there was no room to hold them."
    yield of.counter("lost_traces_total", about, dropped)


def _load_source(of: _Of, replica: Replica, generator: Generator, board: LoadBoard) -> Build:
    report, margin, is_open = board.report(), generator.forecast_margin, generator.door == "open"

    def build() -> Iterator[Metric]:
        labels = ("version", "engine", "revision")
        values = (__version__, replica.engine_name, report.revision[:_DIGITS])
        yield of.gauges("info", "Always 1; what this replica is.", labels, [(values, 1)])
        yield of.gauge("serving", "Whether it takes requests.", is_open)
        for name, about, read in _LOADS:
            yield of.gauge(name, about, read(report))
        yield _blocks(of, report.blocks)
        yield from _forecasts(of, report, margin)
        yield from _adapters(of, report)

    return build


_LOADS: tuple[tuple[str, str, Callable[[wire.LoadReport], float | None]], ...] = (
    ("waiting_requests", "Requests in line or set aside.", lambda load: load.waiting),
    ("running_requests", "Requests that have a seat.", lambda load: load.running),
    ("shadow_requests", "Shadows among those that wait and run.", lambda load: load.shadows),
    ("waiting_requests_limit", "Requests that may wait.", lambda load: load.max_waiting),
    ("running_requests_limit", "Requests that may run.", lambda load: load.max_running),
    ("draining", "Whether it takes nothing new and finishes what it has.", lambda load: load.draining),
    (
        "refusing",
        "Whether it refused somebody within the last second, for want of capacity.",
        lambda load: load.refusing,
    ),
    (
        "prefill_tokens_per_second",
        "Of steps that compute prompts, the recent ones counting most.",
        lambda load: load.prefill_rate if load.HasField("prefill_rate") else None,
    ),
    (
        "decode_tokens_per_second",
        "Of steps that decode, the recent ones counting most.",
        lambda load: load.decode_rate if load.HasField("decode_rate") else None,
    ),
    (
        "drained_requests_per_second",
        "Requests that end while others wait.",
        lambda load: load.drain_rate if load.HasField("drain_rate") else None,
    ),
    (
        "usual_wait_seconds",
        "What a usual request would wait now before its first step.",
        lambda load: load.usual_wait if load.HasField("usual_wait") else None,
    ),
)


def _blocks(of: _Of, blocks: wire.Blocks) -> Metric:
    figures = [(("free",), blocks.free), (("cached",), blocks.cached), (("used",), blocks.used)]
    return of.gauges(
        "kv_blocks", "Blocks of the KV pool: free, cached (nobody's, but findable), used.", ("state",), figures
    )


def _forecasts(of: _Of, report: wire.LoadReport, margin: float) -> Iterator[Metric]:
    errors = report.estimate_error
    figures: list[Figure] = []
    if report.HasField("estimate_error"):
        figures = [(("step", "50"), errors.step_p50), (("step", "90"), errors.step_p90)]
        figures += [
            (("request", percentile), getattr(errors, field) if errors.HasField(field) else None)
            for field, percentile in (("total_p50", "50"), ("total_p90", "90"))
        ]
    about = "How far forecasts were from what came, as a share of it: of steps, and of whole requests."
    yield of.gauges("estimate_error_ratio", about, ("of", "p"), figures)
    yield of.gauge("estimate_margin_ratio", "By how much a stretch of work may well exceed its forecast.", margin)


def _adapters(of: _Of, report: wire.LoadReport) -> Iterator[Metric]:
    yield of.gauge("adapters", "Adapters that are loaded.", len(report.adapters))
    rows = [((each.name, each.digest[:_DIGITS]), 1.0) for each in report.adapters]
    yield of.gauges("adapter_info", "1 for each adapter that is loaded.", ("adapter", "digest"), rows)
