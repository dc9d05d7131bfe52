"""Loads played in simulated time, with admission control and with only a queue."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from heapq import heappop, heappush
from random import Random
from sys import getrecursionlimit, maxsize, setrecursionlimit
from time import thread_time
from typing import NamedTuple, Protocol, TypeVar

from admission.forecast.bookings import AdmissionDecision, Admit
from admission.forecast.estimates import EstimateErrors
from admission.forecast.places import Places
from bench.admission.load import (
    QUEUE,
    ArrivalClock,
    End,
    FollowedRefusal,
    Mix,
    Offer,
    OfferOutcome,
    Plan,
    ReplicaSetup,
    Run,
    Source,
    System,
    count_outcomes,
    offers,
    step_loop,
)
from octet.clock import Clock
from specialist.scheduling.loop import ReplicaCore, make_booking, prices_from_cost_model
from specialist.scheduling.scheduler import Scheduler, StepLoop
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Emitted, Event, Finished


class Refused(NamedTuple):
    reason: str
    retry_after: float | None
    cpu: float | None = None  # seconds, if measured


class OpenAdmission:
    """No admission control: a request is admitted if a slot is free. `ask` may be called during a step; the other
    methods may not."""

    def __init__(self, loop: StepLoop, slots: int) -> None:
        self._loop = loop
        self._slots = slots
        self._inbox: deque[Request] = deque()

    def ask(self, request: Request) -> Refused | None:
        """Submit the request. Return None if it is admitted."""
        if len(self._loop.scheduler.ledger.live) + len(self._inbox) >= self._slots:
            return Refused("queue full", None)
        self._inbox.append(request)
        return None

    def step(self) -> bool:
        """Take a step. Return False if there was nothing to do."""
        while self._inbox:
            self._loop.scheduler.submit(self._inbox.popleft())
        self.before_step()
        return self._loop.run_once() is not None

    def before_step(self) -> None:
        """Called before each step, when all admitted requests are in the scheduler."""

    def events(self) -> list[Event]:
        return self._loop.scheduler.take_events()

    def displaced(self, name: str) -> bool:
        """Whether the request was admitted and then displaced by a higher priority."""
        return False

    def serves_below(self, priority: int) -> bool:
        return any(seq.request.priority < priority for seq in self._loop.scheduler.running)

    def stop(self, name: str) -> None:
        self._loop.scheduler.end(name, "stop")


class QueueAdmission(OpenAdmission):
    """A queue in order of arrival, or by priority and then by arrival. Deadlines end requests but do not order them."""

    def __init__(self, loop: StepLoop, clock: Clock, *, length: int, by_priority: bool) -> None:
        scheduler = loop.scheduler  # one prompt is computed after the other: with turns, all would be late together
        config = replace(scheduler.config, age_bound=maxsize)
        in_order = Scheduler(scheduler.pool, config, scheduler.clock, budget=scheduler.budget)
        super().__init__(StepLoop(in_order, loop.engine), config.max_running + length)
        self._clock = clock
        self._by_priority = by_priority
        self._deadlines: list[tuple[float, str]] = []
        self._priorities: dict[str, int] = {}  # as the callers set them

    def ask(self, request: Request) -> Refused | None:
        self._priorities[request.request_id] = request.priority
        priority = request.priority if self._by_priority else 0
        refused = super().ask(replace(request, deadline=None, priority=priority))
        if refused is None and request.deadline is not None:
            heappush(self._deadlines, (request.deadline, request.request_id))
        return refused

    def serves_below(self, priority: int) -> bool:
        running = self._loop.scheduler.running
        return any(self._priorities[seq.request.request_id] < priority for seq in running)

    def before_step(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self._clock.now():
            self._loop.scheduler.end(heappop(self._deadlines)[1], "deadline")


class ControlledAdmission:
    """Admission by Octet's controller, whose estimates start from a cost model."""

    def __init__(
        self, loop: StepLoop, setup: ReplicaSetup, clock: Clock, seed: int, places: Places | None = None
    ) -> None:
        self._clock = clock
        self._front = ReplicaCore(
            loop.scheduler,
            loop.engine,
            max_waiting=setup.max_waiting,
            prices=prices_from_cost_model(setup.guess or setup.cost),
            jitter=Random(seed).random,
            places=places,
        )
        self._displaced: set[str] = set()

    def ask(self, request: Request) -> Refused | None:
        return self._ask(request)[0]

    def _ask(
        self, request: Request, owner: str = "", waits: float | None = None, place: str = ""
    ) -> tuple[Refused | None, str]:
        """Return the refusal, and the place that is kept for the request."""
        began = thread_time()
        verdict = self._front.submit(request, owner=owner, waits=waits, place=place)
        if isinstance(verdict, Admit):
            self._displaced.update(verdict.displaced)
            return None, ""
        cpu = thread_time() - began
        return Refused(verdict.reason.replace("_", " "), verdict.retry_after, cpu), verdict.place

    def step(self) -> bool:
        return self._front.step() is not None

    def events(self) -> list[Event]:
        return self._front.take_events()

    def displaced(self, name: str) -> bool:
        return name in self._displaced

    def serves_below(self, priority: int) -> bool:
        return any(seq.request.priority < priority for seq in self._front.scheduler.running)

    def stop(self, name: str) -> None:
        self._front.end(name, "stop")

    def would_admit(self, offer: Offer) -> bool:
        return isinstance(self.decide(offer), Admit)

    def decide(self, offer: Offer, owner: str = "", waits: float | None = None, place: str = "") -> AdmissionDecision:
        """Decide on the request as if it came now, without admitting it."""
        booking = make_booking(offer.request(), owner=owner, waits=waits, place=place)
        return self._front.controller.decide(booking, self._clock.now())

    def repair_copy(self) -> None:
        """Key the tables of a copied pool by their new ids."""
        pool = self._front.scheduler.pool
        pool.tables = {id(table): table for table in pool.tables.values()}

    def errors(self) -> EstimateErrors | None:
        return self._front.controller.errors()


