"""Figures of callers that return: the share that is admitted, how true their tickets' times are, and the goodput."""

from collections.abc import Callable, Iterator, Sequence

from bench.admission.load import MISSED, OutcomeCounts
from bench.admission.report import BENCH, MUST_SHOW, WITHIN, load_case
from bench.admission.returns import CALLERS, ReturnRun
from bench.admission.simulated import GRAIN
from bench.timing import Targets
from simulation.results import BenchRecord, summary

_ADMITTED = "admitted of those that came back with a ticket"
_TRUE = f"ticket's time within a factor of {WITHIN:g}"


def return_targets(loads: Sequence[float]) -> Targets:
    bounds = {_ADMITTED: ">= 80 %", _TRUE: ">= 75 %"}
    return {(load_case(load), metric): bound for load in loads if load in MUST_SHOW for metric, bound in bounds.items()}


def return_records(runs: Sequence[ReturnRun]) -> Iterator[BenchRecord]:
    for load in sorted({run.load for run in runs}):
        groups = {each.name: [run for run in runs if (run.load, run.callers) == (load, each)] for each in CALLERS}
        for callers in CALLERS:
            group = groups[callers.name]
            for metric, unit, value in _FIGURES:
                samples = [sample for run in group if (sample := value(run)) is not None]
                if samples:
                    yield summary(samples, BENCH, load_case(load), metric, unit, callers.name)
            if callers.beside:
                yield from _compare(load, callers.name, group, callers.beside, groups[callers.beside])


def _compare(
    load: float, name: str, mine: Sequence[ReturnRun], other: str, theirs: Sequence[ReturnRun]
) -> Iterator[BenchRecord]:
    """Yield the goodput relative to that of callers which do the same without tickets, seed by seed."""
    parts: list[tuple[str, Callable[[ReturnRun], OutcomeCounts]]] = [("", lambda run: run.counts)]
    if mine and mine[0].callers.half:
        parts.append((" by the other half", lambda run: run.others))
    for whose, counts in parts:
        for part in ("answers", "tokens", "work"):
            pairs = [(getattr(counts(a), part), getattr(counts(b), part)) for a, b in zip(mine, theirs, strict=True)]
            samples = [a / b for a, b in pairs if b]
            if samples:
                metric = f"{part} in time{whose}, relative to {other}"
                yield summary(samples, BENCH, load_case(load), metric, "x", name)


def _admitted(run: ReturnRun, *, has_ticket: bool) -> float | None:
    came = [each.is_admitted for each in run.comebacks if each.has_ticket is has_ticket]
    return 100 * sum(came) / len(came) if came else None


def _true(run: ReturnRun) -> float | None:
    ratios = [max(each.stated, GRAIN) / max(each.true, GRAIN) for each in run.followed]
    return 100 * sum(1 / WITHIN <= each <= WITHIN for each in ratios) / len(ratios) if ratios else None


_FIGURES: tuple[tuple[str, str, Callable[[ReturnRun], float | None]], ...] = (
    ("answers in time", "1/s", lambda run: run.counts.answers),
    ("tokens in time", "tok/s", lambda run: run.counts.tokens),
    ("work in time", "s/s", lambda run: run.counts.work),
    ("refusals", "", lambda run: run.num_refusals),
    ("tickets", "", lambda run: run.num_tickets),
    ("came back with a ticket", "", lambda run: sum(each.has_ticket for each in run.comebacks)),
    (_ADMITTED, "%", lambda run: _admitted(run, has_ticket=True)),
    ("admitted of those that came back without", "%", lambda run: _admitted(run, has_ticket=False)),
    ("followed tickets", "", lambda run: len(run.followed) if run.followed else None),
    (_TRUE, "%", _true),
    ("missed after admission", "", lambda run: sum(each.end in MISSED for each in run.outcomes)),
)
