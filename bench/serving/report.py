"""Figures and plots for the rounds of `octet bench serve`, for each class and for all classes together."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from bench.serving.callers import ServedAnswer
from bench.serving.systems import LoadRound
from bench.serving.workload import CallerClass
from bench.timing import ENOUGH
from simulation.plots import LIMIT, LINE, MUTED, open_figure
from simulation.results import BenchRecord, percentile, summary

BENCH = "serve"
ALL = "all"
GOODPUT = "goodput"
LATE, BUSY = 50, 0.8  # above this lateness (p99, ms) or share of a core, the load generator distorts the result
_WORST = 99
_PERCENTS = (50, 95, _WORST)
_OF_ALL_ROUNDS = f"p{_WORST}"
Value = Callable[[LoadRound, Sequence[ServedAnswer]], float | None]
_Figure = tuple[str, str, Value]


def class_records(rounds: Sequence[LoadRound], classes: Sequence[CallerClass]) -> list[BenchRecord]:
    return [
        record for mine in by_load(rounds) for each in classes for record in _records(mine, each.name, _CLASS_FIGURES)
    ]


def records(rounds: Sequence[LoadRound]) -> list[BenchRecord]:
    loads = by_load(rounds)
    return [
        *(record for mine in loads for record in _records(mine, ALL, _FIGURES)),
        *(record for mine in loads for record in _ratios(mine)),
    ]


def by_load(rounds: Sequence[LoadRound]) -> list[list[LoadRound]]:
    return [[each for each in rounds if each.load == load] for load in dict.fromkeys(each.load for each in rounds)]


def name_case(name: str, load: str) -> str:
    return f"{name} {load}".rstrip()


def _records(rounds: Sequence[LoadRound], name: str, figures: Sequence[_Figure]) -> Iterator[BenchRecord]:
    case = name_case(name, rounds[0].load)
    for metric, unit, value in figures:
        for system in dict.fromkeys(each.system for each in rounds):
            mine = [each for each in rounds if each.system == system]
            if metric.endswith(_OF_ALL_ROUNDS):  # computed over the answers of all rounds, so without a spread
                pooled = value(mine[0], [answer for each in mine for answer in of_class(each, name)])
                if pooled is not None:
                    yield BenchRecord(BENCH, case, system, metric, unit, pooled, pooled, pooled, len(mine))
                continue
            samples = [found for each in mine if (found := value(each, of_class(each, name))) is not None]
            if samples:
                yield summary(samples, BENCH, case, metric, unit, system)


def _ratios(rounds: Sequence[LoadRound]) -> Iterator[BenchRecord]:
    """Yield the ratio of the first system's goodput to that of each other system, paired by round."""
    first, *others = dict.fromkeys(each.system for each in rounds)
    ours = [each for each in rounds if each.system == first]
    for other in others:
        theirs = [each for each in rounds if each.system == other]
        pairs = [
            (_goodput(mine, mine.answers), _goodput(its, its.answers)) for mine, its in zip(ours, theirs, strict=False)
        ]
        samples = [mine / its for mine, its in pairs if its > 0]
        if samples:
            yield summary(samples, BENCH, f"{name_case(ALL, ours[0].load)} vs {other}", GOODPUT, "x", first)


def of_class(each: LoadRound, name: str) -> list[ServedAnswer]:
    return [answer for answer in each.answers if name in (ALL, answer.ask.caller.name)]


def warnings(rounds: Sequence[LoadRound]) -> list[str]:
    found = []
    late = 1000 * max(percentile([answer.behind for answer in each.answers], 99) for each in rounds)
    busy = max(each.generator / each.lasted for each in rounds)
    if late > LATE:
        found.append(f"warning: the load generator itself was late by {late:.0f} ms (p99): use a lower rate")
    if busy > BUSY:
        found.append(f"warning: the load generator took {100 * busy:.0f} % of a core, which distorts the figures")
    for system in dict.fromkeys(each.system for each in rounds):
        answers = [answer for each in rounds if each.system == system for answer in each.answers]
        found += _short(system, answers)
        reasons = Counter(answer.why for answer in answers if answer.end == "failed")
        found += [f"{system}: failed {count} times: {why}" for why, count in reasons.most_common(3)]
    return found


