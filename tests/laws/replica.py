"""A whole replica with the sim engine, which runs a list of requests to completion."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvpool import BlockPool, HostCache
from octet.clock import ManualClock
from specialist.engines.sim.engine import CostModel, FaultSource, SimEngine, SimHostMemory, SimModel
from specialist.scheduling.ledger import Hybrid, PureAttention
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig, StepLoop
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Emitted, Event, Finished, FixedBudget, Proposer, RowBuilder
from tests.laws.scenario import BARE


@dataclass(frozen=True, slots=True)
class Shape:
    """Settings that must never change an answer."""

    num_blocks: int = 64
    block_size: int = 4
    prefix_cache: bool = True
    chunk_tokens: int = 16
    max_running: int = 8
    age_bound: int = 4
    hybrid: bool = False
    host_blocks: int = 0  # evicted blocks that stay on the host; unused by hybrids and without a prefix cache


class Replica:
    def __init__(
        self,
        shape: Shape,
        *,
        proposer: Proposer | None = None,
        faults: FaultSource = lambda step: None,
        model: SimModel | None = None,
        cost: CostModel | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.model = model or SimModel(hybrid=shape.hybrid)
        self.engine = SimEngine(
            self.model,
            cost or CostModel(),
            self.clock,
            num_blocks=shape.num_blocks,
            block_size=shape.block_size,
            faults=faults,
        )
        host = None
        if shape.host_blocks and shape.prefix_cache and not shape.hybrid:
            host = HostCache(shape.host_blocks, SimHostMemory(self.engine.memory, shape.host_blocks))
        self.pool = BlockPool(shape.num_blocks, shape.block_size, prefix_cache=shape.prefix_cache, host=host)
        self.scheduler = Scheduler(
            self.pool,
            SchedulerConfig(
                BARE,
                max_running=shape.max_running,
                max_step_tokens=shape.chunk_tokens,
                age_bound=shape.age_bound,
            ),
            self.clock,
            budget=FixedBudget(shape.chunk_tokens),
            states=Hybrid(self.pool, self.engine.new_state, 1 << 20) if shape.hybrid else PureAttention(self.pool),
            proposer=proposer,
        )
        self.loop = StepLoop(self.scheduler, self.engine)
        self.events: list[Event] = []

    def propose(self, proposer: Proposer) -> None:
        """Let the scheduler speculate with this proposer. Call this before any request is submitted."""
        self.scheduler.rows = RowBuilder(self.pool, proposer, self.scheduler.config.max_step_tokens)
        self.scheduler._speculates = True
        self.scheduler.ledger._ended = self.scheduler.rows.ended

    def run(self, requests: Iterable[Request]) -> dict[str, tuple[int, ...]]:
        """Run all requests to completion. Return the answer to each."""
        for request in requests:
            self.scheduler.submit(request)
        while self.loop.run_once() is not None:
            self.pool.check()
        self.events += self.scheduler.take_events()
        return self.answers()

    def answers(self) -> dict[str, tuple[int, ...]]:
        said: dict[str, tuple[int, ...]] = {}
        for event in self.events:
            if isinstance(event, Emitted):
                said[event.request_id] = said.get(event.request_id, ()) + event.tokens
            elif isinstance(event, Finished):
                said.setdefault(event.request_id, ())
        return said

    def ends(self) -> dict[str, str]:
        return {event.request_id: event.reason for event in self.events if isinstance(event, Finished)}
