"""Figures of runs: goodput, refusals, and the accuracy of retry-after."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from math import inf
from statistics import median

from bench.admission.load import MISSED, End, OfferOutcome, OutcomeCounts, Run, System, count_outcomes
from bench.admission.simulated import HORIZON, ratio
from bench.timing import Targets
from simulation.results import BenchRecord, format_figure, percentile, summary

BENCH = "admission"
MUST_SHOW = (3.0, 10.0)  # loads at which goodput is compared
WITHIN = 2.0  # a retry-after is right within this factor


def load_case(load: float) -> str:
    return f"{format_figure(load)} x"


def targets(loads: Sequence[float]) -> Targets:
    bounds = {
        "missed in the top class": "0",
        "missed while a lower class was served": "0",
        "error of steps, p90": "< 25 %",
        "error of totals, p90": "< 25 %",
        f"retry-after within a factor of {WITHIN:g}": ">= 80 %",
        **dict.fromkeys((f"{name}, p{percent}" for name in REFUSAL_TIMES for percent in (50, 99)), "< 5 ms"),
    }
    return {
        **{(load_case(load), "answers in time, relative to fcfs"): ">= 1.5 x" for load in loads if load in MUST_SHOW},
        **{(load_case(load), metric): bound for load in loads for metric, bound in bounds.items()},
        (load_case(max(loads)), "work in time, of the peak"): ">= 90 %",
    }


def class_records(runs: Sequence[Run], priorities: Sequence[int]) -> Iterator[BenchRecord]:
    for load, system, group in _grouped(runs):
        for priority in priorities:
            case = f"{load_case(load)}, priority {priority}"
            counts = [count_outcomes(run.outcomes, run.window, priority) for run in group]
            for metric, unit, value in _CLASS_FIGURES:
                yield summary([value(each) for each in counts], BENCH, case, metric, unit, system)


def load_records(runs: Sequence[Run]) -> Iterator[BenchRecord]:
    best = {system: peaks(runs, system) for system in dict.fromkeys(run.system for run in runs)}
    top = max((each.offer.priority for run in runs for each in run.outcomes), default=0)
    for load, system, group in _grouped(runs):
        for metric, unit, value in _load_figures(best[system], top):
            samples = [sample for run in group if (sample := value(run)) is not None]
            if samples:
                yield summary(samples, BENCH, load_case(load), metric, unit, system)
    yield from ratio_records(runs)


def ratio_records(runs: Sequence[Run]) -> Iterator[BenchRecord]:
    """Yield, for each other system, Octet's goodput divided by that system's, seed by seed."""
    goodputs = {(run.load, run.system, run.seed): _whole(run) for run in runs}
    for load, system, group in _grouped(runs):
        if system == "octet":
            continue
        ours = [goodputs.get((load, "octet", run.seed)) for run in group]
        pairs = [(mine, _whole(run)) for mine, run in zip(ours, group, strict=True) if mine is not None]
        for metric in ("answers", "tokens"):
            goods = [(getattr(mine, metric), getattr(theirs, metric)) for mine, theirs in pairs]
            samples = [mine / theirs for mine, theirs in goods if theirs]
            if samples:
                yield summary(samples, BENCH, load_case(load), f"{metric} in time, relative to {system}", "x", "octet")


_BROKEN: frozenset[End] = MISSED | {"shed"}


def missed_while_lower_served(outcomes: Sequence[OfferOutcome]) -> list[OfferOutcome]:
    """Return the admitted requests that missed their deadline although a request of lower priority was running at that
    moment, or was answered in the second half of the time between their arrival and their deadline."""
    inside = [each for each in outcomes if each.end != "refused"]
    return [
        missed
        for missed in inside
        if missed.end in MISSED and (missed.beside_lower or any(_spared(missed, each) for each in inside))
    ]


def _spared(missed: OfferOutcome, other: OfferOutcome) -> bool:
    if other.offer.priority >= missed.offer.priority or other.offer.at > missed.at:
        return False
    half = missed.offer.at + missed.offer.patience / 2
    if other.at > missed.at:
        return missed.beside_lower is None
    return other.end == "in time" and other.at >= half


def within_factor(run: Run, factor: float = WITHIN, below: float = inf) -> float | None:
    """Of the followed refusals with a true wait below `below` seconds, return the share whose stated wait was within
    `factor` of the true wait; None if there are no such refusals."""
    ratios = [ratio(refusal) for refusal in run.followed_refusals if refusal.wait < below]
    if not ratios:
        return None
    return sum(each is not None and 1 / factor <= each <= factor for each in ratios) / len(ratios)


def _whole(run: Run) -> OutcomeCounts:
    return count_outcomes(run.outcomes, run.window)


def peaks(runs: Sequence[Run], system: System) -> dict[int, OutcomeCounts]:
    """Return the counts, by seed, of the load with the highest median of `work`."""
    goodputs = {
        load: {run.seed: _whole(run) for run in group} for load, mine, group in _grouped(runs) if mine == system
    }
    return max(goodputs.values(), key=lambda by_seed: median(each.work for each in by_seed.values()))


def _grouped(runs: Sequence[Run]) -> Iterator[tuple[float, System, list[Run]]]:
    ordered = sorted(runs, key=lambda run: (run.load, run.system, run.seed))
    for (load, system), group in groupby(ordered, key=lambda run: (run.load, run.system)):
        yield load, system, list(group)


def _ended(*ends: End) -> Callable[[OutcomeCounts], float]:
    return lambda each: sum(each.ends[end] for end in ends)


def _refused(reason: str) -> Callable[[OutcomeCounts], float]:
    return lambda each: each.refusals[reason]


_CLASS_FIGURES: tuple[tuple[str, str, Callable[[OutcomeCounts], float]], ...] = (
    ("offered", "", lambda each: each.offered),
    ("refused", "", _ended("refused")),
    ("admitted", "", lambda each: each.admitted),
    *((end, "", _ended(end)) for end in ("in time", "late", "given up", "shed")),
    ("failed", "", _ended("failed", "cancelled")),
    ("of the refused: deadline", "", _refused("deadline unreachable")),
    ("others", "", _refused("would delay others")),
    ("full", "", _refused("queue full")),
    ("answers/s", "in time", lambda each: each.answers),
    ("tokens/s", "in time", lambda each: each.tokens),
)


def _load_figures(peak: dict[int, OutcomeCounts], top: int) -> Iterable[tuple[str, str, Callable[[Run], float | None]]]:
    return (
        ("answers in time", "1/s", lambda run: _whole(run).answers),
        ("tokens in time", "tok/s", lambda run: _whole(run).tokens),
        ("work in time", "s/s", lambda run: _whole(run).work),
        ("work in time, of the peak", "%", lambda run: 100 * _whole(run).work / peak[run.seed].work),
        ("busy", "%", lambda run: _percent(run.busy)),
        ("queue length", "", lambda run: run.length),
        ("most admitted at once", "", lambda run: run.most_admitted),
        ("admitted and not answered in time", "", lambda run: sum(each.end in _BROKEN for each in run.outcomes)),
        ("missed after admission", "", _missed),
        ("missed in the top class", "", lambda run: _missed(run, top)),
        ("missed while a lower class was served", "", lambda run: len(missed_while_lower_served(run.outcomes))),
        *((f"{name}, p{p}", "ms", _milliseconds(of, p)) for name, of in REFUSAL_TIMES.items() for p in (50, 99)),
        ("refusals in slow periods", "%", lambda run: _share([disturbed for _, disturbed in _refusals(run)])),
        *(
            (f"callers late, p{p}", "ms", _milliseconds(lambda run: [o.behind for o in run.outcomes], p))
            for p in (50, 99)
        ),
        *((f"error of {part}s, p{p}", "%", _error(f"{part}_p{p}")) for part in ("step", "total") for p in (50, 90)),
        (f"retry-after within a factor of {WITHIN:g}", "%", lambda run: _percent(within_factor(run))),
        ("the same, of waits under 30 s", "%", lambda run: _percent(within_factor(run, below=HORIZON))),
        ("retry-after, stated over true, p50", "x", _median_ratio),
        ("admitted after the stated wait", "%", lambda run: _share(_admitted_again(run))),
    )


def _missed(run: Run, priority: int | None = None) -> int:
    return sum(each.end in MISSED and priority in (None, each.offer.priority) for each in run.outcomes)


def _refusals(run: Run) -> Iterator[tuple[float, bool]]:
    if run.slow_periods is None:
        return
    for each in run.outcomes:
        if each.asked is not None and each.latency is not None:
            yield each.latency, run.slow_periods.meets(each.asked)


def _milliseconds(of: Callable[[Run], Sequence[float | None]], percent: int) -> Callable[[Run], float | None]:
    def value(run: Run) -> float | None:
        known = [each for each in of(run) if each is not None]
        return 1000 * percentile(known, percent) if known else None

    return value


REFUSAL_TIMES: dict[str, Callable[[Run], Sequence[float | None]]] = {
    "refusal": lambda run: [each.latency for each in run.outcomes],
    "refusal outside slow periods": lambda run: [seconds for seconds, disturbed in _refusals(run) if not disturbed],
    "CPU of a refusal": lambda run: [each.cpu for each in run.outcomes],
}


def _error(name: str) -> Callable[[Run], float | None]:
    return lambda run: None if run.errors is None else _percent(getattr(run.errors, name))


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _median_ratio(run: Run) -> float | None:
    ratios = [each for refusal in run.followed_refusals if (each := ratio(refusal)) is not None]
    return percentile(ratios, 50) if ratios else None


def _admitted_again(run: Run) -> list[bool]:
    return [refusal.is_admitted_again for refusal in run.followed_refusals if refusal.stated_wait is not None]


def _share(flags: Sequence[bool]) -> float | None:
    return 100 * sum(flags) / len(flags) if flags else None