AdmissionSystem = OpenAdmission | ControlledAdmission
_SETTLED = 0.2  # share of the work after which the batch counts as full


def capacity(setup: ReplicaSetup, source: Source, seed: int, work: float = 120.0) -> float:
    """Return the capacity: the seconds of lone work (time on an idle replica) done per second. All requests arrive at
    once, without deadlines. Work counts from when the batch is full until the last waiting request has started."""
    clock = ArrivalClock()
    loop = step_loop(setup, clock, seed)
    scheduler = loop.scheduler
    asked = {offer.name: offer for offer in offers(source, Mix(), setup.cost, 1.0, work, seed)}
    for offer in asked.values():
        scheduler.submit(replace(offer.request(), arrival=0.0, deadline=None, priority=0))
    done, settled = 0.0, None
    while scheduler.waiting.peek() is not None:
        loop.run_once()
        ended = [event.request_id for event in scheduler.take_events() if isinstance(event, Finished)]
        done += sum(asked[name].work for name in ended)
        if settled is None and done >= _SETTLED * work:
            settled, done = clock.now(), 0.0
    if settled is None:
        raise ValueError(f"{work:g} s of work is too little to fill {setup.max_running} slots")
    return done / (clock.now() - settled)


_ENDS: dict[str, End] = {"deadline": "late", "cancelled": "cancelled", "error": "failed"}


class Follower(Protocol):
    """Watches a simulation."""

    def refused(self, offer: Offer, refused: Refused) -> None: ...

    def after_step(self) -> None: ...


