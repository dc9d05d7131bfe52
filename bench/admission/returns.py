"""Refused callers that return, with a ticket or after the stated time alone, and how true the stated time was."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, NamedTuple, get_args

from admission.forecast.reservations import Reservations
from bench.admission.load import (
    MISSED,
    ArrivalClock,
    Offer,
    OfferOutcome,
    OutcomeCounts,
    Plan,
    count_outcomes,
    step_loop,
)
from bench.admission.report import BENCH, WITHIN, load_case
from bench.admission.simulated import (
    GRAIN,
    HORIZON,
    PROBE,
    ControlledAdmission,
    LoadSimulation,
    Refused,
    capacity,
    copy_simulation,
)
from simulation.results import BenchRecord, summary

Callers = Literal["leave", "return", "tickets"]
"""What refused callers do: they leave; they return once after the stated time; or they get tickets and return with
them, and leave without one."""
CALLERS: tuple[Callers, ...] = get_args(Callers)
RETURNS = 2  # attempts after the first one


class Comeback(NamedTuple):
    """A caller's attempt after a refusal."""

    offer: Offer
    stated: float  # seconds from the refusal
    is_admitted: bool
    at: float


class FollowedTicket(NamedTuple):
    stated: float
    true: float  # seconds after which the request would have been admitted with its ticket


class TicketAdmission(ControlledAdmission):
    """Admission control whose refusals carry tickets, for callers of several tenants."""

    def __init__(self, plan: Plan, clock: ArrivalClock, seed: int, *, tickets: bool) -> None:
        draw = Random(f"{seed} tickets")
        places = Reservations(lambda: draw.randbytes(16).hex()) if tickets else None
        super().__init__(step_loop(plan.setup, clock, seed), plan.setup, clock, seed, places)
        self._tickets = tickets
        self.held: dict[int, str] = {}  # the ticket of each refused offer

    def ask_again(self, offer: Offer) -> Refused | None:
        key = self.held.pop(offer.number, "")
        owner = f"tenant {offer.number % 4}" if self._tickets else ""
        refused, place = self._ask(offer.request(), owner, key)
        if place:
            self.held[offer.number] = place
        return refused


@dataclass
class _Pending:
    stated: float
    num: int


class ReturningSimulation(LoadSimulation):
    """A load whose refused callers come back."""

    def __init__(self, offers: Sequence[Offer], open_door: Callable[[ArrivalClock], TicketAdmission], callers: Callers):
        self.callers = callers
        self.comebacks: list[Comeback] = []
        self.num_tickets = 0
        self.follow: Callable[[Offer, float, str], None] = lambda offer, stated, key: None
        self._pending: dict[int, _Pending] = {}
        self._open_door = open_door
        super().__init__(offers, self._open)

    def _open(self, clock: ArrivalClock) -> TicketAdmission:
        self.desk = self._open_door(clock)
        return self.desk

    def _submit(self, offer: Offer) -> None:
        door = self.desk
        refused = door.ask_again(offer)
        pending = self._pending.pop(offer.number, None)
        if pending is not None:
            self.comebacks.append(Comeback(offer, pending.stated, refused is None, self.clock.now()))
        if refused is None:
            self._enter(offer)
            return
        has_ticket = offer.number in door.held
        self.num_tickets += has_ticket
        num = 0 if pending is None else pending.num
        returns = has_ticket if self.callers == "tickets" else self.callers == "return"
        if has_ticket and refused.retry_after is not None:
            self.follow(offer, refused.retry_after, door.held[offer.number])
        if not returns or refused.retry_after is None or num >= RETURNS:
            self._refuse(offer, refused)
            return
        self._pending[offer.number] = _Pending(refused.retry_after, num + 1)
        self.clock.add(replace(offer, at=self.clock.now() + refused.retry_after))


