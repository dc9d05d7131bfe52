"""The cost of scheduling itself: a step, a submission, a cancellation."""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as ListLike
from dataclasses import replace
from functools import partial
from itertools import count, islice

from bench.kv import BLOCK_SIZE, LANE, hold, new_pool
from bench.timing import FigureKey, Subject, Targets, Work, interleave
from kvpool import BlockTable, TokenChain, chain_root
from octet.clock import ManualClock
from simulation.results import BenchRecord
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig
from specialist.scheduling.sequence import Request, Sequence
from specialist.scheduling.step import FixedBudget, Proposer, Step, StepOutcome

ANSWER = 7  # the sampled token

_ENDLESS = 1_000_000


class BenchReplica:
    def __init__(
        self,
        num_blocks: int,
        *,
        max_running: int = 128,
        chunk: int = _ENDLESS,
        watermark: float = 0.0,
        proposer: Proposer | None = None,
    ) -> None:
        self.pool = new_pool(num_blocks)
        config = SchedulerConfig(LANE, max_running=max_running, max_step_tokens=chunk, watermark=watermark)
        self.scheduler = Scheduler(self.pool, config, ManualClock(), budget=FixedBudget(chunk), proposer=proposer)
        self._names = count(1)

    @property
    def in_flight(self) -> Step:
        step = self.scheduler.in_flight
        if step is None:
            raise RuntimeError("no step is in flight")
        return step

    @property
    def running(self) -> list[Sequence]:
        return list(self.scheduler.running)

    def requests(self, how_many: int, prompt_length: int, *, priority: int = 0, draft_window: int = 0) -> list[Request]:
        """Return requests whose prompts share nothing. Their answers never end, and their deadlines never pass."""
        usual = Request("usual", LANE, (0,), _ENDLESS, priority, deadline=1e9, draft_window=draft_window)
        names = islice(self._names, how_many)
        return [replace(usual, request_id=f"r{name}", prompt=(name, *range(1, prompt_length))) for name in names]

    def submit(self, requests: list[Request]) -> None:
        for request in requests:
            self.scheduler.submit(request)

    def decode(self, requests: list[Request]) -> None:
        self.submit(requests)
        self.scheduler.assemble_step()
        while self.in_flight.mode == "prefill" or len(self.in_flight.rows) < len(requests):
            self.step(self.answer())

    def answer(self) -> StepOutcome:
        return StepOutcome(tuple((ANSWER,) * row.num_samples for row in self.in_flight.rows))

    def step(self, outcome: StepOutcome) -> None:
        """Do the work of a replica between two forward passes."""
        scheduler = self.scheduler
        scheduler.commit(self.in_flight, outcome)
        scheduler.take_events()
        scheduler.assemble_step()

    def pin_all_but(self, num_free: int) -> BlockTable:
        stub = TokenChain(b"pinned", BLOCK_SIZE, (0,))
        return self.pool.apply(self.pool.admit(stub, (self.pool.num_free - num_free) * BLOCK_SIZE))


SHORT_PROMPT = 64
DRAFT_WINDOW = 4


