"""Refused callers that return, with a ticket or after the stated time alone, and how true the stated time was.

The stated time of a ticket is compared with the true one: the time from the refusal until the request would first have
been admitted with its ticket, had its caller asked again and again. A place admits from its opening on, and a caller
that asks before is told to wait, so the true time is never shorter than the stated one. It is longer if the request is
refused although its place has opened; it is then asked for with the ticket of that refusal, if there is one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, NamedTuple

from admission.forecast.bookings import Admit
from admission.forecast.places import Places
from bench.admission.load import (
    ArrivalClock,
    Offer,
    OfferOutcome,
    OutcomeCounts,
    Plan,
    count_outcomes,
    step_loop,
)
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

RETURNS = 2  # attempts after the first one, as in the SDKs
_TENANTS = 4


@dataclass(frozen=True, slots=True)
class Callers:
    """What callers do after a refusal."""

    name: str
    returns: Literal["never", "with a ticket", "always"]
    tickets: bool = True  # whether they use tickets
    waits: float = HORIZON  # for how long they wait for capacity before their time limits begin to count
    half: bool = False  # whether only every other caller does this; the others leave
    beside: str = ""  # callers that do the same without tickets

    def are(self, offer: Offer) -> bool:
        return not self.half or offer.number % 2 == 0


CALLERS: tuple[Callers, ...] = (
    Callers("leave", "never", tickets=False),
    Callers("return", "always", tickets=False),
    Callers("return in time", "always", tickets=False, waits=0.0),
    Callers("half return", "always", tickets=False, half=True),
    Callers("tickets only", "with a ticket", beside="leave"),
    Callers("tickets", "always", beside="return"),
    Callers("tickets in time", "always", waits=0.0, beside="return in time"),
    Callers("half tickets", "always", half=True, beside="half return"),
    Callers("tickets, but leave", "never", beside="leave"),
)
"""The SDKs do what "tickets" do if the option `wait` is set, and what "tickets in time" do if it is not: then the time
limits count from the first attempt."""


class Comeback(NamedTuple):
    """A caller's attempt after a refusal."""

    offer: Offer
    stated: float  # seconds from the refusal
    has_ticket: bool
    is_admitted: bool
    at: float


class FollowedTicket(NamedTuple):
    stated: float
    true: float  # seconds after which the request would have been admitted with its ticket


class TicketAdmission(ControlledAdmission):
    """Admission control whose refusals carry tickets, for callers of several tenants."""

    def __init__(self, plan: Plan, clock: ArrivalClock, seed: int, callers: Callers) -> None:
        draw = Random(f"{seed} tickets")
        places = Places(lambda: draw.randbytes(16).hex()) if callers.tickets else None
        super().__init__(step_loop(plan.setup, clock, seed), plan.setup, clock, seed, places)
        self._callers = callers
        self.held: dict[int, str] = {}  # the ticket of each refused offer

    def owner(self, offer: Offer) -> str:
        return f"tenant {offer.number % _TENANTS}" if self._callers.tickets and self._callers.are(offer) else ""

    def ask_again(self, offer: Offer, waits: float | None) -> Refused | None:
        """`waits`: for how much longer the caller waits for capacity; None if it wants no ticket."""
        refused, place = self._ask(offer.request(), self.owner(offer), waits, self.held.pop(offer.number, ""))
        if place:
            self.held[offer.number] = place
        return refused


@dataclass
class _Pending:
    first: Offer
    stated: float
    num: int
    has_ticket: bool


class ReturningSimulation(LoadSimulation):
    """A load whose refused callers come back."""

    def __init__(
        self, offers: Sequence[Offer], open_replica: Callable[[ArrivalClock], TicketAdmission], callers: Callers
    ) -> None:
        self.callers = callers
        self.comebacks: list[Comeback] = []
        self.num_refusals = self.num_tickets = 0
        self.follow: Callable[[Offer, float, str, float], None] = lambda offer, stated, key, waits: None
        self._pending: dict[int, _Pending] = {}
        self._open_replica = open_replica
        super().__init__(offers, self._open)

    def _open(self, clock: ArrivalClock) -> TicketAdmission:
        self.tickets = self._open_replica(clock)
        return self.tickets

    def _submit(self, offer: Offer) -> None:
        pending = self._pending.pop(offer.number, None)
        first = offer if pending is None else pending.first
        now, num = self.clock.now(), 0 if pending is None else pending.num
        waits = max(0.0, self.callers.waits - (now - first.at))
        refused = self.tickets.ask_again(offer, waits if num < RETURNS else None)  # as the SDKs: the last asks for none
        if pending is not None:
            self.comebacks.append(Comeback(offer, pending.stated, pending.has_ticket, refused is None, now))
        if refused is None:
            self._enter(offer)
            return
        has_ticket = offer.number in self.tickets.held
        self.num_refusals += 1
        self.num_tickets += has_ticket
        stated = refused.retry_after
        if stated is not None and has_ticket:
            self.follow(offer, stated, self.tickets.held[offer.number], waits)
        returns = self.callers.returns == "always" or (self.callers.returns == "with a ticket" and has_ticket)
        late = 0.0 if stated is None else max(0.0, stated - waits)  # by how much the time limits do not move
        if not (returns and self.callers.are(offer)) or stated is None or num >= RETURNS or late >= offer.patience:
            self._refuse(offer, refused)
            return
        self._pending[offer.number] = _Pending(first, stated, num + 1, has_ticket)
        self.clock.add(replace(offer, at=now + stated, patience=offer.patience - late))