def ttfts(answers: Sequence[ServedAnswer]) -> list[float]:
    return [answer.ttft for answer in answers if answer.ttft is not None]


def _goodput(each: LoadRound, answers: Sequence[ServedAnswer]) -> float:
    return sum(answer.good for answer in answers) / each.seconds


def _ends(end: str) -> Value:
    return lambda _, answers: sum(answer.end == end for answer in answers)


def _refused(with_retry: bool) -> Value:
    return lambda _, answers: sum(answer.end == "refused" and answer.retry_after == with_retry for answer in answers)


def _at(percent: int, of: Callable[[Sequence[ServedAnswer]], list[float]]) -> Value:
    least = ENOUGH if percent == _WORST else 1

    def value(_: LoadRound, answers: Sequence[ServedAnswer]) -> float | None:
        seconds = of(answers)
        return 1000 * percentile(seconds, percent) if len(seconds) >= least else None

    return value


def _gaps(answers: Sequence[ServedAnswer]) -> list[float]:
    return [after - before for answer in answers for before, after in pairwise(answer.pieces)]


def _totals(answers: Sequence[ServedAnswer]) -> list[float]:
    return [answer.total for answer in answers if answer.end == "answered"]


def _share_good(_: LoadRound, answers: Sequence[ServedAnswer]) -> float | None:
    return 100 * sum(answer.good for answer in answers) / len(answers) if answers else None


def _median(of: Callable[[ServedAnswer], int | None]) -> Value:
    def value(_: LoadRound, answers: Sequence[ServedAnswer]) -> float | None:
        known = [found for answer in answers if (found := of(answer)) is not None]
        return percentile(known, 50) if known else None

    return value


def _short(system: str, answers: Sequence[ServedAnswer]) -> list[str]:
    whole = [answer for answer in answers if answer.end == "answered"]
    num_short = sum(answer.tokens < answer.ask.answer_tokens for answer in whole)
    if 2 * num_short <= len(whole):
        return []
    given, asked = sum(answer.tokens for answer in whole), sum(answer.ask.answer_tokens for answer in whole)
    return [f"warning: {system}: answers had {given:,} tokens; {asked:,} were requested"]


_FIGURES: tuple[_Figure, ...] = (
    ("offered", "requests", lambda _, answers: len(answers)),
    ("answered", "requests", _ends("answered")),
    ("refused with retry-after", "requests", _refused(with_retry=True)),
    ("refused without retry-after", "requests", _refused(with_retry=False)),
    ("ended at their deadline", "requests", _ends("expired")),
    ("failed", "requests", _ends("failed")),
    ("within both deadlines", "requests", lambda _, answers: sum(answer.good for answer in answers)),
    ("share within both deadlines", "%", _share_good),
    (GOODPUT, "requests/s", _goodput),
    (f"{GOODPUT}, tokens", "tok/s", lambda each, answers: sum(a.tokens for a in answers if a.good) / each.seconds),
    ("throughput", "tok/s", lambda each, answers: sum(answer.tokens for answer in answers) / each.lasted),
    *((f"TTFT p{percent}", "ms", _at(percent, ttfts)) for percent in _PERCENTS),
    *((f"ITL p{percent}", "ms", _at(percent, _gaps)) for percent in _PERCENTS),
    *((f"total p{percent}", "ms", _at(percent, _totals)) for percent in _PERCENTS),
    ("prompt p50", "tokens", _median(lambda answer: answer.prompt_tokens)),
    ("answer p50", "tokens", _median(lambda answer: answer.tokens if answer.end == "answered" else None)),
    ("load generator late, p99", "ms", _at(99, lambda answers: [answer.behind for answer in answers])),
    ("load generator's CPU", "% of a core", lambda each, _: 100 * each.generator / each.lasted),
    ("CPU of the waiting systems", "% of a core", lambda each, _: each.waiting and 100 * each.waiting / each.lasted),
)
_CLASS_FIGURES: tuple[_Figure, ...] = (
    ("offered", "", lambda _, answers: len(answers)),
    ("answered", "", _ends("answered")),
    ("refused", "", _ends("refused")),
    ("expired", "", _ends("expired")),
    ("failed", "", _ends("failed")),
    ("in time", "%", _share_good),
    (GOODPUT, "req/s", _goodput),
    *((f"TTFT p{percent}", "ms", _at(percent, ttfts)) for percent in _PERCENTS),
    ("ITL p99", "ms", _at(99, _gaps)),
    ("total p50", "ms", _at(50, _totals)),
    ("total p99", "ms", _at(99, _totals)),
)