class ConstantProposer:
    def __init__(self, token: int) -> None:
        self._token = token

    def wants(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> bool:
        return True

    def observe(self, num_tokens: int, seconds: float) -> None: ...

    def ended(self, seq: Sequence) -> None: ...

    def propose(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> dict[Sequence, tuple[int, ...]]:
        return {seq: self._guess(seq, limit) for seq, limit in limits.items()}

    def _guess(self, seq: Sequence, limit: int) -> tuple[int, ...]:
        return (self._token,) * limit


def decoding(num_running: int, prompt_length: int = SHORT_PROMPT, max_running: int = 128) -> BenchReplica:
    replica = BenchReplica(2 * num_running * (prompt_length // BLOCK_SIZE + 8), max_running=max_running)
    replica.decode(replica.requests(num_running, prompt_length))
    return replica


def queueing(num_running: int, num_waiting: int) -> BenchReplica:
    replica = decoding(num_running, max_running=num_running)
    replica.submit(replica.requests(num_waiting, SHORT_PROMPT))
    replica.scheduler.take_events()
    return replica


def speculating(num_running: int, prompt_length: int, *, accepted: bool) -> BenchReplica:
    proposer = ConstantProposer(ANSWER if accepted else ANSWER + 1)
    replica = BenchReplica(2 * num_running * (prompt_length // BLOCK_SIZE + 16), proposer=proposer)
    replica.decode(replica.requests(num_running, prompt_length, draft_window=DRAFT_WINDOW))
    return replica


def blocked(
    num_running: int,
    head_length: int,
    *,
    cached: bool = False,
    prompt_length: int = SHORT_PROMPT,
    more_important: bool = False,
) -> BenchReplica:
    """Return a replica with a free slot but too few free blocks for the first waiting request: no step can admit it."""
    replica = BenchReplica(2 * (head_length // BLOCK_SIZE) + 8_192, watermark=0.05)
    replica.decode(replica.requests(num_running, prompt_length))
    head = replica.requests(1, head_length, priority=int(more_important))
    if cached:
        root = chain_root(LANE, head[0].tenant_salt, replica.scheduler.config.kv_dtype, BLOCK_SIZE)
        hold(replica.pool, TokenChain(root, BLOCK_SIZE, head[0].prompt))
    replica.pin_all_but(2 * num_running)
    replica.submit(head)
    replica.step(replica.answer())
    return replica


def prefilling(prompt_length: int, chunk: int, num_decoding: int = 0) -> BenchReplica:
    """Return a replica that computes the first chunk of a long prompt; decoding sequences, if any, step next."""
    replica = BenchReplica(4 * (prompt_length // BLOCK_SIZE) + 4_096, chunk=chunk)
    if num_decoding:
        replica.decode(replica.requests(num_decoding, SHORT_PROMPT))
    replica.submit(replica.requests(1, prompt_length))
    if num_decoding:
        replica.step(replica.answer())
    else:
        replica.scheduler.assemble_step()
    return replica


def outgrowing(num_running: int, prompt_length: int) -> BenchReplica:
    """Return a replica that must preempt a sequence: each needs one more block for the next step; one is missing."""
    replica = decoding(num_running, prompt_length)
    first = replica.in_flight.rows[0]
    while first.sequence.num_tokens < first.table.num_slots:
        replica.step(replica.answer())
    replica.pin_all_but(num_running - 1)
    return replica


def overtaken(num_running: int, num_victims: int) -> BenchReplica:
    """Return a replica that must preempt `num_victims` sequences to admit a new prompt of higher priority."""
    replica = decoding(num_running)
    replica.pin_all_but(0)
    num_blocks = num_victims * len(replica.in_flight.rows[0].table)
    replica.submit(replica.requests(1, num_blocks * BLOCK_SIZE - 1, priority=1))
    return replica


BENCH = "scheduler"
STEP = "step"
STEPS_A_RUN = 16  # steps per block: in every run each sequence takes one new block

NUMS_RUNNING = (1, 8, 32, 128)
NUMS_WAITING = (100, 1_000, 10_000)
NUM_RUNNING = 32
NUM_SUBMITTED = 1_000
SHARE_CANCELLED = 0.6  # share of the queue that is cancelled
LONG_CONTEXT = 4_096


def _running_case(num_running: int) -> str:
    return f"{num_running} running"


def _waiting_case(num_waiting: int) -> str:
    return f"{NUM_RUNNING} running, {num_waiting:,} waiting"


def _growth_case(fewest: int, most: int) -> str:
    return f"{most:,} waiting vs {fewest:,}"


TARGETS: Targets = {
    (_running_case(NUM_RUNNING), STEP): "< 200 µs",
    (_growth_case(min(NUMS_WAITING), max(NUMS_WAITING)), STEP): "at most 2 x",
}


def measure_scheduler(runs: int, nums_waiting: ListLike[int] = NUMS_WAITING) -> list[BenchRecord]:
    board = interleave(BENCH, list(_subjects(nums_waiting)), runs)
    running = {number: FigureKey(_running_case(number), "octet", STEP) for number in NUMS_RUNNING}
    fewest, most = min(nums_waiting), max(nums_waiting)
    few, many = (FigureKey(_waiting_case(number), "octet", STEP) for number in (fewest, most))
    return [
        *board.records(),
        *(board.scaled(key, "step per sequence", 1 / number) for number, key in running.items()),
        *board.ratio(many, few, _growth_case(fewest, most)),
    ]


def _subjects(nums_waiting: ListLike[int]) -> Iterator[Subject]:
    for num_running in NUMS_RUNNING:
        yield _steps(_running_case(num_running), partial(decoding, num_running))
    for num_waiting in nums_waiting:
        yield _steps(_waiting_case(num_waiting), partial(queueing, NUM_RUNNING, num_waiting))
    most = max(nums_waiting)
    case, num_cancelled = f"{most:,} waiting", int(SHARE_CANCELLED * most)
    yield Subject(case, "submit", "µs", partial(_ready_to_submit, most), NUM_SUBMITTED)
    yield Subject(case, "cancel from the middle", "µs", partial(_ready_to_cancel, most, num_cancelled), num_cancelled)
    for length, cached in ((1_000, False), (50_000, False), (50_000, True)):
        prefix = ", all of it cached" if cached else ""
        case = f"{NUM_RUNNING} running, blocked head of {length:,} tokens{prefix}"
        yield _steps(case, partial(blocked, NUM_RUNNING, length, cached=cached))
    for context in (SHORT_PROMPT, 1_024):
        case = f"{NUM_RUNNING} running on {context:,} tokens, blocked head is more important"
        yield _steps(case, partial(blocked, NUM_RUNNING, 50_000, prompt_length=context, more_important=True))
    yield _steps("chunks of 2,048 of a prompt of 50,000", partial(prefilling, 50_000, 2_048))
    build = partial(prefilling, 50_000, 256, NUM_RUNNING)
    yield _steps(f"{NUM_RUNNING} running, in turns with chunks of 256", build, in_turns=True)
    for context in (SHORT_PROMPT, LONG_CONTEXT):
        for kept, accepted in (("all", True), ("none", False)):
            case = f"{NUM_RUNNING} running on {context:,} tokens, {DRAFT_WINDOW} drafts, {kept} accepted"
            yield _steps(case, partial(speculating, NUM_RUNNING, context, accepted=accepted))
    for context in (SHORT_PROMPT, LONG_CONTEXT):
        case = f"{NUM_RUNNING} running on {context:,} tokens, 1 preempted to grow"
        yield _steps(case, partial(outgrowing, NUM_RUNNING, context), number=1)
    for num_victims in (1, 16):
        case = f"{NUM_RUNNING} running, {num_victims} preempted to admit"
        yield _steps(case, partial(overtaken, NUM_RUNNING, num_victims), number=1)


def _steps(
    case: str, build: Callable[[], BenchReplica], number: int = STEPS_A_RUN, *, in_turns: bool = False
) -> Subject:
    def ready() -> Work:
        replica = build()
        turn = [replica.answer(), StepOutcome(((ANSWER,),) * NUM_RUNNING)] if in_turns else [replica.answer()]
        outcomes = turn * (number // len(turn))

        def work() -> None:
            for outcome in outcomes:
                replica.step(outcome)

        return work

    return Subject(case, STEP, "µs", ready, number)


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
