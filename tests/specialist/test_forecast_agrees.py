"""The forecast simulates the scheduler's policy, so the times that it predicts must agree with those of a real
scheduler."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from admission.forecast.bookings import Admit, BookedRequests, Booking
from admission.forecast.estimates import StepPrices
from admission.forecast.lengths import AnswerLengths
from admission.forecast.simulation import Simulation
from admission.policy import MAX_OVERTAKE_SECONDS, PrefillHold
from kvpool import BlockPool
from octet.clock import ManualClock
from specialist.engines.sim.engine import CostModel, SimEngine, SimModel
from specialist.scheduling.loop import ReplicaCore, new_admission_controller, step_pace
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig, StepLoop
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Emitted, Finished, FixedBudget, Preempted
from tests.specialist.builders import BARE

CHUNK, AGE_BOUND, ANSWER = 8, 3, 60
NUM_BLOCKS, BLOCK_SIZE = 1000, 16
PRICES = StepPrices(0.5, 0.25, 0.0, 1.0, 0.125, 0.0)
PRESSED, AT_EASE = 29.0, 1e9


class RequestShape(NamedTuple):
    prompt: int
    stack: int = 0
    deadline: float | None = None
    priority: int = 0
    answer: int = ANSWER
    arrival: float = 0.0


class Observed(NamedTuple):
    first: float
    end: float


def new_scheduler(
    clock: ManualClock, hold: PrefillHold | None, max_running: int, pool: BlockPool | None = None
) -> Scheduler:
    config = SchedulerConfig(BARE, max_running=max_running, age_bound=AGE_BOUND, max_step_tokens=2 * CHUNK)
    pool = pool or BlockPool(NUM_BLOCKS + 1, BLOCK_SIZE)
    return Scheduler(pool, config, clock, budget=FixedBudget(CHUNK), hold=hold)


def new_engine(clock: ManualClock, pool: BlockPool) -> SimEngine:
    named = asdict(PRICES)
    cost = CostModel(adapter_switch=named.pop("switch"), preemption=0.0, **named)
    return SimEngine(SimModel(), cost, clock, num_blocks=len(pool.blocks), block_size=pool.block_size)


def run(
    asked: Sequence[RequestShape],
    hold: PrefillHold | None = None,
    max_running: int = 32,
    pool: BlockPool | None = None,
) -> list[Observed] | None:
    """Run the requests. Return the times of the first and the last token of each, or None if a request ends early at
    its deadline or is preempted because the pool is full."""
    clock = ManualClock()
    scheduler = new_scheduler(clock, hold, max_running, pool)
    loop = StepLoop(scheduler, new_engine(clock, scheduler.pool))
    for i, one in enumerate(asked):
        lane = replace(BARE, adapters=_adapters(one))
        prompt = (i, *range(1, one.prompt))
        scheduler.submit(
            Request(f"r{i}", lane, prompt, one.answer, one.priority, arrival=one.arrival, deadline=one.deadline)
        )
    first: dict[str, float] = {}
    end: dict[str, float] = {}
    while len(end) < len(asked):
        loop.run_once()
        for event in scheduler.take_events():
            if isinstance(event, Emitted):
                first.setdefault(event.request_id, clock.now())
            elif isinstance(event, Finished):
                if event.reason == "deadline":
                    return None
                end[event.request_id] = clock.now()
            elif isinstance(event, Preempted) and event.cause == "growth":
                return None
    return [Observed(first[f"r{i}"], end[f"r{i}"]) for i in range(len(asked))]


def forecast(
    asked: Sequence[RequestShape],
    hold: PrefillHold | None = None,
    max_running: int = 32,
    pool: BlockPool | None = None,
) -> list[Observed]:
    scheduler = new_scheduler(ManualClock(), hold, max_running, pool)
    capacity = new_admission_controller(scheduler, 0, PRICES).capacity
    bookings = BookedRequests(AGE_BOUND)
    requests = []
    for i, one in enumerate(asked):
        booking = Booking(
            f"r{i}",
            one.priority,
            one.arrival,
            one.deadline,
            one.prompt,
            0,
            one.answer,
            exact=True,
            adapters=_adapters(one),
        )
        request = bookings.new_request(booking)
        request.estimate_length(AnswerLengths())
        bookings.add(request)
        requests.append(request)
    timeline = Simulation(capacity, PRICES, step_pace(scheduler), {}, bookings.line).run()
    return [Observed(timeline[request].first_at, timeline[request].finish_at) for request in requests]


def _adapters(one: RequestShape) -> tuple[str, ...]:
    return (f"{one.stack:064x}",)


def due_in_order(asked: Sequence[RequestShape]) -> list[RequestShape]:
    """Return the requests with new arrivals and deadlines, so that each is due a second after the one before it."""
    placed = []
    for place, one in enumerate(asked):
        due = AT_EASE + place
        if one.deadline == PRESSED:
            placed.append(one._replace(arrival=due - PRESSED, deadline=due))
        else:
            deadline = None if one.deadline is None else 2 * AT_EASE
            placed.append(one._replace(arrival=due - MAX_OVERTAKE_SECONDS, deadline=deadline))
    return placed


def first_tokens(seen: Sequence[Observed] | None) -> list[float]:
    assert seen is not None
    return [each.first for each in seen]


lengths = st.integers(1, 8).map(lambda halves: halves * CHUNK // 2)
"""With these prompt lengths, no step contains only the last token of a prompt. Such a step would be a decode step."""
deadlines = st.sampled_from([None, PRESSED, AT_EASE])


def prompts(stacks: int) -> st.SearchStrategy[list[RequestShape]]:
    one = st.tuples(lengths, st.integers(0, stacks - 1), deadlines).map(lambda fields: RequestShape(*fields))
    return st.lists(one, min_size=1, max_size=5).map(due_in_order)


@given(prompts(1))
@settings(max_examples=60, deadline=None)
def test_prompts_of_one_stack(asked: list[RequestShape]) -> None:
    assert first_tokens(forecast(asked)) == pytest.approx(first_tokens(run(asked)), rel=1e-6)


@given(prompts(3))
@settings(max_examples=60, deadline=None)
def test_prompts_of_many_stacks(asked: list[RequestShape]) -> None:
    assert first_tokens(forecast(asked)) == pytest.approx(first_tokens(run(asked)), rel=1e-6)


@pytest.mark.parametrize(("deadline", "waits"), [(None, False), (AT_EASE, False), (PRESSED, True)])
def test_a_short_prompt_waits_for_a_long_one_only_if_that_is_urgent(deadline: float | None, waits: bool) -> None:
    asked = due_in_order([RequestShape(30 * CHUNK, 0, deadline), RequestShape(CHUNK // 2, 0, deadline)])
    for long, short in (first_tokens(run(asked)), first_tokens(forecast(asked))):
        assert (short >= long) is waits


HOLD = PrefillHold(chunk_seconds=0.5 + CHUNK * 0.25)
soon = st.none() | st.floats(5.0, 150.0)
answers = st.integers(1, 40)


def requests(stacks: int) -> st.SearchStrategy[list[RequestShape]]:
    one = st.tuples(lengths, st.integers(0, stacks - 1), soon, st.integers(0, 2), answers)
    return st.lists(one.map(lambda fields: RequestShape(*fields)), min_size=1, max_size=7)


@given(requests(stacks=1), st.sampled_from([1, 2, 3, 32]))
@settings(max_examples=100, deadline=None)
def test_holds_priorities_and_preemption_are_foreseen_exactly(asked: list[RequestShape], max_running: int) -> None:
    """The forecast gives the exact times of each request's first token and end. Runs with more than 16 prompt chunks, a
    missed deadline or a full pool are left out."""
    assume(sum(one.prompt for one in asked) <= 16 * CHUNK)
    seen = run(asked, HOLD, max_running)
    assume(seen is not None)
    assert seen is not None
    for each, foreseen in zip(seen, forecast(asked, HOLD, max_running), strict=True):
        assert foreseen == pytest.approx(each, rel=1e-6)


@given(requests(stacks=3), st.sampled_from([2, 32]))
@settings(max_examples=60, deadline=None)
def test_stacks_that_take_turns_to_decode_are_foreseen_but_for_a_few_turns(
    asked: list[RequestShape], max_running: int
) -> None:
    """The forecast does not simulate each stack's decode turns. It counts rounds in which every stack decodes once, so
    it may be off by a few turns."""
    seen = run(asked, HOLD, max_running)
    assume(seen is not None)
    assert seen is not None
    a_turn = 3 * AGE_BOUND * (PRICES.decode_step + len(asked) * PRICES.decode_token) + HOLD.chunk_seconds
    for each, foreseen in zip(seen, forecast(asked, HOLD, max_running), strict=True):
        assert abs(each.end - foreseen.end) <= 2 * a_turn


def test_a_prompt_that_is_held_is_forecast_to_wait() -> None:
    """The first request meets its deadline only if no chunk of the second one runs between the decode steps of the
    first."""
    asked = [RequestShape(CHUNK, deadline=60.0, answer=40), RequestShape(20 * CHUNK, answer=4)]
    held, free = forecast(asked, HOLD), forecast(asked)
    assert held == run(asked, HOLD)
    assert held[0].end < 60.0 < free[0].end
    assert held[1].first > free[1].first


@given(requests(stacks=1), st.integers(16, 40))
@settings(max_examples=100, deadline=None)
def test_requests_enter_when_whole_blocks_are_free(asked: list[RequestShape], num_blocks: int) -> None:
    assume(sum(one.prompt for one in asked) <= 16 * CHUNK)
    asked = [one._replace(deadline=None) for one in asked]
    seen = run(asked, pool=BlockPool(num_blocks + 1, 5))
    assume(seen is not None)
    assert seen is not None
    for each, foreseen in zip(seen, forecast(asked, pool=BlockPool(num_blocks + 1, 5)), strict=True):
        assert foreseen == pytest.approx(each, rel=1e-6)


@pytest.mark.parametrize(
    ("num_blocks", "answers"),
    [
        *((num_blocks, (20, 30, 3, 4, 5)) for num_blocks in (25, 26, 28, 29, 30, 32)),
        (35, (16, 36, 6, 13, 20, 27)),  # the last request enters only if it shares blocks with the first to follow
    ],
)
def test_blocks_that_stay_cached_are_shared_by_the_next_requests(num_blocks: int, answers: tuple[int, ...]) -> None:
    """Queued requests share blocks with a request that ends before the pool has room for all the queued ones. Every
    later forecast must predict the same end times as the first."""
    holder, other, *sharers = answers
    clock = ManualClock()
    scheduler = new_scheduler(clock, None, 32, BlockPool(num_blocks + 1, 4))
    core = ReplicaCore(scheduler, new_engine(clock, scheduler.pool), prices=PRICES)
    prefix = tuple(range(1, 1 + 2 * CHUNK))

    def submit(name: str, prompt: tuple[int, ...], answer: int) -> None:
        assert isinstance(core.submit(Request(name, BARE, prompt, answer, arrival=clock.now())), Admit)

    submit("holder", (*prefix, *range(50, 50 + 2 * CHUNK)), holder)
    submit("other", tuple(range(90, 90 + 4 * CHUNK)), other)
    while any(seq.prefilling for seq in scheduler.running) or len(scheduler.running) < 2:
        core.step()
    core.step()  # the round that is owed to decoding requests
    for i, answer in enumerate(sharers):
        submit(f"sharer {i}", (*prefix, *range(150 + 20 * i, 160 + 22 * i)), answer)
    bookings = core.controller.bookings
    ends = foreseen_ends(core)
    while len(bookings):
        step = core.step()
        for event in core.take_events():
            if isinstance(event, Finished):
                assert clock.now() == pytest.approx(ends.pop(event.request_id), rel=1e-6)
        if step is not None and step.mode == "decode" and not any(seq.prefilling for seq in scheduler.running):
            assert foreseen_ends(core) == pytest.approx(ends, rel=1e-6)


def replica_with(num_blocks: int, block_size: int, running: Sequence[RequestShape]) -> ReplicaCore | None:
    """Return a replica on which the given requests decode; None if not all of them do so at the same time."""
    clock = ManualClock()
    scheduler = new_scheduler(clock, None, 32, BlockPool(num_blocks + 1, block_size))
    core = ReplicaCore(scheduler, new_engine(clock, scheduler.pool), prices=PRICES)
    submit_all(core, running)
    while len(scheduler.running) < len(running) or any(seq.prefilling for seq in scheduler.running):
        core.step()
        if len(core.controller.bookings) < len(running):
            return None
    core.step()  # the round that is owed to decoding requests
    core.take_events()
    return core if len(scheduler.running) == len(running) else None


def submit_all(core: ReplicaCore, asked: Sequence[RequestShape]) -> None:
    for one in asked:
        number = len(core.controller.bookings)
        prompt = (1000 + number, *range(1, one.prompt))
        request = Request(f"r{number}", BARE, prompt, one.answer, one.priority, arrival=core.clock.now())
        assert isinstance(core.submit(request), Admit)


def run_to_the_end(core: ReplicaCore) -> tuple[dict[str, float], list[Preempted]]:
    """Return when each request ended, and the preemptions."""
    ends: dict[str, float] = {}
    preemptions: list[Preempted] = []
    while len(core.controller.bookings):
        core.step()
        for event in core.take_events():
            if isinstance(event, Finished):
                ends[event.request_id] = core.clock.now()
            elif isinstance(event, Preempted):
                preemptions.append(event)
    return ends, preemptions


def test_no_request_is_forecast_to_be_preempted_in_vain() -> None:
    """The third request may preempt only the first, which holds too few blocks. So the scheduler preempts none."""
    core = replica_with(30, 4, [RequestShape(8, priority=0, answer=20), RequestShape(32, priority=2, answer=20)])
    assert core is not None
    submit_all(core, [RequestShape(100, priority=1, answer=4)])
    foreseen = foreseen_ends(core)
    ends, preemptions = run_to_the_end(core)
    assert not preemptions and foreseen == pytest.approx(ends, rel=1e-6)


def shapes(most: int, prompt: int, answer: int) -> st.SearchStrategy[list[RequestShape]]:
    fields = st.tuples(st.integers(1, prompt), st.integers(0, 2), st.integers(answer, 40))
    one = fields.map(lambda each: RequestShape(each[0] * CHUNK // 2, priority=each[1], answer=each[2]))
    return st.lists(one, min_size=1, max_size=most)


@given(shapes(4, 6, 20), shapes(3, 16, 1), st.integers(20, 60))
@settings(max_examples=60, deadline=None)
def test_ends_are_foreseen_exactly_when_requests_arrive_while_others_run(
    running: list[RequestShape], arriving: list[RequestShape], num_blocks: int
) -> None:
    """Runs in which a request is preempted are left out: how much of it stays cached is not forecast."""
    core = replica_with(num_blocks, 5, running)
    assume(core is not None)
    assert core is not None
    submit_all(core, [one for one in arriving if one.prompt + one.answer < 5 * num_blocks - 10])
    foreseen = foreseen_ends(core)
    ends, preemptions = run_to_the_end(core)
    if not preemptions:
        assert foreseen == pytest.approx(ends, rel=1e-6)


def foreseen_ends(core: ReplicaCore) -> dict[str, float]:
    now = core.clock.now()
    foreseen = core.controller.forecast(now)
    assert foreseen is not None
    timeline = foreseen.unchanged
    return {each.booking.key: now + timeline[each].finish_at for each in core.controller.bookings.active}
