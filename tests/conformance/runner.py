"""Run requests to completion on any engine, and check the invariants after every step."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from random import Random

from octet.clock import ManualClock
from octet.identity import Lane
from specialist.engines.base import Completion, Engine, EngineFault
from specialist.scheduling.scheduler import StepLoop
from specialist.scheduling.sequence import Request, Sampling
from specialist.scheduling.step import Emitted, Event, Finished, Preempted, Rollback, RowFault, Step, StepOutcome
from tests.conformance.shape import EngineUnderTest, Factory, Shape

ROOMY = Shape(num_blocks=64, block_size=8, prefix_cache=False, chunk_tokens=512, max_running=1)


class Run:
    """A replica whose steps the test runs. Before every step, the blocks that are neither held nor cached are
    overwritten, so that reading them would change an answer."""

    def __init__(self, factory: Factory, shape: Shape, *, wrap: Callable[[Engine], Engine] = lambda engine: engine):
        self.subject: EngineUnderTest = factory(shape, ManualClock())
        self.scheduler = self.subject.replica.scheduler
        self._loop = StepLoop(self.scheduler, wrap(self.subject.replica.engine))
        self.events: list[Event] = []

    def step(self) -> bool:
        pool = self.scheduler.pool
        self.subject.poison(block.block_id for block in pool.blocks[1:] if block.ref_count == 0 and block.key is None)
        stepped = self._loop.run_once() is not None
        pool.check()
        self.events += self.scheduler.take_events()
        return stepped

    def finish(self, requests: Iterable[Request] = ()) -> "Run":
        for request in requests:
            self.scheduler.submit(request)
        while self.step():
            pass
        pool = self.scheduler.pool
        assert pool.num_free == pool.capacity, "a block is still held"
        assert not self.scheduler.ledger.live
        return self

    def answers(self) -> dict[str, tuple[int, ...]]:
        said: dict[str, tuple[int, ...]] = {}
        for event in self.events:
            if isinstance(event, Emitted):
                said[event.request_id] = said.get(event.request_id, ()) + event.tokens
        return said

    def ends(self) -> dict[str, str]:
        """Return how each finished request ended. No request may end twice."""
        finished = [event for event in self.events if isinstance(event, Finished)]
        ends = {event.request_id: event.reason for event in finished}
        assert len(ends) == len(finished), "a request ended twice"
        return dict(ends)

    @property
    def times_preempted(self) -> int:
        return sum(isinstance(event, Preempted) for event in self.events)


class FailingEngine:
    """An engine that fails at random, in every way in which an engine can fail."""

    def __init__(self, engine: Engine, rng: Random) -> None:
        self._engine = engine
        self._rng = rng
        self.num_faults = 0

    def run(self, step: Step) -> Iterable[Completion]:
        kind = self._rng.choice(["none"] * 8 + ["before", "after", "row", "named"])
        self.num_faults += kind != "none"
        if kind == "before":
            raise RuntimeError("before")
        completions = list(self._engine.run(step))
        if kind == "after":
            raise RuntimeError("after")
        if kind == "named":
            raise EngineFault("named", step.rows[0].sequence.request.request_id)
        if kind == "row":
            return [_without_a_row(completion) for completion in completions]
        return completions

    def discard(self, rollbacks: Iterable[Rollback]) -> None:
        self._engine.discard(rollbacks)


def _without_a_row(completion: Completion) -> Completion:
    outcome = completion.outcome
    if not isinstance(outcome, StepOutcome):
        return completion
    return Completion(completion.step, StepOutcome((RowFault("lost"), *outcome.sampled[1:]), outcome.logprobs))


class LoneAnswers:
    """Computes the expected answer to a request: what the engine answers when no other request runs."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory
        self.answer = lru_cache(maxsize=4096)(self._answer)

    def _answer(self, request: Request) -> tuple[int, ...]:
        return Run(self._factory, ROOMY).finish([request]).answers().get(request.request_id, ())


def workload(subject: EngineUnderTest, rng: Random, count: int) -> list[Request]:
    """Return random requests with shared prompt prefixes and several adapter stacks, greedy and sampled."""
    replica = subject.replica
    stems = [tuple(rng.randrange(subject.vocab_size) for _ in range(length)) for length in (0, 9, 17)]
    return [
        Request(
            request_id=f"r{i}",
            lane=Lane(replica.lane.specialist, replica.lane.revision, rng.choice(subject.stacks)),
            prompt=rng.choice(stems) + tuple(rng.randrange(subject.vocab_size) for _ in range(rng.randrange(1, 8))),
            max_tokens=rng.randrange(1, 14),
            priority=rng.randrange(3),
            stop_ids=replica.codec.stop_ids,
            sampling=Sampling(temperature=rng.choice([0.0, 0.8])),
            seed=rng.randrange(1000),
        )
        for i in range(count)
    ]
