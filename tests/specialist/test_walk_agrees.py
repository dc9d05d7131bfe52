"""The forecast deals out chunks of prompt as the scheduler does."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.forecast import Booking, Prices
from admission.forecast.books import Books
from admission.forecast.entry import rank_of
from admission.forecast.lengths import Lengths
from admission.forecast.walk import Pace, Walk
from kvpool import BlockPool
from octet.clock import ManualClock
from octet.due import MOST_SECONDS
from specialist.budget import FixedBudget
from specialist.config import SchedulerConfig
from specialist.engines.sim import CostModel, SimEngine, SimModel
from specialist.events import Emitted
from specialist.front import new_desk
from specialist.loop import StepLoop
from specialist.request import Request
from specialist.scheduler import Scheduler
from tests.specialist.builders import BARE

CHUNK, AGE_BOUND, ANSWER = 8, 3, 400
NUM_BLOCKS, BLOCK_SIZE = 1000, 16
PRICES = Prices(0.5, 0.25, 0.0, 1.0, 0.125, 0.0)
PRESSED, AT_EASE = 29.0, 1e9


class Asked(NamedTuple):
    prompt: int
    stack: int = 0
    deadline: float | None = None


def scheduler_for(clock: ManualClock) -> Scheduler:
    config = SchedulerConfig(BARE, age_bound=AGE_BOUND, max_step_tokens=2 * CHUNK)
    return Scheduler(BlockPool(NUM_BLOCKS + 1, BLOCK_SIZE), config, clock, budget=FixedBudget(CHUNK))


def first_tokens(asked: Sequence[Asked]) -> list[float]:
    """When each has its first one: all come at once, and nobody's answer ends meanwhile."""
    clock = ManualClock()
    scheduler = scheduler_for(clock)
    named = asdict(PRICES)
    cost = CostModel(adapter_switch=named.pop("switch"), preemption=0.0, **named)
    engine = SimEngine(SimModel(), cost, clock, num_blocks=NUM_BLOCKS + 1, block_size=BLOCK_SIZE)
    loop = StepLoop(scheduler, engine)
    for i, one in enumerate(asked):
        lane = replace(BARE, adapters=_adapters(one))
        prompt = (i, *range(1, one.prompt))
        arrival, deadline = _times(i, one)
        scheduler.submit(Request(f"r{i}", lane, prompt, ANSWER, arrival=arrival, deadline=deadline))
    first_at: dict[str, float] = {}
    while len(first_at) < len(asked):
        assert loop.run_once() is not None
        for event in scheduler.take_events():
            if isinstance(event, Emitted):
                first_at.setdefault(event.request_id, clock.now())
    return [first_at[f"r{i}"] for i in range(len(asked))]


def forecast(asked: Sequence[Asked]) -> list[float]:
    room = new_desk(scheduler_for(ManualClock()), 0, PRICES).room
    books = Books()
    for i, one in enumerate(asked):
        booking = Booking(f"r{i}", 0, *_times(i, one), one.prompt, 0, ANSWER, exact=True, adapters=_adapters(one))
        entry = books.new_entry(booking)
        entry.guess(Lengths())
        books.add(entry)
    Walk(room, PRICES, Pace(CHUNK)).run([], books.line)
    return [entry.first_at for entry in sorted(books.entries, key=rank_of)]


def _adapters(one: Asked) -> tuple[str, ...]:
    return (f"{one.stack:064x}",)


def _times(place: int, one: Asked) -> tuple[float, float | None]:
    """Arrival and deadline, both far from now: due one behind the other, the pressed with less time from the first."""
    due = AT_EASE + place
    return (due - PRESSED, due) if one.deadline == PRESSED else (due - MOST_SECONDS, one.deadline and 2 * AT_EASE)


lengths = st.integers(1, 8).map(lambda halves: halves * CHUNK // 2)
"""Of a prompt: no step takes its last token alone, as that would be a step of an answer."""
deadlines = st.sampled_from([None, PRESSED, AT_EASE])


@given(st.lists(st.builds(Asked, lengths, st.just(0), deadlines), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_of_one_stack(asked: list[Asked]) -> None:
    assert forecast(asked) == pytest.approx(first_tokens(asked), rel=1e-6)


@given(st.lists(st.builds(Asked, lengths, st.integers(0, 2), deadlines), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_of_many_stacks(asked: list[Asked]) -> None:
    assert forecast(asked) == pytest.approx(first_tokens(asked), rel=1e-6)


@pytest.mark.parametrize(("deadline", "waits"), [(None, False), (AT_EASE, False), (PRESSED, True)])
def test_a_short_prompt_waits_for_a_long_one_only_where_that_is_pressed(deadline: float | None, waits: bool) -> None:
    asked = [Asked(30 * CHUNK, 0, deadline), Asked(CHUNK // 2, 0, deadline)]
    for long, short in (first_tokens(asked), forecast(asked)):
        assert (short >= long) is waits
