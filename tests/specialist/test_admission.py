"""No sequence is preempted in vain: blocks that the victim shares with the new request stay in use, so they do not
count as freed."""

from kvpool import BlockPool
from octet.clock import ManualClock
from specialist.engines.sim.engine import CostModel, SimEngine, SimModel
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig, StepLoop
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Preempted
from tests.specialist.builders import BARE, make_request


def start(requests: list[Request], capacity: int, block_size: int, num_steps: int) -> Scheduler:
    """Return a scheduler that has run `num_steps` steps with the requests."""
    clock, num_blocks = ManualClock(), capacity + 1
    scheduler = Scheduler(BlockPool(num_blocks, block_size), SchedulerConfig(BARE, watermark=0.0), clock)
    engine = SimEngine(SimModel(), CostModel(), clock, num_blocks=num_blocks, block_size=block_size)
    loop = StepLoop(scheduler, engine)
    for request in requests:
        scheduler.submit(request)
    for _ in range(num_steps):
        loop.run_once()
    return scheduler


def preempted_for(scheduler: Scheduler, newcomer: Request) -> list[str]:
    scheduler.submit(newcomer)
    scheduler.assemble_step()
    return [event.request_id for event in scheduler.take_events() if isinstance(event, Preempted)]


def test_a_victim_with_a_shared_prefix_frees_too_little() -> None:
    """The new request lacks two blocks. The victim holds three, but two of them are shared with the new request, so
    preempting the victim would free only one."""
    low = make_request("low", prompt=(0, 1, 2, 3))
    high = make_request("high", prompt=(9, 8, 7, 6), priority=2)
    scheduler = start([low, high], capacity=8, block_size=2, num_steps=1)
    newcomer = make_request("newcomer", prompt=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), priority=1)
    assert preempted_for(scheduler, newcomer) == []
    assert [seq.request.request_id for seq in scheduler.waiting] == ["newcomer"]


def test_a_victim_that_would_free_nothing_is_passed_over() -> None:
    """The newest running request would be preempted first, but all its blocks are shared with the new request. The
    older one is preempted instead."""
    newest = make_request("newest", prompt=(0, 1), arrival=2.0)
    older = make_request("older", prompt=(9, 8), arrival=1.0)
    scheduler = start([older, newest], capacity=7, block_size=1, num_steps=2)
    text = scheduler.ledger.live["newest"].chain.tokens(0, 3)
    assert preempted_for(scheduler, make_request("newcomer", prompt=(*text, 5), priority=1)) == ["older"]