class LoadSimulation:
    def __init__(self, offers: Sequence[Offer], open_system: Callable[[ArrivalClock], AdmissionSystem]) -> None:
        self.clock = ArrivalClock(offers, self._submit)
        self.replica = open_system(self.clock)
        self.outcomes: list[OfferOutcome] = []
        self.idle = 0.0  # seconds without work
        self.most_admitted = 0
        self.follower: Follower | None = None
        self._inside: dict[str, Offer] = {}
        self._emitted: Counter[str] = Counter()  # tokens of each answer

    def run(self) -> list[OfferOutcome]:
        while self._step():
            if self.follower is not None:
                self.follower.after_step()
        if self._inside:
            raise RuntimeError(f"no request is running, but these have not ended: {sorted(self._inside)[:5]}")
        return self.outcomes

    def advance(self, seconds: float) -> None:
        until = self.clock.now() + seconds
        while self.clock.now() < until:
            if not self._step():
                self.clock.sleep(until - self.clock.now())

    def _step(self) -> bool:
        busy = self.replica.step()
        while events := self.replica.events():
            for event in events:
                self._handle(event)
        if busy or self._inside:
            if not busy:
                self.clock.sleep(0.001)
            return True
        if self.clock.next_at is None:
            return False
        self.idle += self.clock.next_at - self.clock.now()
        self.clock.sleep(self.clock.next_at - self.clock.now())
        return True

    def _submit(self, offer: Offer) -> None:
        refused = self.replica.ask(offer.request())
        if refused is None:
            self._enter(offer)
        else:
            self._refuse(offer, refused)

    def _enter(self, offer: Offer) -> None:
        self._inside[offer.name] = offer
        self.most_admitted = max(self.most_admitted, len(self._inside))

    def _refuse(self, offer: Offer, refused: Refused) -> None:
        now, cpu = self.clock.now(), refused.cpu
        self.outcomes.append(OfferOutcome(offer, "refused", now, refused.reason, refused.retry_after, cpu=cpu))
        if self.follower is not None:
            self.follower.refused(offer, refused)

    def _handle(self, event: Event) -> None:
        name = event.request_id
        if name not in self._inside:
            return
        if isinstance(event, Emitted):
            self._emitted[name] += len(event.tokens)
            if self._emitted[name] >= self._inside[name].answer_tokens:
                self.replica.stop(name)
        elif isinstance(event, Finished):
            end = self._classify_end(event)
            offer = self._inside.pop(name)
            beside_lower = self.replica.serves_below(offer.priority)
            self.outcomes.append(OfferOutcome(offer, end, self.clock.now(), beside_lower=beside_lower))

    def _classify_end(self, event: Finished) -> End:
        if event.reason == "shed":
            return "shed" if self.replica.displaced(event.request_id) else "given up"
        in_time = self.clock.now() <= self._inside[event.request_id].deadline
        return _ENDS.get(event.reason, "in time" if in_time else "late")


PlayT = TypeVar("PlayT", bound=LoadSimulation)
ReplicaT = TypeVar("ReplicaT", bound=ControlledAdmission)
HORIZON = 30.0  # seconds: the longest retry-after
GRAIN = 0.1  # seconds, about the length of a step with a prompt chunk
_DEEP = 100_000


class RefusalFollower:
    """Finds the true wait of every `each`-th refusal of each priority: the time until a copy of the simulation would
    admit the request. In the copy, no more requests of the same or a lower priority arrive."""

    def __init__(self, play: LoadSimulation, replica: ControlledAdmission, *, until: float, each: int) -> None:
        self._play, self._replica = play, replica
        self._until, self._each = until, each
        self._seen: Counter[int] = Counter()
        self._fresh: list[tuple[Offer, Refused]] = []
        self._returning: list[tuple[float, int, FollowedRefusal, Offer]] = []
        self.found: list[FollowedRefusal] = []
        play.follower = self

    def refused(self, offer: Offer, refused: Refused) -> None:
        if self._seen[offer.priority] % self._each == 0 and offer.at <= self._until:
            self._fresh.append((offer, refused))
        self._seen[offer.priority] += 1

    def after_step(self) -> None:
        fresh, self._fresh = self._fresh, []
        for offer, refused in fresh:
            self._follow(offer, refused.retry_after)
        now = self._play.clock.now()
        while self._returning and self._returning[0][0] <= now:
            _, _, refusal, offer = heappop(self._returning)
            self.found.append(refusal._replace(is_admitted_again=self._copy()[1].would_admit(replace(offer, at=now))))

    def _follow(self, offer: Offer, stated_wait: float | None) -> None:
        refusal = FollowedRefusal(offer.priority, stated_wait, self._wait(offer), is_admitted_again=False)
        if stated_wait is None:
            self.found.append(refusal)
        else:
            heappush(self._returning, (offer.at + stated_wait, offer.number, refusal, offer))

    def _wait(self, offer: Offer) -> float:
        play, replica = self._copy()
        play.clock.drop_arrivals(lambda other: other.priority <= offer.priority)
        while (waited := play.clock.now() - offer.at) < HORIZON:
            if replica.would_admit(replace(offer, at=play.clock.now())):
                return waited
            play.advance(GRAIN)
        return HORIZON

    def _copy(self) -> tuple[LoadSimulation, ControlledAdmission]:
        return copy_simulation(self._play, self._replica, self)


