"""Requests as Prometheus has them; the names of OpenTelemetry's conventions for generative AI where they have one."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import Metric

from octet.telemetry.families import Labels, counter, gauge, histogram
from octet.telemetry.histogram import Histogram
from octet.telemetry.outcome import OUTCOMES
from octet.telemetry.page import Build
from router.metrics.fare import Fare
from router.metrics.requests import RequestTally

_OURS = ("specialist",)
_THEIRS = ("specialist", "gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_response_model")
_Fares = Mapping[str, Fare]


def request_source(tally: RequestTally) -> Build:
    fares, unrouted = tally.fares, tuple(tally.unrouted.items())
    counted = {name: _Counted(fare) for name, fare in fares.items()}

    def build() -> Iterator[Metric]:
        about = "Requests that belong to no specialist: nobody should answer them, or they were not let in."
        yield counter("octet_unrouted_requests_total", about, ("reason",), (((why,), num) for why, num in unrouted))
        yield from _conventional(fares)
        yield from _latencies(fares)
        yield from _by_kind(counted)
        yield from _sums(fares)

    return build


class _Counted:
    """What may grow new entries while it is read, as it was."""

    def __init__(self, fare: Fare) -> None:
        self.requests = tuple(fare.requests.items())
        self.errors = tuple(fare.errors.items())
        self.decisions = tuple(fare.decisions.items())
        self.failed_attempts = tuple(fare.failed_attempts.items())
        self.misses = tuple(fare.misses.items())


def _named(specialist: str) -> Labels:
    return specialist, "chat", "octet", f"octet/{specialist}"


def _conventional(fares: _Fares) -> Iterator[Metric]:
    yield histogram(
        "gen_ai_server_request_duration_seconds",
        "From a request's arrival to its end; error_type: empty where it was answered, or refused, failed, cancelled.",
        (*_THEIRS, "error_type"),
        (
            ((*_named(name), "" if outcome == "answered" else outcome), fare.seconds[outcome])
            for name, fare in fares.items()
            for outcome in OUTCOMES
            if outcome == "answered" or fare.seconds[outcome].num_values
        ),
    )
    yield histogram(
        "gen_ai_server_time_to_first_token_seconds",
        "From a request's arrival to the first piece of its answer.",
        _THEIRS,
        ((_named(name), fare.first_token) for name, fare in fares.items()),
    )
    yield histogram(
        "gen_ai_server_time_per_output_token_seconds",
        "A token behind the first, the mean of one answer.",
        _THEIRS,
        ((_named(name), fare.output_token) for name, fare in fares.items()),
    )
    yield histogram(
        "gen_ai_client_token_usage",
        "Tokens of one request: those of the prompt are input, those of the answer output.",
        (*_THEIRS, "gen_ai_token_type"),
        (
            ((*_named(name), kind), found)
            for name, fare in fares.items()
            for kind, found in (("input", fare.input_usage), ("output", fare.output_usage))
        ),
    )


_LATENCIES: tuple[tuple[str, str, Callable[[Fare], Histogram]], ...] = (
    ("octet_itl_seconds", "Between two pieces of an answer, as they leave the router.", lambda fare: fare.gap),
    (
        "octet_admission_to_first_token_seconds",
        "From the replica's acceptance to the first piece of the answer.",
        lambda fare: fare.admission_to_first_token,
    ),
    ("octet_decision_seconds", "From arrival to the decision who answers.", lambda fare: fare.decided),
    ("octet_queue_seconds", "From arrival at the replica to the first step.", lambda fare: fare.queued),
    ("octet_prefill_seconds", "From the first step to the first token.", lambda fare: fare.prefill),
    ("octet_decode_tokens_per_second", "Of one answer, behind its first token.", lambda fare: fare.decode_rate),
    (
        "octet_decision_confidence_ratio",
        "The probability that the classifier gave to whom it chose.",
        lambda fare: fare.confidence,
    ),
)


def _latencies(fares: _Fares) -> Iterator[Metric]:
    for name, about, found in _LATENCIES:
        yield histogram(name, about, _OURS, [((each,), found(fare)) for each, fare in fares.items()])


def _by_kind(counted: Mapping[str, _Counted]) -> Iterator[Metric]:
    yield counter(
        "octet_requests_total",
        "Requests that ended, by who answered or was to, and how: answered, refused, failed, cancelled.",
        ("specialist", "intent", "outcome"),
        (((name, *kind), num) for name, of in counted.items() for kind, num in of.requests),
    )
    for family, about, label, found in _KINDS:
        figures = (((name, kind), num) for name, of in counted.items() for kind, num in found(of))
        yield counter(family, about, ("specialist", label), figures)


_KINDS: tuple[tuple[str, str, str, Callable[[_Counted], tuple[tuple[str, int], ...]]], ...] = (
    ("octet_errors_total", "Requests that were not answered, by reason.", "reason", lambda of: of.errors),
    ("octet_decisions_total", "Who was chosen, by what decided.", "source", lambda of: of.decisions),
    (
        "octet_failed_attempts_total",
        "Replicas that were asked and did not answer; the request may have been answered by another.",
        "reason",
        lambda of: of.failed_attempts,
    ),
    (
        "octet_cache_misses_total",
        "Requests by why their prompts were not found whole in the cache; none: all was that could be.",
        "reason",
        lambda of: of.misses,
    ),
)


def _sums(fares: _Fares) -> Iterator[Metric]:
    for name, about, found in _SUMS:
        yield counter(name, about, _OURS, [((each,), found(fare)) for each, fare in fares.items()])


_SUMS: tuple[tuple[str, str, Callable[[Fare], int]], ...] = (
    (
        "octet_spilled_requests_total",
        "Requests that its second choice answered, because it had no room.",
        lambda fare: fare.spilled,
    ),
    (
        "octet_stand_in_requests_total",
        "Requests that another was to answer: it was demoted, to get less, or had no replica fit to answer.",
        lambda fare: fare.stood_in,
    ),
    (
        "octet_preempted_requests_total",
        "Requests that gave way at least once on their way.",
        lambda fare: fare.preempted,
    ),
    ("octet_preemptions_total", "How often requests gave way.", lambda fare: fare.preemptions),
    ("octet_prompt_tokens_total", "Tokens of prompts.", lambda fare: fare.prompt_tokens),
    (
        "octet_cached_prompt_tokens_total",
        "Tokens of prompts that were found in the cache.",
        lambda fare: fare.cached_tokens,
    ),
    ("octet_completion_tokens_total", "Tokens of answers.", lambda fare: fare.completion_tokens),
)


def build_info(version: str) -> Metric:
    return gauge("octet_build_info", "Always 1; which version this router is.", ("version",), [((version,), 1)])
