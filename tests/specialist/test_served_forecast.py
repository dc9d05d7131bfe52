"""A replica's forecast agrees with its scheduler under a server's settings: a timed budget, and prompts that are held
back while other requests decode.

The forecast once ignored that prompts are held back, and so refused requests that would have delayed no other request.
"""

from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.forecast.bookings import Admit, Refuse
from admission.forecast.estimates import StepPrices
from kvpool import BlockPool
from octet.clock import ManualClock
from octet.identity import Lane
from specialist.engines.sim.engine import CostModel, SimEngine, SimModel
from specialist.scheduling.loop import ReplicaCore
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Emitted, Finished
from specialist.server.replica import create_scheduler
from specialist.server.settings import ReplicaSettings

LANE = Lane("writer", "0" * 64)
PRICES = StepPrices(0.0, 0.1 / 64, 0.0, 0.02, 0.0, 0.0)
"""A chunk of the first 64 tokens takes 0.1 s, the step time that a server allows."""
NUM_BLOCKS = 1025


def served() -> ReplicaCore:
    clock = ManualClock()
    pool = BlockPool(NUM_BLOCKS, 16)
    scheduler = create_scheduler(pool, LANE, ReplicaSettings("writer", "sim"), clock, "sim")
    named = asdict(PRICES)
    cost = CostModel(adapter_switch=named.pop("switch"), preemption=0.0, **named)
    engine = SimEngine(SimModel(), cost, clock, num_blocks=NUM_BLOCKS, block_size=16)
    return ReplicaCore(scheduler, engine, prices=PRICES)


def decoding(deadline: float) -> ReplicaCore:
    """Return a core whose request has generated 11 of its 100 tokens. Each takes 20 ms."""
    core = served()
    assert isinstance(core.submit(Request("early", LANE, tuple(range(64)), 100, deadline=deadline)), Admit)
    for _ in range(11):
        core.step()
    core.take_events()
    return core


def late_request(core: ReplicaCore, num_prompt: int, num_tokens: int, seconds: float) -> Request:
    now = core.clock.now()
    return Request("late", LANE, tuple(range(100, 100 + num_prompt)), num_tokens, arrival=now, deadline=now + seconds)


def run_to_end(core: ReplicaCore) -> dict[str, tuple[float, float, str]]:
    """Return, for each request, the time of the first token, the time of the end, and the finish reason."""
    first: dict[str, float] = {}
    ends: dict[str, tuple[float, float, str]] = {}
    while core.step() is not None:
        for event in core.take_events():
            if isinstance(event, Emitted):
                first.setdefault(event.request_id, core.clock.now())
            elif isinstance(event, Finished):
                ends[event.request_id] = first.get(event.request_id, 0.0), core.clock.now(), event.reason
    return ends


def test_a_prompt_that_would_be_held_is_not_refused() -> None:
    """Ten chunks between the decode steps of the earlier request would make that request late, so the scheduler holds
    them back."""
    core = decoding(deadline=2.7)
    decision = core.submit(late_request(core, num_prompt=640, num_tokens=50, seconds=30.0))
    assert isinstance(decision, Admit), decision
    ends = run_to_end(core)
    assert ends["early"][2] == ends["late"][2] == "length"
    assert ends["early"][1] <= 2.7


def test_a_prompt_that_would_be_held_for_too_long_is_refused() -> None:
    """The request needs 1.2 s and has 2.1 s, but its prompt would be held for 1.8 s."""
    core = decoding(deadline=2.4)
    decision = core.submit(late_request(core, num_prompt=640, num_tokens=10, seconds=2.1))
    assert isinstance(decision, Refuse) and decision.reason == "deadline_unreachable", decision


@pytest.mark.parametrize("seconds", [2.4, 2.7, 3.5, 30.0])
@given(num_prompt=st.integers(2, 1500), num_tokens=st.integers(1, 60))
@settings(max_examples=10, deadline=None)
def test_an_admitted_request_ends_no_later_than_forecast(seconds: float, num_prompt: int, num_tokens: int) -> None:
    core = decoding(deadline=seconds)
    now = core.clock.now()
    decision = core.submit(late_request(core, num_prompt, num_tokens, 60.0))
    assert isinstance(decision, Admit) and decision.outlook is not None, decision
    ends = run_to_end(core)
    assert ends["early"][2] == "length" and ends["early"][1] <= seconds
    assert ends["late"][1] - now <= 1.05 * decision.outlook.total + 0.1
