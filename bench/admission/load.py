"""A load with deadlines, the replica that receives it, and the outcome of each request."""

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from itertools import accumulate, cycle, islice
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple, TypeVar, get_args

from admission.forecast.estimates import EstimateErrors
from bench.slow_periods import SlowPeriods
from kvpool import BlockPool
from octet.clock import Clock, ManualClock
from octet.identity import Lane
from simulation.traces import LengthShape, read_azure
from specialist.engines.sim.engine import CostModel, InjectedFault, SimEngine, SimModel
from specialist.scheduling.scheduler import StepLoop
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Step
from specialist.server.replica import create_scheduler
from specialist.server.settings import ReplicaSettings

LANE = Lane("overloaded", "a" * 64)
_NEVER_SAID = frozenset({10_000})  # a stop token: the answer may end before its limit
Source = Callable[[Random], Iterator[LengthShape]]  # the same random source gives the same shapes
_PROMPTS = 0.75  # the longest prompt is scaled to this share of the context


def drawn(context: int, prompt: tuple[float, float] = (64, 0.9), answer: tuple[float, float] = (24, 0.8)) -> Source:
    """Return a source of Poisson arrivals. `prompt` and `answer` are median and sigma of lognormal lengths in
    tokens."""

    def shapes(rng: Random) -> Iterator[LengthShape]:
        while True:
            lengths = (_lognormal(rng, *prompt, most=context // 2), _lognormal(rng, *answer, most=context // 2))
            yield LengthShape(rng.expovariate(1.0), *lengths)

    return shapes


def bursty(context: int) -> Source:
    """Return a source like `drawn` that alternates between three times and a quarter of its rate, each for about ten of
    its mean gaps."""

    def shapes(rng: Random) -> Iterator[LengthShape]:
        rate, left = 3.0, rng.expovariate(0.1)
        for shape in drawn(context)(rng):
            work, gap = shape.gap, 0.0  # in gaps at the usual rate, and the time that they take
            while work > rate * left:
                work, gap = work - rate * left, gap + left
                rate, left = 3.25 - rate, rng.expovariate(0.1)
            left -= work / rate
            yield shape._replace(gap=gap + work / rate)

    return shapes


def _lognormal(rng: Random, median: float, sigma: float, most: int) -> int:
    return min(max(round(median * rng.lognormvariate(0.0, sigma)), 1), most)


def recorded(trace: Sequence[LengthShape]) -> Source:
    """Return a source that starts at a random position of the trace and repeats the trace."""
    return lambda rng: islice(cycle(trace), rng.randrange(len(trace)), None)


def fitted(trace: list[LengthShape], context: int) -> list[LengthShape]:
    """Scale all prompts by one factor, so that the longest leaves room for an answer. Cut answers that do not fit."""
    shrink = min(1.0, _PROMPTS * context / max(shape.prompt_tokens for shape in trace))
    prompts = [max(1, round(shape.prompt_tokens * shrink)) for shape in trace]
    return [
        LengthShape(shape.gap, prompt, min(max(1, shape.answer_tokens), context - prompt))
        for shape, prompt in zip(trace, prompts, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Offer:
    number: int
    at: float  # seconds since the load began
    priority: int
    prompt_tokens: int
    answer_tokens: int  # length at which the model ends the answer
    max_tokens: int  # the caller's limit, the only length that the replica knows
    patience: float  # seconds from arrival to the deadline
    work: float  # lone work: seconds on an idle replica

    @property
    def deadline(self) -> float:
        return self.at + self.patience

    @property
    def exact(self) -> bool:
        return self.max_tokens == self.answer_tokens

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens

    @property
    def name(self) -> str:
        return f"r{self.number}"

    def request(self) -> Request:
        prompt = (self.number, *range(1, self.prompt_tokens))
        stop_ids = frozenset[int]() if self.exact else _NEVER_SAID
        limits = (self.max_tokens, self.priority, self.at, self.deadline)
        return Request(self.name, LANE, prompt, *limits, stop_ids=stop_ids)


def lone_seconds(cost: CostModel, prompt_tokens: int, answer_tokens: int) -> float:
    """Return the seconds on an idle replica: one chunk for prompt and first token, then a step for each further
    token."""
    first = cost.prefill_step + cost.prefill_token * prompt_tokens + cost.prefill_pair * prompt_tokens**2
    steps = answer_tokens - 1
    looked_at = steps * (prompt_tokens + 1) + steps * (steps - 1) // 2
    return first + steps * (cost.decode_step + cost.decode_token) + cost.decode_pair * looked_at


_Value = TypeVar("_Value", int, float)


@dataclass(frozen=True, slots=True)
class Mix:
    classes: tuple[tuple[int, float], ...] = ((9, 0.05), (6, 0.15), (3, 0.3), (1, 0.5))  # (priority, share)
    deadlines: tuple[tuple[float, float], ...] = ((4.0, 0.2), (10.0, 0.5), (30.0, 0.3))
    """Tight, normal and loose: (multiple of the lone work, share)."""
    least_patience: float = 0.5
    early: float = 0.0  # share of answers that end before their limit, which is up to four times their length

    @property
    def priorities(self) -> tuple[int, ...]:
        return tuple(sorted((priority for priority, _ in self.classes), reverse=True))


def offers(source: Source, mix: Mix, cost: CostModel, seconds: float, work_rate: float, seed: int) -> list[Offer]:
    """Return a load that lasts `seconds` and brings `work_rate` seconds of lone work (time on an idle replica) per
    second. The gaps between arrivals are all scaled by one factor, so that bursts stay bursts."""
    rng = Random(seed)
    drawn_shapes, shapes, work = source(Random(rng.random())), list[LengthShape](), seconds * work_rate
    while work > 0:
        shapes.append(next(drawn_shapes))
        work -= lone_seconds(cost, shapes[-1].prompt_tokens, shapes[-1].answer_tokens)
    times = list(accumulate(shape.gap for shape in shapes))
    pace = seconds / (times[-1] + times[-1] / len(times))
    return [
        _offer(number, time * pace, shape, mix, cost, rng)
        for number, (time, shape) in enumerate(zip(times, shapes, strict=True))
    ]


def _offer(number: int, at: float, shape: LengthShape, mix: Mix, cost: CostModel, rng: Random) -> Offer:
    work = lone_seconds(cost, shape.prompt_tokens, shape.answer_tokens)
    priority = _pick(rng, mix.classes)
    patience = max(mix.least_patience, work * _pick(rng, mix.deadlines))
    spare = rng.uniform(1.0, 4.0) if rng.random() < mix.early else 1.0
    max_tokens = round(shape.answer_tokens * spare)
    return Offer(number, at, priority, shape.prompt_tokens, shape.answer_tokens, max_tokens, patience, work)


def _pick(rng: Random, shares: tuple[tuple[_Value, float], ...]) -> _Value:
    (chosen,) = rng.choices([value for value, _ in shares], [share for _, share in shares])
    return chosen


End = Literal["in time", "late", "given up", "shed", "refused", "cancelled", "failed"]
"""shed: displaced by a higher priority; given up: ended to avoid being late, or making a higher priority late."""
ENDS: tuple[End, ...] = get_args(End)
MISSED: frozenset[End] = frozenset({"late", "given up"})
"""Ends of requests that were admitted, not displaced, and not answered in time."""


@dataclass(frozen=True, slots=True)
class OfferOutcome:
    offer: Offer
    end: End
    at: float  # seconds from the beginning of the load until the end was known
    reason: str = ""  # of a refusal or an error
    stated_wait: float | None = None  # the retry-after of a refusal in seconds, if it states one
    latency: float | None = None  # seconds, if measured
    cpu: float | None = field(default=None, compare=False)
    """CPU seconds that the refusal took, if measured; they differ from run to run."""
    asked: float | None = field(default=None, compare=False)
    """When the caller sent the request, on the monotonic clock, if measured."""
    behind: float | None = None  # seconds that the load generator was late, if measured
    beside_lower: bool | None = None
    """Whether a lower priority was running when this request ended, if known."""


@dataclass(frozen=True, slots=True)
class OutcomeCounts:
    offered: int
    ends: Counter[str]  # by end; the counts add up to `offered`
    refusals: Counter[str]  # by reason
    answers: float  # answers in time per second
    tokens: float  # prompt and answer tokens per second, of answers in time
    work: float  # seconds of lone work per second, of answers in time: the unit of capacity

    @property
    def admitted(self) -> int:
        return self.offered - self.ends["refused"]


def count_outcomes(
    outcomes: Sequence[OfferOutcome], window: tuple[float, float], priority: int | None = None
) -> OutcomeCounts:
    """Count all outcomes, or those of `priority`. Rates include only answers in time that ended within the window."""
    kept = [outcome for outcome in outcomes if priority in (None, outcome.offer.priority)]
    begin, end = window
    good = [each.offer for each in kept if each.end == "in time" and begin <= each.at < end]
    return OutcomeCounts(
        offered=len(kept),
        ends=Counter(dict.fromkeys(ENDS, 0) | Counter(each.end for each in kept)),
        refusals=Counter(each.reason for each in kept if each.end == "refused"),
        answers=len(good) / (end - begin),
        tokens=sum(offer.tokens for offer in good) / (end - begin),
        work=sum(offer.work for offer in good) / (end - begin),
    )


class ArrivalClock(ManualClock):
    """A clock whose `sleep` is instant. Requests that arrive during a sleep are submitted in order, on time."""

    def __init__(self, offers: Iterable[Offer] = (), submit: Callable[[Offer], object] = lambda offer: None) -> None:
        super().__init__()
        self._coming = deque(offers)
        self._submit = submit

    @property
    def next_at(self) -> float | None:
        return self._coming[0].at if self._coming else None

    def sleep(self, seconds: float) -> None:
        until = self.now() + seconds
        while self._coming and self._coming[0].at <= until:
            offer = self._coming.popleft()
            super().sleep(max(0.0, offer.at - self.now()))
            self._submit(offer)
        super().sleep(max(0.0, until - self.now()))

    def add(self, offer: Offer) -> None:
        insort(self._coming, offer, key=lambda each: each.at)

    def drop_arrivals(self, drop: Callable[[Offer], bool]) -> None:
        self._coming = deque(offer for offer in self._coming if not drop(offer))


@dataclass(frozen=True, slots=True)
class ReplicaSetup:
    cost: CostModel = field(default_factory=CostModel)  # true costs of steps, before noise
    guess: CostModel | None = None  # the cost model from which admission starts its estimates; None for the true cost
    num_blocks: int = 512
    block_size: int = 16
    max_running: int = 16
    max_waiting: int = 256
    context: int = 1024
    noise: float = 0.08  # sigma of the lognormal factor of every step
    stalls: float = 0.005  # share of steps that take three times as long


def step_loop(setup: ReplicaSetup, clock: Clock, seed: int) -> StepLoop:
    pool = BlockPool(setup.num_blocks + 1, setup.block_size)
    settings = ReplicaSettings(LANE.specialist, "sim", max_running=setup.max_running)
    scheduler = create_scheduler(pool, LANE, settings, clock, kv_dtype="sim")
    sizes = {"num_blocks": setup.num_blocks + 1, "block_size": setup.block_size}
    return StepLoop(scheduler, SimEngine(SimModel(), setup.cost, clock, **sizes, faults=_Unsteady(setup, seed)))


class _Unsteady:
    """Varies the time of steps. An object, not a closure, so that a copy of the replica draws the same noise."""

    def __init__(self, setup: ReplicaSetup, seed: int) -> None:
        self._plant = setup
        self._rng = Random(seed)

    def __call__(self, _: Step) -> InjectedFault:
        stalled = 3.0 if self._rng.random() < self._plant.stalls else 1.0
        return InjectedFault("slow", factor=stalled * self._rng.lognormvariate(0.0, self._plant.noise))


System = Literal["octet", "fcfs", "fcfs tuned", "priority"]
"""octet has admission control; the others have only a bounded queue: first come, first served with the queue of a
replica, the same with the best queue length, or by priority."""
SYSTEMS: tuple[System, ...] = get_args(System)
QUEUE = 256  # the maximum number of waiting requests
LENGTHS = (0, 1, 2, 4, 8, 16, 32, 64, 128, QUEUE)  # queue lengths tried for "fcfs tuned"
QUICK_LENGTHS = (8, 32, QUEUE)


@dataclass(frozen=True, slots=True)
class Plan:
    setup: ReplicaSetup
    source: Source
    mix: Mix
    loads: tuple[float, ...]  # multiples of the capacity
    seconds: float  # duration of each load; if compressed, of the highest one
    seeds: Sequence[int]
    compressed: bool = False  # whether all loads consist of the same requests, sent in less time
    followed: int = 40  # about how many refusals of a run are followed
    lengths: tuple[int, ...] = LENGTHS

    def seconds_at(self, load: float) -> float:
        return self.seconds * max(self.loads) / load if self.compressed else self.seconds

    def window(self, load: float) -> tuple[float, float]:
        seconds = self.seconds_at(load)
        return seconds / 6, seconds

    def offers(self, load: float, capacity: float, seed: int) -> list[Offer]:
        return offers(self.source, self.mix, self.setup.cost, self.seconds_at(load), load * capacity, seed)

    def order(self, seed: int) -> list[float]:
        return Random(seed).sample(self.loads, len(self.loads))


class FollowedRefusal(NamedTuple):
    priority: int
    stated_wait: float | None  # seconds
    wait: float  # seconds after which the request would have been admitted, had it kept its place in the queue
    is_admitted_again: bool  # whether the request is admitted when it is sent again after the stated wait


@dataclass(frozen=True, slots=True)
class Run:
    load: float
    system: System
    seed: int
    window: tuple[float, float]
    outcomes: Sequence[OfferOutcome]
    errors: EstimateErrors | None
    followed_refusals: Sequence[FollowedRefusal]
    busy: float | None = None  # share of the time with work, if known
    most_admitted: int | None = None  # the maximum number of requests admitted at one time, if known
    length: int | None = None  # length of the queue, if there is one
    slow_periods: SlowPeriods | None = field(default=None, compare=False)
    """Slow periods of the machine, if the run is in real time."""


_LIVE_SPEED = 4  # a live replica is this many times as fast as the simulated one, because callers share its cores


def make_plan(
    loads: tuple[float, ...],
    seconds: float,
    seeds: Sequence[int],
    *,
    trace: Path | None = None,
    early: float = 0.0,
    lengths: tuple[int, ...] = LENGTHS,
    live: bool = False,
) -> Plan:
    speed = _LIVE_SPEED if live else 1
    setup = ReplicaSetup(cost=CostModel(*(seconds / speed for seconds in astuple(CostModel()))))
    source = drawn(setup.context) if trace is None else recorded(fitted(read_azure(trace), setup.context))
    mix = Mix(least_patience=0.5 / speed, early=early)
    return Plan(setup, source, mix, loads, seconds, seeds, compressed=trace is not None, lengths=lengths)