class TicketFollower:
    """Finds when the request of a ticket would first have been admitted with it: a copy of the simulation runs on, with
    all its other arrivals, and asks after every grain of time. Follows each ticket with the same probability."""

    def __init__(self, play: ReturningSimulation, seed: int, *, until: float, share: float) -> None:
        self._play, self._until, self._share = play, until, share
        self._random = Random(f"{seed} followed")
        self._fresh: list[tuple[Offer, float, str, float]] = []
        self.found: list[FollowedTicket] = []
        play.follow = self.add
        play.follower = self

    def refused(self, offer: Offer, refused: Refused) -> None:
        """Nothing: only tickets are followed."""

    def add(self, offer: Offer, stated: float, key: str, waits: float) -> None:
        if self._random.random() < self._share and offer.at <= self._until:
            self._fresh.append((offer, stated, key, waits))

    def after_step(self) -> None:
        fresh, self._fresh = self._fresh, []
        for offer, stated, key, waits in fresh:
            if self._play.tickets.held.get(offer.number) == key:  # the caller has not come back during the same step
                self.found.append(FollowedTicket(stated, self._wait(offer, key, waits)))

    def _wait(self, offer: Offer, key: str, waits: float) -> float:
        play, replica = copy_simulation(self._play, self._play.tickets, self)
        play.follow = lambda offer, stated, key, waits: None
        play.clock.drop_arrivals(lambda other: other.number == offer.number)
        while (waited := play.clock.now() - offer.at) < HORIZON:
            late = max(0.0, waited - waits)
            again = replace(offer, at=play.clock.now(), patience=offer.patience - late)
            decision = replica.decide(again, replica.owner(offer), max(0.0, waits - waited), key)
            if isinstance(decision, Admit):
                return waited
            key = decision.place or key
            play.advance(GRAIN)
        return HORIZON


@dataclass(frozen=True, slots=True)
class ReturnRun:
    load: float
    callers: Callers
    seed: int
    counts: OutcomeCounts
    others: OutcomeCounts  # of every other caller: those that do not return if only half do
    outcomes: Sequence[OfferOutcome]
    comebacks: Sequence[Comeback]
    num_refusals: int
    num_tickets: int
    followed: Sequence[FollowedTicket]


def play_returns(plan: Plan, asked: list[Offer], load: float, callers: Callers, seed: int) -> ReturnRun:
    def open_replica(clock: ArrivalClock) -> TicketAdmission:
        return TicketAdmission(plan, clock, seed, callers)

    play = ReturningSimulation(asked, open_replica, callers)
    follower = None
    if callers.tickets and callers.returns == "always" and not callers.half and plan.followed:
        follower = TicketFollower(play, seed, until=plan.seconds_at(load) - 10.0, share=min(1.0, plan.followed / 40))
    outcomes = play.run()
    return ReturnRun(
        load,
        callers,
        seed,
        count_outcomes(outcomes, plan.window(load)),
        count_outcomes([each for each in outcomes if each.offer.number % 2], plan.window(load)),
        outcomes,
        play.comebacks,
        play.num_refusals,
        play.num_tickets,
        () if follower is None else follower.found,
    )


def simulate_returns(plan: Plan, callers: Sequence[Callers] = CALLERS) -> tuple[float, list[ReturnRun]]:
    """Play the same loads with callers of each kind. Return the capacity and the runs."""
    rate = capacity(plan.setup, plan.source, PROBE)
    runs = []
    for load in plan.loads:
        for seed in plan.seeds:
            asked = plan.offers(load, rate, seed)
            runs += [play_returns(plan, asked, load, each, seed) for each in callers]
    return rate, runs
