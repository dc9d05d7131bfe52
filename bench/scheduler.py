"""What scheduling itself costs: a step, a submission, a cancellation."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bench.measure import Subject, Timing, Work, interleave
from bench.record import Record
from bench.replica import ANSWER, Replica
from bench.situations import (
    DRAFT_WINDOW,
    SHORT_PROMPT,
    blocked,
    decoding,
    outgrowing,
    overtaken,
    prefilling,
    queueing,
    speculating,
)
from bench.table import Targets
from specialist.step import StepOutcome

BENCH = "scheduler"
STEP = "step"
STEPS_A_RUN = 16
"""Tokens in a block: in every run each sequence takes exactly one new block."""

NUMS_RUNNING = (1, 8, 32, 128)
NUMS_WAITING = (100, 1_000, 10_000)
NUM_RUNNING = 32
NUM_SUBMITTED = 1_000
SHARE_CANCELLED = 0.6
"""Enough of a queue to have the dead swept out of it once."""
LONG_CONTEXT = 4_096


def measure_scheduler(runs: int, nums_waiting: Sequence[int] = NUMS_WAITING) -> list[Record]:
    timings = interleave(list(_subjects(nums_waiting)), runs)
    growth = _growth(timings, fewest=min(nums_waiting), most=max(nums_waiting))
    return [*(timing.record(BENCH) for timing in timings), *_per_sequence(timings), growth]


def scheduler_targets() -> Targets:
    growth_case = _growth_case(min(NUMS_WAITING), max(NUMS_WAITING))
    return {(_running_case(NUM_RUNNING), STEP): "< 200 µs", (growth_case, STEP): "at most 2 x"}


def _subjects(nums_waiting: Sequence[int]) -> Iterator[Subject]:
    yield from _decoding_subjects(nums_waiting)
    yield from _queue_subjects(max(nums_waiting))
    yield from _blocked_subjects()
    yield from _prefill_subjects()
    yield from _speculation_subjects()
    yield from _preemption_subjects()


def _decoding_subjects(nums_waiting: Sequence[int]) -> Iterator[Subject]:
    for num_running in NUMS_RUNNING:
        yield _steps(_running_case(num_running), partial(decoding, num_running))
    for num_waiting in nums_waiting:
        yield _steps(_waiting_case(num_waiting), partial(queueing, NUM_RUNNING, num_waiting))


def _queue_subjects(num_waiting: int) -> Iterator[Subject]:
    case = f"{num_waiting:,} waiting"
    num_cancelled = int(SHARE_CANCELLED * num_waiting)
    yield Subject(case, "submit", "µs", partial(_ready_to_submit, num_waiting), NUM_SUBMITTED)
    ready = partial(_ready_to_cancel, num_waiting, num_cancelled)
    yield Subject(case, "cancel from the middle", "µs", ready, num_cancelled)


def _blocked_subjects() -> Iterator[Subject]:
    for length, cached in ((1_000, False), (50_000, False), (50_000, True)):
        prefix = ", all of it cached" if cached else ""
        case = f"{NUM_RUNNING} running, blocked head of {length:,} tokens{prefix}"
        yield _steps(case, partial(blocked, NUM_RUNNING, length, cached=cached))
    for context in (SHORT_PROMPT, 1_024):
        case = f"{NUM_RUNNING} running on {context:,} tokens, blocked head is more important"
        yield _steps(case, partial(blocked, NUM_RUNNING, 50_000, prompt_length=context, more_important=True))


def _prefill_subjects() -> Iterator[Subject]:
    yield _steps("chunks of 2,048 of a prompt of 50,000", partial(prefilling, 50_000, 2_048))
    build = partial(prefilling, 50_000, 256, NUM_RUNNING)
    yield _steps(f"{NUM_RUNNING} running, in turns with chunks of 256", build, _in_turns)


def _speculation_subjects() -> Iterator[Subject]:
    for context in (SHORT_PROMPT, LONG_CONTEXT):
        for accepted in (True, False):
            kept = "all" if accepted else "none"
            case = f"{NUM_RUNNING} running on {context:,} tokens, {DRAFT_WINDOW} drafts, {kept} accepted"
            yield _steps(case, partial(speculating, NUM_RUNNING, context, accepted=accepted))


def _preemption_subjects() -> Iterator[Subject]:
    for context in (SHORT_PROMPT, LONG_CONTEXT):
        case = f"{NUM_RUNNING} running on {context:,} tokens, 1 preempted to grow"
        yield _steps(case, partial(outgrowing, NUM_RUNNING, context), _one)
    for num_victims in (1, 16):
        case = f"{NUM_RUNNING} running, {num_victims} preempted to admit"
        yield _steps(case, partial(overtaken, NUM_RUNNING, num_victims), _one)


def _same(replica: Replica) -> list[StepOutcome]:
    return [replica.answer()] * STEPS_A_RUN


def _in_turns(replica: Replica) -> list[StepOutcome]:
    """To a chunk inside a prompt, then to a step of those who decode."""
    return [replica.answer(), StepOutcome(((ANSWER,),) * NUM_RUNNING)] * (STEPS_A_RUN // 2)


def _one(replica: Replica) -> list[StepOutcome]:
    return [replica.answer()]


def _steps(case: str, build: Callable[[], Replica], answers: Callable[[Replica], list[StepOutcome]] = _same) -> Subject:
    operations = 1 if answers is _one else STEPS_A_RUN
    return Subject(case, STEP, "µs", partial(_ready_to_step, build, answers), operations)


def _ready_to_step(build: Callable[[], Replica], answers: Callable[[Replica], list[StepOutcome]]) -> Work:
    replica = build()
    outcomes = answers(replica)

    def work() -> None:
        for outcome in outcomes:
            replica.step(outcome)

    return work


def _ready_to_submit(num_waiting: int) -> Work:
    replica = queueing(NUM_RUNNING, num_waiting)
    return partial(replica.submit, replica.requests(NUM_SUBMITTED, SHORT_PROMPT))


def _ready_to_cancel(num_waiting: int, num_cancelled: int) -> Work:
    scheduler = queueing(NUM_RUNNING, num_waiting).scheduler
    first = (num_waiting - num_cancelled) // 2
    names = [seq.request.request_id for seq in scheduler.waiting][first : first + num_cancelled]

    def work() -> None:
        for name in names:
            scheduler.end(name, "cancelled")

    return work


def _per_sequence(timings: Sequence[Timing]) -> Iterator[Record]:
    found = _step_timings(timings)
    for num_running in NUMS_RUNNING:
        yield found[_running_case(num_running)].scaled(BENCH, "step per sequence", 1 / num_running)


def _growth(timings: Sequence[Timing], fewest: int, most: int) -> Record:
    found = _step_timings(timings)
    return found[_waiting_case(most)].ratio(found[_waiting_case(fewest)], BENCH, _growth_case(fewest, most), STEP)


def _step_timings(timings: Sequence[Timing]) -> dict[str, Timing]:
    return {timing.subject.case: timing for timing in timings if timing.subject.metric == STEP}


def _running_case(num_running: int) -> str:
    return f"{num_running} running"


def _waiting_case(num_waiting: int) -> str:
    return f"{NUM_RUNNING} running, {num_waiting:,} waiting"


def _growth_case(fewest: int, most: int) -> str:
    return f"{most:,} waiting vs {fewest:,}"
