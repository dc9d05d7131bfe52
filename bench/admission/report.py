"""Runs as figures."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import median

from bench.admission.comebacks import HORIZON, ratio
from bench.admission.outcome import MISSED, End, Outcome
from bench.admission.run import Run, System
from bench.admission.tally import Tally, tally
from bench.measure import percentile, summary
from bench.record import Record
from bench.table import Targets, figure

BENCH = "admission"
MUST_SHOW = (3.0, 10.0)
"""Loads at which goodput is compared with first come, first served."""
WITHIN = 2.0
"""A retry-after is right when it is neither so many times too long nor too short."""


def load_case(load: float) -> str:
    return f"{figure(load)} x"


def class_case(load: float, priority: int) -> str:
    return f"{load_case(load)}, priority {priority}"


def targets(loads: Sequence[float]) -> Targets:
    most = max(loads)
    return {
        **{(load_case(load), "answers in time, to fcfs"): ">= 1.5 x" for load in loads if load in MUST_SHOW},
        **{(load_case(load), "missed in the top class"): "0" for load in loads},
        **{(load_case(load), "missed beside a lower class"): "0" for load in loads},
        (load_case(most), "work in time, of the peak"): ">= 90 %",
        **{(load_case(load), "error of steps, p90"): "< 25 %" for load in loads},
        **{(load_case(load), "error of totals, p90"): "< 25 %" for load in loads},
        **{(load_case(load), f"retry-after within a factor of {WITHIN:g}"): ">= 80 %" for load in loads},
        **{(load_case(load), f"refusal, p{percent}"): "< 5 ms" for load in loads for percent in (50, 99)},
        **{(load_case(load), f"refusal in no spell, p{percent}"): "< 5 ms" for load in loads for percent in (50, 99)},
        **{(load_case(load), f"CPU of a refusal, p{percent}"): "< 5 ms" for load in loads for percent in (50, 99)},
    }


def class_records(runs: Sequence[Run], priorities: Sequence[int]) -> Iterator[Record]:
    """What became of each class: medians over the seeds."""
    for load, system, group in _grouped(runs):
        for priority in priorities:
            tallies = [tally(run.outcomes, run.window, _of_class(priority)) for run in group]
            for metric, unit, value in _CLASS_FIGURES:
                yield summary(
                    [value(each) for each in tallies], BENCH, class_case(load, priority), metric, unit, system
                )


def load_records(runs: Sequence[Run]) -> Iterator[Record]:
    """What a load as a whole did."""
    best = {system: peaks(runs, system) for system in dict.fromkeys(run.system for run in runs)}
    top = max((each.offer.priority for run in runs for each in run.outcomes), default=0)
    for load, system, group in _grouped(runs):
        for metric, unit, value in _load_figures(best[system], top):
            samples = [sample for run in group if (sample := value(run)) is not None]
            if samples:
                yield summary(samples, BENCH, load_case(load), metric, unit, system)
    yield from ratio_records(runs)


def ratio_records(runs: Sequence[Run]) -> Iterator[Record]:
    """Octet's goodput to that of each other system, seed by seed, where that one had any."""
    goodputs = {(run.load, run.system, run.seed): _whole(run) for run in runs}
    for load, system, group in _grouped(runs):
        if system == "octet":
            continue
        ours = [goodputs.get((load, "octet", run.seed)) for run in group]
        pairs = [(mine, _whole(run)) for mine, run in zip(ours, group, strict=True) if mine is not None]
        for metric, of in _GOODPUTS:
            samples = [of(mine) / of(theirs) for mine, theirs in pairs if of(theirs)]
            if samples:
                yield summary(samples, BENCH, load_case(load), f"{metric} in time, to {system}", "x", "octet")


_GOODPUTS: tuple[tuple[str, Callable[[Tally], float]], ...] = (
    ("answers", lambda each: each.answers),
    ("tokens", lambda each: each.tokens),
)


_BROKEN: frozenset[End] = MISSED | {"shed"}


def missed_of(outcomes: Sequence[Outcome], priority: int) -> list[Outcome]:
    return [each for each in outcomes if each.end in MISSED and each.offer.priority == priority]


