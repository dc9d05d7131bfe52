"""Metric families of shadows, verifiers and SLOs."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric

from octet.telemetry.exposition import FamilyStream, Sample, counter_family, gauge_family, histogram_family
from octet.v1 import operator_pb2
from octet.v1 import slo_pb2 as wire
from router.quality.answers import JudgedAnswer
from router.quality.evaluation_queue import EvaluationQueue
from router.quality.shadow import ShadowDispatcher
from router.quality.slo import SloTracker

_CONCLUSIVE = frozenset({"passed", "failed"})
# by whether the primary and the shadow passed
_RESULTS = {(True, True): "both", (False, False): "neither", (True, False): "primary", (False, True): "shadow"}
_KINDS = (("verifier", "passed"), ("verifier", "failed"), ("cut", "skipped"), ("degenerate", "failed"))
COMPARISON_RESULTS = (*_RESULTS.values(), "unjudged")
_COMPARISON_LABELS = ("specialist", "shadow", "why")
_OBJECTIVE_LABELS = ("specialist", "objective")


class EvaluationTotals:
    """Counts verdicts and comparisons. Zero counts are listed, too, so that Prometheus sees their first increase."""

    def __init__(self) -> None:
        self.verdicts: Counter[tuple[str, str]] = Counter()
        self.kinds: Counter[tuple[str, str, str]] = Counter()  # by specialist, kind and outcome
        self.compared: Counter[tuple[str, str, str, str]] = Counter()  # by primary, shadow, why, and result
        self.agreed: Counter[tuple[str, str, str]] = Counter()

    def add_verdict(self, specialist: str, outcome: str) -> None:
        if (specialist, "passed") not in self.verdicts:
            self.verdicts.update({(specialist, each): 0 for each in _CONCLUSIVE})
        self.verdicts[specialist, outcome] += 1

    def add_judged(self, specialist: str, judged: JudgedAnswer) -> None:
        if (specialist, *_KINDS[0]) not in self.kinds:
            self.kinds.update({(specialist, *each): 0 for each in _KINDS})
        self.kinds[specialist, judged.kind, judged.outcome] += 1

    def add_comparison(self, comparison: operator_pb2.Comparison) -> None:
        pair = (comparison.primary, comparison.shadow.partition("+")[0], comparison.why)
        if pair not in self.agreed:
            self.compared.update({(*pair, result): 0 for result in COMPARISON_RESULTS})
        result, passed = "unjudged", (comparison.primary_outcome == "passed", comparison.shadow_outcome == "passed")
        if _CONCLUSIVE.issuperset((comparison.primary_outcome, comparison.shadow_outcome)):
            result = _RESULTS[passed]
        self.compared[(*pair, result)] += 1
        self.agreed[pair] += comparison.agreed


def evaluation_source(evaluation: EvaluationQueue, shadows: ShadowDispatcher, totals: EvaluationTotals) -> FamilyStream:
    verdicts, compared = tuple(totals.verdicts.items()), tuple(totals.compared.items())
    kinds = tuple(totals.kinds.items())
    agreed, seconds = tuple(totals.agreed.items()), tuple(evaluation.seconds.items())
    yield None  # the rest runs on another thread
    yield from _shadow_families(shadows)
    about = "Comparisons of an answer with its shadow answer, by which of the two passed: both, neither, primary, "
    labels = (*_COMPARISON_LABELS, "passed")
    yield counter_family("octet_shadow_comparisons_total", f"{about}shadow, unjudged.", labels, compared)
    about = "Comparisons whose answers have the same verdict and similar text."
    yield counter_family("octet_shadow_agreements_total", about, _COMPARISON_LABELS, agreed)
    about = "Answers with a conclusive verdict, by outcome."
    yield counter_family("octet_judged_answers_total", about, ("specialist", "outcome"), verdicts)
    about = "Judged answers by what gave the verdict (verifier, cut, degenerate) and outcome."
    yield counter_family("octet_verdicts_total", about, ("specialist", "kind", "outcome"), kinds)
    yield from _verifier_families(evaluation)
    times = (((line.specialist, line.verifier), histogram) for line, histogram in seconds)
    about = "Time to judge one answer."
    yield histogram_family("octet_verify_seconds", about, ("specialist", "verifier"), times)


def _shadow_families(shadows: ShadowDispatcher) -> Iterator[Metric]:
    counters = shadows.counters
    about = "Shadow copies ordered."
    yield counter_family("octet_shadows_ordered_total", about, (), [((), counters.ordered)])
    about = "Shadow copies by outcome (answered, shed, failed) and reason (empty if answered)."
    ended: Mapping[tuple[str, str], int] = {("answered", ""): 0, **counters.ended}
    yield counter_family("octet_shadows_total", about, ("outcome", "reason"), ended.items())
    about = "Shadow copies that were sent to a replica."
    yield counter_family("octet_shadows_sent_total", about, (), [((), counters.sent)])
    yield gauge_family("octet_shadows_inflight", "Shadow copies in flight.", (), [((), shadows.num_inflight)])
    about = "Bytes of requests and answers of shadows in flight."
    yield gauge_family("octet_shadow_held_bytes", about, (), [((), shadows.byte_budget.taken)])


def _verifier_families(evaluation: EvaluationQueue) -> Iterator[Metric]:
    counters, budget = evaluation.counters, evaluation.budget
    about = "Answers submitted to be judged."
    yield counter_family("octet_verifier_answers_total", about, (), [((), counters.submitted)])
    about = (
        "Answers without a conclusive verdict: undecided, unread (too long, or no memory left), "
        "shed (for newer answers), failed (internal error)."
    )
    reasons = [((each,), getattr(counters, each)) for each in ("undecided", "unread", "shed", "failed")]
    yield counter_family("octet_verifier_unjudged_answers_total", about, ("reason",), reasons)
    about = "Answers waiting to be judged."
    yield gauge_family("octet_verifier_waiting_answers", about, (), [((), evaluation.num_waiting)])
    yield gauge_family("octet_verifier_held_bytes", "Bytes of answers held to be judged.", (), [((), budget.taken)])
    about = "Limit on the bytes of answers held to be judged."
    yield gauge_family("octet_verifier_held_limit_bytes", about, (), [((), budget.most)])


def slo_source(slos: SloTracker) -> FamilyStream:
    found = slos.all()
    counts = {
        slo.specialist: {each.name: (0, 0) for each in slo.objectives} | dict(slos.counts(slo.specialist))
        for slo in found
    }
    yield None  # the rest runs on another thread
    for latency, name, about in _SLO_LATENCIES:
        samples = (sample for slo in found for sample in _quantiles(slo.specialist, getattr(slo, latency)))
        yield gauge_family(name, about, ("specialist", "p"), samples)
    about = "Share of requests answered in the window that were preempted at least once."
    shares = (((slo.specialist,), slo.preempted_once) for slo in found if slo.HasField("preempted_once"))
    yield gauge_family("octet_slo_preempted_once_ratio", about, ("specialist",), shares)
    yield from _objective_families(found)
    rows = [((name, objective), *pair) for name, of in counts.items() for objective, pair in of.items()]
    about = "Samples counted for the objective."
    yield counter_family("octet_slo_samples_total", about, _OBJECTIVE_LABELS, ((row[0], row[1]) for row in rows))
    about = "Samples that breached the objective."
    yield counter_family("octet_slo_breaches_total", about, _OBJECTIVE_LABELS, ((row[0], row[2]) for row in rows))


_SLO_LATENCIES = (
    ("ttft", "octet_slo_ttft_seconds", "Time from arrival to the first chunk, over the window."),
    ("itl", "octet_slo_itl_seconds", "Time from one token to the next, over the window."),
    (
        "admission_to_first_token",
        "octet_slo_admission_to_first_token_seconds",
        "Time from the replica's acceptance to the first chunk, over the window.",
    ),
)


def _quantiles(specialist: str, latency: wire.Latency) -> Iterator[Sample]:
    """Yield percentiles under the label `p`: the label `quantile` is reserved for summaries."""
    for percentile in ("50", "95", "99"):
        if latency.HasField(f"p{percentile}"):
            yield (specialist, percentile), getattr(latency, f"p{percentile}")


def _objective_families(found: Sequence[wire.Slo]) -> Iterator[Metric]:
    rows = [((slo.specialist, objective.name), objective) for slo in found for objective in slo.objectives]
    about = "The objective's target: seconds for a latency, the floor for correctness."
    targets = ((labels, objective.target) for labels, objective in rows)
    yield gauge_family("octet_slo_objective_target", about, _OBJECTIVE_LABELS, targets)
    about = "Share of samples that may breach the objective."
    budgets = ((labels, 1 - objective.share) for labels, objective in rows)
    yield gauge_family("octet_slo_objective_budget_ratio", about, _OBJECTIVE_LABELS, budgets)
    about = "Whether the objective is met now; missing until there are samples."
    met = ((labels, objective.met) for labels, objective in rows if objective.HasField("current"))
    yield gauge_family("octet_slo_objective_met", about, _OBJECTIVE_LABELS, met)
    about = "How fast the error budget is spent over the window; 1 spends exactly the whole budget."
    burns = (
        ((*labels, f"{burn.window_seconds:g}s"), burn.rate if burn.HasField("rate") else None)
        for labels, objective in rows
        for burn in objective.burns
    )
    yield gauge_family("octet_slo_burn_rate", about, (*_OBJECTIVE_LABELS, "window"), burns)