_COLORS = (LINE, LIMIT, "#3a7d44", "#7b4fa3", MUTED)


def plot_serve(path: Path, rounds: Sequence[LoadRound], classes: Sequence[CallerClass]) -> None:
    with open_figure(path, 10) as figure:
        goodput, first = figure.subplots(1, 2)
        systems = list(dict.fromkeys(each.system for each in rounds))
        loads = by_load(rounds)
        _draw_goodput(goodput, loads, systems, [each.name for each in classes])
        _draw_first(first, loads[-1], systems, classes)


def _draw_goodput(
    axes: Any, loads: Sequence[Sequence[LoadRound]], systems: Sequence[str], names: Sequence[str]
) -> None:
    width = 0.8 / len(systems)
    cases = [(mine, name) for mine in loads for name in names]
    for place, system in enumerate(systems):
        shares = [_median_share(mine, system, name) for mine, name in cases]
        at = [index + (place - (len(systems) - 1) / 2) * width for index in range(len(cases))]
        axes.bar(at, shares, width, color=_COLORS[place % len(_COLORS)], label=system)
    words = [f"{name}\n{mine[0].load.removesuffix(' of capacity')}".rstrip() for mine, name in cases]
    axes.set_xticks(range(len(cases)), words, fontsize=9 if len(cases) > len(names) else None)
    axes.set_ylim(0, 105)
    axes.set_ylabel("within both deadlines, % of offered requests")
    axes.set_title("Goodput by class", loc="left", fontsize=12)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(systems), borderaxespad=0)


def _median_share(rounds: Sequence[LoadRound], system: str, name: str) -> float:
    shares = [_share_good(each, of_class(each, name)) or 0.0 for each in rounds if each.system == system]
    return median(shares) if shares else 0.0


def _draw_first(axes: Any, rounds: Sequence[LoadRound], systems: Sequence[str], classes: Sequence[CallerClass]) -> None:
    for place, system in enumerate(systems):
        answers = [answer for each in rounds if each.system == system for answer in of_class(each, ALL)]
        times = sorted(ttfts(answers))
        shares = [100 * (index + 1) / len(answers) for index in range(len(times))]
        color = _COLORS[place % len(_COLORS)]
        axes.step([1000 * each for each in times], shares, where="post", color=color, label=system)
    for each in classes:
        axes.axvline(1000 * each.ttft, color=MUTED, linestyle=":", linewidth=1)
        axes.annotate(each.name, xy=(1000 * each.ttft, 2), color=MUTED, rotation=90, ha="right", fontsize=9)
    axes.set_xscale("log")
    axes.set_ylim(0, 105)
    axes.set_xlabel("ms to the first token (log scale)")
    axes.set_ylabel("% of offered requests")
    axes.set_title(f"First tokens {rounds[0].load}".rstrip(), loc="left", fontsize=12)