def missed_while_lower_served(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those who were let in and not answered in time, though not all of the lower classes had been shed for them.

    That is: somebody of a lower priority holds a seat at that moment (where seats are not seen: is still inside), or
    was answered in the second half of their time.
    """
    inside = [each for each in outcomes if each.end != "refused"]
    return [
        missed
        for missed in inside
        if missed.end in MISSED and (missed.beside_lower or any(_spared(missed, each) for each in inside))
    ]


def _spared(missed: Outcome, other: Outcome) -> bool:
    if other.offer.priority >= missed.offer.priority or other.offer.at > missed.at:
        return False
    half = missed.offer.at + missed.offer.patience / 2
    if other.at > missed.at:
        return missed.beside_lower is None
    return other.end == "in time" and other.at >= half


def within_factor(run: Run, factor: float = WITHIN) -> float | None:
    """Share of the watched refusals whose retry-after was right. None told is none right."""
    ratios = [ratio(comeback) for comeback in run.comebacks]
    if not ratios:
        return None
    return sum(each is not None and 1 / factor <= each <= factor for each in ratios) / len(ratios)


def _of_class(priority: int) -> Callable[[Outcome], bool]:
    return lambda outcome: outcome.offer.priority == priority


def _whole(run: Run) -> Tally:
    return tally(run.outcomes, run.window, lambda outcome: True)


def peaks(runs: Sequence[Run], system: System) -> dict[int, Tally]:
    """By seed, what the load did that is the best of all in the median: one load, so that no luck is picked."""
    goodputs = {
        load: {run.seed: _whole(run) for run in group} for load, mine, group in _grouped(runs) if mine == system
    }
    return max(goodputs.values(), key=lambda by_seed: median(each.work for each in by_seed.values()))


def _grouped(runs: Sequence[Run]) -> Iterator[tuple[float, System, list[Run]]]:
    ordered = sorted(runs, key=lambda run: (run.load, run.system, run.seed))
    for (load, system), group in groupby(ordered, key=lambda run: (run.load, run.system)):
        yield load, system, list(group)


_CLASS_FIGURES: tuple[tuple[str, str, Callable[[Tally], float]], ...] = (
    ("offered", "", lambda each: each.offered),
    ("refused", "", lambda each: each.ends["refused"]),
    ("let in", "", lambda each: each.admitted),
    ("in time", "", lambda each: each.ends["in time"]),
    ("late", "", lambda each: each.ends["late"]),
    ("given up", "", lambda each: each.ends["given up"]),
    ("shed", "", lambda each: each.ends["shed"]),
    ("failed", "", lambda each: each.ends["failed"] + each.ends["cancelled"]),
    ("of the refused: deadline", "", lambda each: each.refusals["deadline unreachable"]),
    ("others", "", lambda each: each.refusals["would delay others"]),
    ("full", "", lambda each: each.refusals["queue full"]),
    ("answers/s", "in time", lambda each: each.answers),
    ("tokens/s", "in time", lambda each: each.tokens),
)


def _load_figures(peak: dict[int, Tally], top: int) -> Iterable[tuple[str, str, Callable[[Run], float | None]]]:
    return (
        ("answers in time", "1/s", lambda run: _whole(run).answers),
        ("tokens in time", "tok/s", lambda run: _whole(run).tokens),
        ("work in time", "s/s", lambda run: _whole(run).work),
        ("work in time, of the peak", "%", lambda run: 100 * _whole(run).work / peak[run.seed].work),
        ("busy", "%", lambda run: _percent(run.busy)),
        ("places in the queue", "", lambda run: run.length),
        ("inside at one time, most", "", lambda run: run.most_inside),
        ("let in and not answered in time", "", lambda run: sum(each.end in _BROKEN for each in run.outcomes)),
        ("missed after being let in", "", lambda run: sum(each.end in MISSED for each in run.outcomes)),
        ("missed in the top class", "", lambda run: len(missed_of(run.outcomes, top))),
        ("missed beside a lower class", "", lambda run: len(missed_while_lower_served(run.outcomes))),
        ("refusal, p50", "ms", lambda run: _milliseconds([each.latency for each in run.outcomes], 50)),
        ("refusal, p99", "ms", lambda run: _milliseconds([each.latency for each in run.outcomes], 99)),
        ("refusal in no spell, p50", "ms", lambda run: _milliseconds(_undisturbed(run), 50)),
        ("refusal in no spell, p99", "ms", lambda run: _milliseconds(_undisturbed(run), 99)),
        ("refusals in a spell", "%", _share_disturbed),
        ("CPU of a refusal, p50", "ms", lambda run: _milliseconds([each.cpu for each in run.outcomes], 50)),
        ("CPU of a refusal, p99", "ms", lambda run: _milliseconds([each.cpu for each in run.outcomes], 99)),
        ("callers behind their time, p50", "ms", lambda run: _milliseconds([each.behind for each in run.outcomes], 50)),
        ("callers behind their time, p99", "ms", lambda run: _milliseconds([each.behind for each in run.outcomes], 99)),
        ("error of steps, p50", "%", lambda run: None if run.errors is None else 100 * run.errors.step_p50),
        ("error of steps, p90", "%", lambda run: None if run.errors is None else 100 * run.errors.step_p90),
        ("error of totals, p50", "%", lambda run: None if run.errors is None else _percent(run.errors.total_p50)),
        ("error of totals, p90", "%", lambda run: None if run.errors is None else _percent(run.errors.total_p90)),
        (f"retry-after within a factor of {WITHIN:g}", "%", lambda run: _percent(within_factor(run))),
        ("the same, of waits under 30 s", "%", lambda run: _percent(within_factor(_uncapped(run)))),
        ("retry-after, told to true, p50", "x", _median_ratio),
        ("let in when back as told", "%", lambda run: _percent(_welcome(run))),
    )


def _undisturbed(run: Run) -> list[float]:
    """Seconds of refusals that met no spell in which the machine was not itself."""
    return [seconds for seconds, disturbed in _refusals(run) if not disturbed]


def _share_disturbed(run: Run) -> float | None:
    disturbed = [disturbed for _, disturbed in _refusals(run)]
    return 100 * sum(disturbed) / len(disturbed) if disturbed else None


def _refusals(run: Run) -> Iterator[tuple[float, bool]]:
    """Their seconds, and whether they met a spell of the machine; none where that was not looked at."""
    if run.spells is None:
        return
    for each in run.outcomes:
        if each.asked is not None and each.latency is not None:
            yield each.latency, run.spells.meets(each.asked)


def _milliseconds(seconds: Sequence[float | None], percent: int) -> float | None:
    known = [each for each in seconds if each is not None]
    return 1000 * percentile(known, percent) if known else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _median_ratio(run: Run) -> float | None:
    ratios = [each for comeback in run.comebacks if (each := ratio(comeback)) is not None]
    return percentile(ratios, 50) if ratios else None


def _welcome(run: Run) -> float | None:
    back = [comeback.welcome for comeback in run.comebacks if comeback.told is not None]
    return sum(back) / len(back) if back else None


def _uncapped(run: Run) -> Run:
    """Without those who would not have been let in as long as anybody looked."""
    return replace(run, comebacks=[each for each in run.comebacks if each.wait < HORIZON])
