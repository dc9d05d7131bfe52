"""A scheduler without an engine: every step is answered at once, so that nothing but scheduling takes time."""

from itertools import count

from bench.pool_states import BLOCK_SIZE, LANE, new_pool
from kvpool import BlockTable, TokenChain
from octet.clock import ManualClock
from specialist.budget import FixedBudget
from specialist.config import SchedulerConfig
from specialist.request import Request
from specialist.scheduler import Scheduler
from specialist.sequence import Sequence
from specialist.speculation import Proposer
from specialist.step import Step, StepOutcome

ANSWER = 7
"""The token that is always sampled."""

_ENDLESS = 1_000_000


class Replica:
    def __init__(
        self,
        num_blocks: int,
        *,
        max_running: int = 128,
        chunk: int = _ENDLESS,
        watermark: float = 0.0,
        proposer: Proposer | None = None,
    ) -> None:
        """`chunk` prompt tokens are taken at a time, whether anyone decodes or not."""
        self.pool = new_pool(num_blocks)
        config = SchedulerConfig(LANE, max_running=max_running, max_step_tokens=chunk, watermark=watermark)
        self.scheduler = Scheduler(self.pool, config, ManualClock(), budget=FixedBudget(chunk), proposer=proposer)
        self._names = count(1)

    @property
    def in_flight(self) -> Step:
        step = self.scheduler.in_flight
        if step is None:
            raise RuntimeError("nothing is in flight")
        return step

    @property
    def running(self) -> list[Sequence]:
        return list(self.scheduler.running)

    def requests(self, how_many: int, prompt_length: int, *, priority: int = 0, draft_window: int = 0) -> list[Request]:
        """Prompts that share nothing, answers without end, deadlines that never come."""
        return [
            Request(
                request_id=f"r{name}",
                lane=LANE,
                prompt=(name, *range(1, prompt_length)),
                max_tokens=_ENDLESS,
                priority=priority,
                deadline=1e9,
                draft_window=draft_window,
            )
            for name in (next(self._names) for _ in range(how_many))
        ]

    def submit(self, requests: list[Request]) -> None:
        for request in requests:
            self.scheduler.submit(request)

    def decode(self, requests: list[Request]) -> None:
        """Submit, and step until each of them is being decoded by the step in flight."""
        self.submit(requests)
        self.scheduler.assemble_step()
        while self.in_flight.mode == "prefill" or len(self.in_flight.rows) < len(requests):
            self.step(self.answer())

    def answer(self) -> StepOutcome:
        """What the engine would say to the step in flight."""
        return StepOutcome(tuple((ANSWER,) * row.num_samples for row in self.in_flight.rows))

    def step(self, outcome: StepOutcome) -> None:
        """What a replica does between two forward passes."""
        scheduler = self.scheduler
        scheduler.commit(self.in_flight, outcome)
        scheduler.take_events()
        scheduler.assemble_step()

    def pin_all_but(self, num_free: int) -> BlockTable:
        """Take blocks from under the scheduler until only `num_free` are left."""
        stub = TokenChain(b"pinned", BLOCK_SIZE, (0,))
        return self.pool.apply(self.pool.admit(stub, (self.pool.num_free - num_free) * BLOCK_SIZE))