class TicketFollower:
    """Finds, for every `each`-th ticket, when its request would first have been admitted with it: a copy of the
    simulation runs on, with all its arrivals, and asks after every grain of time."""

    def __init__(self, play: ReturningSimulation, *, until: float, each: int) -> None:
        self._play, self._until, self._each = play, until, each
        self._seen = 0
        self._fresh: list[tuple[Offer, float, str]] = []
        self.found: list[FollowedTicket] = []
        play.follow = self.add
        play.follower = self

    def refused(self, offer: Offer, refused: Refused) -> None:
        """Nothing: only tickets are followed."""

    def add(self, offer: Offer, stated: float, key: str) -> None:
        if self._seen % self._each == 0 and offer.at <= self._until:
            self._fresh.append((offer, stated, key))
        self._seen += 1

    def after_step(self) -> None:
        fresh, self._fresh = self._fresh, []
        for offer, stated, key in fresh:
            if key in self._play.desk.held.values():  # the caller has not come back during the same step
                self.found.append(FollowedTicket(stated, self._wait(offer, key)))

    def _wait(self, offer: Offer, key: str) -> float:
        play, door = copy_simulation(self._play, self._play.desk, self)
        play.follow = lambda offer, stated, key: None
        play.clock.drop_arrivals(lambda other: other.number == offer.number)
        while (waited := play.clock.now() - offer.at) < HORIZON:
            if door.would_admit(replace(offer, at=play.clock.now()), f"tenant {offer.number % 4}", key):
                return waited
            play.advance(GRAIN)
        return HORIZON


@dataclass(frozen=True, slots=True)
class ReturnRun:
    load: float
    callers: Callers
    seed: int
    counts: OutcomeCounts
    outcomes: Sequence[OfferOutcome]
    comebacks: Sequence[Comeback]
    num_tickets: int
    followed: Sequence[FollowedTicket]


def play_returns(plan: Plan, asked: list[Offer], load: float, callers: Callers, seed: int) -> ReturnRun:
    def open_door(clock: ArrivalClock) -> TicketAdmission:
        return TicketAdmission(plan, clock, seed, tickets=callers == "tickets")

    play = ReturningSimulation(asked, open_door, callers)
    follower = None
    if callers == "tickets" and plan.followed:
        until = plan.seconds_at(load) - 10.0
        follower = TicketFollower(play, until=until, each=max(1, len(asked) // (2 * plan.followed)))
    outcomes = play.run()
    return ReturnRun(
        load,
        callers,
        seed,
        count_outcomes(outcomes, plan.window(load)),
        outcomes,
        play.comebacks,
        play.num_tickets,
        () if follower is None else follower.found,
    )


def simulate_returns(plan: Plan) -> tuple[float, list[ReturnRun]]:
    """Play the same loads with callers of each kind. Return the capacity and the runs."""
    rate = capacity(plan.setup, plan.source, PROBE)
    runs = []
    for load in plan.loads:
        for seed in plan.seeds:
            asked = plan.offers(load, rate, seed)
            runs += [play_returns(plan, asked, load, callers, seed) for callers in CALLERS]
    return rate, runs


def return_records(runs: Sequence[ReturnRun]) -> Iterator[BenchRecord]:
    for load in sorted({run.load for run in runs}):
        by_callers = {each: [run for run in runs if (run.load, run.callers) == (load, each)] for each in CALLERS}
        for callers, group in by_callers.items():
            for metric, unit, value in _FIGURES:
                samples = [sample for run in group if (sample := value(run)) is not None]
                if samples:
                    yield summary(samples, BENCH, load_case(load), metric, unit, callers)
        for other in ("leave", "return"):
            for part in ("answers", "tokens", "work"):
                pairs = zip(by_callers["tickets"], by_callers[other], strict=True)
                goods = [(getattr(mine.counts, part), getattr(theirs.counts, part)) for mine, theirs in pairs]
                samples = [mine / theirs for mine, theirs in goods if theirs]
                if samples:
                    metric = f"{part} in time, relative to {other}"
                    yield summary(samples, BENCH, load_case(load), metric, "x", "tickets")


def _admitted(run: ReturnRun) -> float | None:
    return 100 * sum(each.is_admitted for each in run.comebacks) / len(run.comebacks) if run.comebacks else None


def _true(run: ReturnRun) -> float | None:
    ratios = [max(each.stated, GRAIN) / max(each.true, GRAIN) for each in run.followed]
    return 100 * sum(1 / WITHIN <= each <= WITHIN for each in ratios) / len(ratios) if ratios else None


_FIGURES: tuple[tuple[str, str, Callable[[ReturnRun], float | None]], ...] = (
    ("answers in time", "1/s", lambda run: run.counts.answers),
    ("tokens in time", "tok/s", lambda run: run.counts.tokens),
    ("work in time", "s/s", lambda run: run.counts.work),
    ("tickets", "", lambda run: run.num_tickets),
    ("came back", "", lambda run: len(run.comebacks)),
    ("admitted of those that came back", "%", _admitted),
    (f"ticket's time within a factor of {WITHIN:g}", "%", _true),
    ("missed after admission", "", lambda run: sum(each.end in MISSED for each in run.outcomes)),
)