def copy_simulation(play: PlayT, replica: ReplicaT, follower: object) -> tuple[PlayT, ReplicaT]:
    """Copy the simulation, without its follower, with a higher recursion limit: the pool's blocks form a long list."""
    usual = getrecursionlimit()
    setrecursionlimit(max(usual, _DEEP))
    try:
        play, replica = deepcopy((play, replica), {id(follower): follower, id(play.outcomes): []})
    finally:
        setrecursionlimit(usual)
    play.follower = None
    replica.repair_copy()
    return play, replica


def ratio(refusal: FollowedRefusal) -> float | None:
    """Return the stated wait divided by the true wait; None if no wait was stated."""
    if refusal.stated_wait is None:
        return None
    return max(refusal.stated_wait, GRAIN) / max(refusal.wait, GRAIN)


PROBE = 1_000_003  # the seed for measuring capacity, which no run uses


def simulate(plan: Plan) -> tuple[float, list[Run]]:
    rate = capacity(plan.setup, plan.source, PROBE)
    runs: list[Run] = []
    for load in plan.loads:
        asked = {seed: plan.offers(load, rate, seed) for seed in plan.seeds}
        systems: tuple[System, ...] = ("octet", "fcfs", "priority")
        runs += [run(plan, mine, load, system, seed) for seed, mine in asked.items() for system in systems]
        runs += tuned(plan, asked, load)
    return rate, runs


def tuned(plan: Plan, asked: dict[int, list[Offer]], load: float) -> list[Run]:
    """Try all queue lengths. Return the runs with the length that gives the most answers in time."""
    tries = (
        [run(plan, mine, load, "fcfs tuned", seed, length) for seed, mine in asked.items()] for length in plan.lengths
    )
    return max(tries, key=lambda runs: sum(count_outcomes(each.outcomes, each.window).answers for each in runs))


def run(plan: Plan, asked: list[Offer], load: float, system: System, seed: int, length: int = QUEUE) -> Run:
    play = LoadSimulation(asked, lambda clock: _open(plan, system, clock, seed, length))
    replica = play.replica
    follower = None
    if isinstance(replica, ControlledAdmission) and plan.followed:
        until = plan.seconds_at(load) - HORIZON
        follower = RefusalFollower(play, replica, until=until, each=max(1, len(asked) // plan.followed))
    outcomes = play.run()
    return Run(
        load,
        system,
        seed,
        plan.window(load),
        outcomes,
        errors=replica.errors() if isinstance(replica, ControlledAdmission) else None,
        followed_refusals=() if follower is None else tuple(follower.found),
        busy=1 - play.idle / play.clock.now(),
        most_admitted=play.most_admitted,
        length=length if isinstance(replica, QueueAdmission) else None,
    )


def _open(plan: Plan, system: System, clock: ArrivalClock, seed: int, length: int) -> AdmissionSystem:
    loop = step_loop(plan.setup, clock, seed)
    if system == "octet":
        return ControlledAdmission(loop, plan.setup, clock, seed)
    return QueueAdmission(loop, clock, length=length, by_priority=system == "priority")
