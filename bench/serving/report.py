"""Rounds as figures: of each class, and of all."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from bench.measure import ENOUGH, percentile, summary
from bench.record import Record
from bench.serving.answer import Answer
from bench.serving.classes import CallerClass
from bench.serving.load import Round

BENCH = "serve"
ALL = "all"
GOODPUT = "goodput"
LATE, BUSY = 0.05, 0.8
"""From so many seconds of lateness (p99), or such a share of a core, a load generator is part of what it measures."""
_WORST = 99
_PERCENTS = (50, 95, _WORST)
_OF_ALL_ROUNDS = f"p{_WORST}"
_Figure = tuple[str, str, Callable[[Round, Sequence[Answer]], float | None]]


def class_records(rounds: Sequence[Round], classes: Sequence[CallerClass]) -> list[Record]:
    """What became of each class: medians over the rounds. A case is a class under a load."""
    return [
        record for mine in by_load(rounds) for each in classes for record in _records(mine, each.name, _CLASS_FIGURES)
    ]


def records(rounds: Sequence[Round]) -> list[Record]:
    """Of all classes together, a system's figures beside the others'."""
    loads = by_load(rounds)
    return [
        *(record for mine in loads for record in _records(mine, ALL, _FIGURES)),
        *(record for mine in loads for record in _ratios(mine)),
    ]


def by_load(rounds: Sequence[Round]) -> list[list[Round]]:
    return [[each for each in rounds if each.load == load] for load in dict.fromkeys(each.load for each in rounds)]


def case_of(name: str, load: str) -> str:
    return f"{name} {load}".rstrip()


def _records(rounds: Sequence[Round], name: str, figures: Sequence[_Figure]) -> Iterator[Record]:
    case = case_of(name, rounds[0].load)
    for metric, unit, value in figures:
        for system in dict.fromkeys(each.system for each in rounds):
            mine = [each for each in rounds if each.system == system]
            if metric.endswith(_OF_ALL_ROUNDS):
                yield from _pooled(mine, name, (metric, unit, value))
                continue
            samples = [found for each in mine if (found := value(each, of_class(each, name))) is not None]
            if samples:
                yield summary(samples, BENCH, case, metric, unit, system)


def _pooled(mine: Sequence[Round], name: str, figure: _Figure) -> Iterator[Record]:
    """Of the answers of all rounds together: no spread."""
    metric, unit, value = figure
    found = value(mine[0], [answer for each in mine for answer in of_class(each, name)])
    if found is not None:
        yield Record(BENCH, case_of(name, mine[0].load), mine[0].system, metric, unit, found, found, found, len(mine))


def _ratios(rounds: Sequence[Round]) -> Iterator[Record]:
    """The first system over each other one, round by round. A peer that failed has no later rounds."""
    first, *others = dict.fromkeys(each.system for each in rounds)
    ours = [each for each in rounds if each.system == first]
    for other in others:
        theirs = [each for each in rounds if each.system == other]
        pairs = [
            (_goodput(mine, mine.answers), _goodput(its, its.answers)) for mine, its in zip(ours, theirs, strict=False)
        ]
        samples = [mine / its for mine, its in pairs if its > 0]
        if samples:
            yield summary(samples, BENCH, f"{case_of(ALL, ours[0].load)} vs {other}", GOODPUT, "x", first)


def of_class(each: Round, name: str) -> list[Answer]:
    return [answer for answer in each.answers if name in (ALL, answer.ask.caller.name)]


def warnings(rounds: Sequence[Round]) -> list[str]:
    """Where the load generator could not keep up, and what was behind failures."""
    found = []
    late = max(percentile([answer.behind for answer in each.answers], 99) for each in rounds)
    busy = max(each.generator / each.lasted for each in rounds)
    if late > LATE:
        found.append(
            f"warning: the load generator was late itself, by {1000 * late:.0f} ms (p99): ask for a lower rate"
        )
    if busy > BUSY:
        found.append(f"warning: the load generator took {100 * busy:.0f} % of a core: what it measures is also itself")
    for system in dict.fromkeys(each.system for each in rounds):
        found += _short(system, [answer for each in rounds if each.system == system for answer in each.answers])
        reasons = Counter(
            answer.why for each in rounds if each.system == system for answer in each.answers if answer.end == "failed"
        )
        found += [f"{system}: failed {count} times: {why}" for why, count in reasons.most_common(3)]
    return found


def ttfts(answers: Sequence[Answer]) -> list[float]:
    """Of whoever got a token at all."""
    return [answer.ttft for answer in answers if answer.ttft is not None]


def _goodput(each: Round, answers: Sequence[Answer]) -> float:
    return sum(answer.good for answer in answers) / each.seconds


def _ends(end: str) -> Callable[[Round, Sequence[Answer]], float]:
    return lambda _, answers: sum(answer.end == end for answer in answers)


def _refused(told: bool) -> Callable[[Round, Sequence[Answer]], float]:
    return lambda _, answers: sum(answer.end == "refused" and answer.retry_after == told for answer in answers)


def _at(
    percent: int, of: Callable[[Sequence[Answer]], list[float]]
) -> Callable[[Round, Sequence[Answer]], float | None]:
    least = ENOUGH if percent == _WORST else 1

    def value(_: Round, answers: Sequence[Answer]) -> float | None:
        seconds = of(answers)
        return 1000 * percentile(seconds, percent) if len(seconds) >= least else None

    return value


def _gaps(answers: Sequence[Answer]) -> list[float]:
    return [after - before for answer in answers for before, after in pairwise(answer.pieces)]


def _totals(answers: Sequence[Answer]) -> list[float]:
    return [answer.total for answer in answers if answer.end == "answered"]


def _share_good(_: Round, answers: Sequence[Answer]) -> float | None:
    return 100 * sum(answer.good for answer in answers) / len(answers) if answers else None


def _waiting(each: Round, _: Sequence[Answer]) -> float | None:
    return None if each.waiting is None else 100 * each.waiting / each.lasted


def _prompt(_: Round, answers: Sequence[Answer]) -> float | None:
    known = [answer.prompt_tokens for answer in answers if answer.prompt_tokens is not None]
    return percentile(known, 50) if known else None


def _answer(_: Round, answers: Sequence[Answer]) -> float | None:
    whole = [answer.tokens for answer in answers if answer.end == "answered"]
    return percentile(whole, 50) if whole else None


def _short(system: str, answers: Sequence[Answer]) -> list[str]:
    """An answer that ends early is good too; but who is given shorter ones has less to do."""
    whole = [answer for answer in answers if answer.end == "answered"]
    num_short = sum(answer.tokens < answer.ask.answer_tokens for answer in whole)
    if 2 * num_short <= len(whole):
        return []
    given, asked = sum(answer.tokens for answer in whole), sum(answer.ask.answer_tokens for answer in whole)
    return [f"warning: {system}: answers had {given:,} tokens, asked for were {asked:,}"]


_FIGURES: tuple[_Figure, ...] = (
    ("offered", "requests", lambda _, answers: len(answers)),
    ("answered", "requests", _ends("answered")),
    ("refused, told when to come again", "requests", _refused(told=True)),
    ("refused, not told", "requests", _refused(told=False)),
    ("ended at their deadline", "requests", _ends("expired")),
    ("failed", "requests", _ends("failed")),
    ("within both deadlines", "requests", lambda _, answers: sum(answer.good for answer in answers)),
    ("within both deadlines, of the offered", "%", _share_good),
    (GOODPUT, "requests/s", _goodput),
    (f"{GOODPUT}, tokens", "tok/s", lambda each, answers: sum(a.tokens for a in answers if a.good) / each.seconds),
    ("throughput", "tok/s", lambda each, answers: sum(answer.tokens for answer in answers) / each.lasted),
    *((f"TTFT p{percent}", "ms", _at(percent, ttfts)) for percent in _PERCENTS),
    *((f"ITL p{percent}", "ms", _at(percent, _gaps)) for percent in _PERCENTS),
    *((f"total p{percent}", "ms", _at(percent, _totals)) for percent in _PERCENTS),
    ("prompt p50", "tokens", _prompt),
    ("answer p50", "tokens", _answer),
    ("load generator late, p99", "ms", _at(99, lambda answers: [answer.behind for answer in answers])),
    ("load generator's CPU", "% of a core", lambda each, _: 100 * each.generator / each.lasted),
    ("CPU of whoever waits", "% of a core", _waiting),
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
