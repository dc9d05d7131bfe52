"""Bookings of admitted requests, the decision behind each, and the expected demand."""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import exp, inf
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from admission.forecast.estimates import AnswerEstimate
from admission.forecast.lengths import AnswerLengths
from admission.policy import (
    PrefillTurns,
    Rank,
    get_rank,
    is_urgent,
    may_preempt,
    preemption_order,
    rank_request,
    shed_order,
)
from octet.clock import earliest

_SECURED_SHARE = 0.99  # the share of answers for whose length the highest priority is kept on time
DeadlineKind = Literal["first", "end"]  # the deadline of the first token, or of the whole answer
RefuseReason = Literal["deadline_unreachable", "would_delay_others", "queue_full"]


@dataclass(frozen=True, slots=True)
class Outlook:
    """Estimates in seconds from now, given the present queue, running work and measured rates."""

    wait: float  # until the first step
    first: float  # until the first token
    total: float  # until the end of an answer of usual length
    slack: float | None  # from that end to the deadline; of two deadlines, to the one that is closer to being missed


@dataclass(frozen=True, slots=True)
class Admit:
    outlook: Outlook | None  # None until step prices are known
    displaced: tuple[str, ...] = ()  # shadows and requests of lower priority that are shed for this request
    suspended: tuple[str, ...] = ()  # requests of lower priority with time to wait, to be resumed later
    estimate: AnswerEstimate | None = None  # the figures behind the outlook, to be compared with the real answer
    reserved: bool = False  # whether the request takes a place that was kept for it


@dataclass(frozen=True, slots=True)
class Refuse:
    reason: RefuseReason
    limit: str
    arithmetic: str  # the calculation, as a sentence
    retry_after: float | None  # seconds; None if nothing was measured yet, or if waiting would not help
    deadline: DeadlineKind = "end"  # for `deadline_unreachable`: which deadline of the request cannot be met
    place: str = ""  # the key of the place that opens after `retry_after` seconds; empty without a place

    @property
    def is_hopeless(self) -> bool:
        """Whether an idle replica would refuse the request, too, so that the refusal shows no lack of capacity."""
        return self.reason == "deadline_unreachable" and self.retry_after is None


AdmissionDecision = Admit | Refuse


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    max_running: int
    max_waiting: int
    num_blocks: int
    block_size: int
    headroom: int = 0  # blocks that an admission leaves free while other requests run
    max_step_tokens: int = 512  # the most prompt tokens in a step while no request decodes
    age_bound: int = 8  # how many turns a prompt or an adapter stack may be passed over

    @property
    def max_booked(self) -> int:
        return self.max_running + self.max_waiting

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def entry_slots(self) -> int:
        return (self.num_blocks - self.headroom) * self.block_size


@dataclass(frozen=True, slots=True)
class Booking:
    """The facts about a request that the admission controller knows before it decides."""

    key: str
    priority: int  # higher is served first
    arrival: float
    deadline: float | None  # of the whole answer
    prompt_tokens: int
    hit_tokens: int  # prompt tokens that are expected in the prefix cache
    max_tokens: int
    exact: bool = False  # whether the answer has exactly `max_tokens` tokens
    shadow: bool = False
    adapters: tuple[str, ...] = ()
    shared_tokens: int = 0  # hit tokens in blocks that `holder` holds: they need no further slots while it holds them
    holder: str = ""
    caller: str = ""  # the same string for repeated attempts by the same caller; empty if unknown
    first_deadline: float | None = None  # of the first token
    owner: str = ""  # the caller that may get a place
    waits: float | None = None  # seconds that its caller waits for a place before its time limits count; None: no place
    place: str = ""  # the key of the place that is kept for this request
    draft_window: int = 0  # the most tokens that a step guesses ahead


class BookedRequest:
    """An admitted request, or one that is being decided on: its progress and the work it has left."""

    def __init__(self, booking: Booking, index: int, holder: "BookedRequest | None" = None) -> None:
        nearest = earliest(booking.deadline, booking.first_deadline)
        self.booking = booking
        self.priority = booking.priority
        self.rank: Rank = rank_request(booking.priority, booking.arrival, nearest, index)
        self.preemption_order = preemption_order(self.rank)
        self.is_urgent = is_urgent(booking.arrival, nearest)
        self.stack = booking.adapters
        self.is_running = False
        self.was_preempted = False
        self.generated = 0
        self.first_at: float | None = None  # when the first token came
        hit_tokens = min(booking.hit_tokens, booking.prompt_tokens - 1)
        # Tokens to compute before the next one can be sampled; 0 while the request decodes.
        self.prompt_left = booking.prompt_tokens - hit_tokens
        self.holder = holder
        # `shared`: prompt tokens in the holder's blocks. `slots`: pool slots for the prompt tokens that are not shared.
        self.shared: float = 0 if holder is None else min(hit_tokens, booking.shared_tokens)
        self.slots: float = booking.prompt_tokens - self.shared
        self.expected_left = 0.0  # answer tokens still expected
        self.long_left = 0.0  # answer tokens still expected if the answer is among the longest
        self.secured_left = 0.0  # answer tokens for which time is kept if no priority is higher
        self.is_unsure = False  # whether the length is unknown: it is not exact, and no lengths are learnt yet
        self.estimate: AnswerEstimate | None = None
        self.num_higher = 0  # requests of higher priority that were admitted later
        self.is_place = False  # whether this is no request yet, but a place that is kept for one
        self.not_before = -inf  # it can begin then: a request to come, at its arrival
        self.recheck_at = -inf  # until this time, a suspended request is assumed to be able to meet its deadline

    def start(self, num_tokens: int, hit_tokens: int) -> None:
        self.is_running = True
        self.prompt_left = num_tokens - hit_tokens
        self.shared = min(hit_tokens, self.shared)
        self.slots = num_tokens - self.shared

    def preempt(self) -> None:
        """Mark the request preempted. Its computed tokens are expected to be in the cache when it runs again."""
        self.is_running = False
        self.was_preempted = True
        self.recheck_at = -inf
        self.prompt_left = max(1, min(self.prompt_left, int(self.slots)))

    def grow(self, num_tokens: int, now: float) -> None:
        if self.first_at is None:
            self.first_at = now
        self.generated += num_tokens
        self.prompt_left = 0
        self.slots += num_tokens

    def estimate_length(self, lengths: AnswerLengths) -> None:
        booking, so_far = self.booking, self.generated
        self.is_unsure = not booking.exact and not lengths.known
        if booking.exact:
            self.expected_left = self.long_left = self.secured_left = max(1.0, float(booking.max_tokens - so_far))
            return
        self.expected_left = max(1.0, lengths.mean(booking.max_tokens, so_far) - so_far)
        self.long_left = max(self.expected_left, float(lengths.long(booking.max_tokens, so_far) - so_far))
        secured = lengths.long(booking.max_tokens, so_far, _SECURED_SHARE)
        self.secured_left = max(self.long_left, float(secured - so_far))

    @property
    def first_deadline(self) -> float | None:
        """The deadline of the first token; None once that token has been generated."""
        return None if self.generated else self.booking.first_deadline

    @property
    def has_deadline(self) -> bool:
        """Whether the request has a deadline that it can still miss."""
        return self.booking.deadline is not None or self.first_deadline is not None

    @property
    def shed_order(self) -> tuple[float, ...]:
        has_deadline, has_output = self.has_deadline, self.generated > 0
        return shed_order(self.rank, is_shadow=self.booking.shadow, has_deadline=has_deadline, has_output=has_output)

    def yields_to(self, other: "BookedRequest") -> bool:
        """Whether this may be shed for `other`. Shadows yield to callers' requests, lower priorities to higher ones."""
        if self.booking.shadow != other.booking.shadow:
            return self.booking.shadow
        return may_preempt(other.rank, self.rank)


class SharesBlocks(Protocol):
    slots: float
    shared: float
    holder: Any


SharerT = TypeVar("SharerT", bound=SharesBlocks)


def share_blocks(sharer: SharesBlocks, holder: SharesBlocks | None, most: float) -> float:
    """Record that the sharer shares at most `most` tokens, in blocks of `holder`. It needs slots of its own for the
    tokens that it no longer shares; return their number."""
    num_gained = max(0, sharer.shared - most)
    sharer.holder = holder
    sharer.shared -= num_gained
    sharer.slots += num_gained
    return num_gained


def pass_on_blocks(leaver: SharesBlocks, heirs: Iterable[SharerT], sharers: Iterable[SharesBlocks]) -> SharerT:
    """Transfer the leaver's blocks to the one of `heirs` that shares most of them, and return it. The other sharers
    then share with this heir."""
    heir = max(heirs, key=lambda each: each.shared)
    for each in sharers:
        if each is not heir:
            share_blocks(each, heir, heir.shared)
    share_blocks(heir, leaver.holder, leaver.shared)
    return heir


class BookedRequests:
    """All booked requests. Each waits in the queue, runs, or is suspended for a more important request."""

    def __init__(self, age_bound: int) -> None:
        self._age_bound = age_bound
        self._active: dict[str, BookedRequest] = {}
        self.line: list[BookedRequest] = []  # in order of rank
        self._running: dict[str, BookedRequest] = {}
        self._suspended: dict[str, BookedRequest] = {}
        self._num_booked = 0
        self.prompts: PrefillTurns[BookedRequest] = PrefillTurns(age_bound)  # prompts of running requests
        self.num_shadows = 0

    def __len__(self) -> int:
        """The number of requests that are not suspended."""
        return len(self._active)

    @property
    def num_live(self) -> int:
        return len(self._active) + len(self._suspended)

    def get(self, key: str) -> BookedRequest | None:
        return self._active.get(key) or self._suspended.get(key)

    @property
    def active(self) -> Collection[BookedRequest]:
        """Requests that wait in the queue or run."""
        return self._active.values()

    @property
    def suspended(self) -> list[BookedRequest]:
        return sorted(self._suspended.values(), key=get_rank)

    @property
    def running(self) -> Collection[BookedRequest]:
        return self._running.values()

    def new_request(self, booking: Booking) -> BookedRequest:
        """Create a request without booking it."""
        return BookedRequest(booking, self._num_booked + 1, self._active.get(booking.holder))

    def add(self, request: BookedRequest) -> None:
        key = request.booking.key
        if self.get(key) is not None:
            raise ValueError(f"{key!r} is already booked")
        self._num_booked += 1
        self._active[key] = request
        self.num_shadows += request.booking.shadow
        insort(self.line, request, key=get_rank)

    def without_shadows(self) -> "BookedRequests":
        if not self.num_shadows:
            return self
        callers = BookedRequests(self._age_bound)
        callers._num_booked = self._num_booked
        callers._active = {key: each for key, each in self._active.items() if not each.booking.shadow}
        callers.line = [each for each in self.line if not each.booking.shadow]
        callers._running = {key: each for key, each in self._running.items() if not each.booking.shadow}
        callers.prompts = self.prompts
        return callers

    def suspend(self, key: str) -> None:
        """Suspend the request and drop its estimate, which no longer holds."""
        request = self._active.pop(key)
        request.estimate = None
        self._suspended[key] = request
        self._leave(request)

    def resume(self, key: str) -> None:
        """Move the request back to the running ones if the scheduler has not stopped it yet, otherwise to the queue."""
        request = self._active[key] = self._suspended.pop(key)
        if request.is_running:
            self._add_running(request)
        else:
            insort(self.line, request, key=get_rank)

    def start(self, request: BookedRequest) -> None:
        if request.booking.key not in self._suspended:
            self._leave(request)
            self._hold_cached(request)
            self._add_running(request)

    def preempt(self, request: BookedRequest) -> None:
        if request.booking.key in self._running:
            self._leave(request)
            insort(self.line, request, key=get_rank)

    def remove(self, key: str) -> BookedRequest | None:
        request = self._active.pop(key, None)
        if request is None:
            return self._suspended.pop(key, None)
        self.num_shadows -= request.booking.shadow
        self._leave(request)
        return request

    def take_turn(self, keys: Collection[str]) -> None:
        """Record that a step computes a chunk of each of these prompts."""
        served = [each for key in keys if (each := self._running.get(key)) is not None and each in self.prompts]
        if served:
            self.prompts.served(served)

    def _add_running(self, request: BookedRequest) -> None:
        self._running[request.booking.key] = request
        if request.prompt_left:
            self.prompts.add(request)

    def _leave(self, request: BookedRequest) -> None:
        """Remove the request from the queue or from the running requests."""
        if self._running.pop(request.booking.key, None) is not None:
            self.prompts.discard(request)
            self._pass_on(request)
            return
        at = bisect_left(self.line, request.rank, key=get_rank)
        if at < len(self.line) and self.line[at] is request:
            del self.line[at]

    def _sharers(self, holder: BookedRequest) -> list[BookedRequest]:
        return [each for each in (*self._active.values(), *self._suspended.values()) if each.holder is holder]

    def _pass_on(self, leaver: BookedRequest) -> None:
        """Make a running sharer the holder of the leaver's blocks. If none runs, the sharers share with the leaver's
        own holder. If the leaver has none, its blocks stay cached until a sharer starts (see `_hold_cached`)."""
        sharers = self._sharers(leaver)
        if running := [each for each in sharers if each.booking.key in self._running]:
            pass_on_blocks(leaver, running, sharers)
        elif leaver.holder is not None:
            for each in sharers:
                share_blocks(each, leaver.holder, leaver.shared)

    def _hold_cached(self, request: BookedRequest) -> None:
        """If the holder of the request's shared blocks no longer runs, make the request their holder."""
        holder = request.holder
        if holder is not None and holder.booking.key not in self._running:
            pass_on_blocks(holder, [request], self._sharers(holder))


class SimulationStart(NamedTuple):
    """The state in which a simulation begins, at the end of the step in flight. `slowdown` is a safety factor: when the
    simulated scheduler decides whether to hold a prompt back for a deadline, it assumes that all work takes `slowdown`
    times as long. The simulated steps themselves are not slowed down."""

    now: float = 0.0  # on the clock of the deadlines
    delay: float = 0.0  # seconds until the step in flight ends
    tokens: Mapping[str, int] = MappingProxyType({})  # tokens that the step computes or samples, by request
    num_chunked: int = 0  # prompt tokens among them
    slowdown: float = 1.0


START_NOW = SimulationStart()


class ExpectedArrivals(NamedTuple):
    """The load to expect besides the known work: when a request ends, another soon takes its slot."""

    rows: float = 0.0  # rows that usually decode; in rounds with more known rows, no others are expected
    ramp: float = 0.0  # if above 0: the rows come besides the known ones, and nearly all after this many seconds
    prefill: float = 0.0  # share of the time that usually goes into prompts
    higher: float = 0.0  # share of the time that future requests of higher priority take


NO_ARRIVALS = ExpectedArrivals()
_KEPT_PER_STEP = 0.98  # the weight that past steps keep after each step
_USUAL_SECONDS = 30.0
_LEAST_KNOWN_SECONDS = 10.0  # a rate counts as measured for at least this long
_NEW_RESIDENCE = 0.1  # the weight of the newest request in the average
_MAX_USUAL_PREFILL = 0.7  # the most time that prompts are expected to take: a burst of them ends
_MAX_HIGHER = 0.9  # the most that higher priorities are expected to take: some time is always left for lower ones


class WorkRate:
    """Seconds of work per second, by priority. Work from `memory` seconds ago weighs about a third of new work."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._sums: dict[int, float] = {}
        self._until: float | None = None

    def add(self, now: float, priority: int, seconds: float) -> None:
        self._fade(now)
        self._sums[priority] = self._sums.get(priority, 0.0) + seconds

    def from_priority(self, now: float, least: int | None) -> float:
        """The rate of the priority `least` and higher ones; the rate of all priorities if `least` is None."""
        self._fade(now)
        return sum(work for each, work in self._sums.items() if least is None or each >= least) / self._memory

    def _fade(self, now: float) -> None:
        passed = 0.0 if self._until is None else max(0.0, now - self._until)
        self._until = now
        kept = exp(-passed / self._memory)
        for priority in list(self._sums):
            self._sums[priority] *= kept
            if self._sums[priority] < 1e-6:
                del self._sums[priority]


class ExpectedDemand:
    def __init__(self) -> None:
        self._asked = WorkRate(3.0)
        self._admitted = WorkRate(12.0)
        self._admitted_long = WorkRate(_USUAL_SECONDS)
        self._squares = WorkRate(_USUAL_SECONDS)  # of the seconds of each admitted request
        self._since: float | None = None  # when the first request was admitted
        self._prefill = self._decode = self._rows = 0.0
        self._usual_rows, self._usual_prefill = WorkRate(_USUAL_SECONDS), WorkRate(_USUAL_SECONDS)
        self._residence = 0.0  # seconds from admission to end, as a moving average

    def add_asked(self, now: float, priority: int, seconds: float) -> None:
        self._asked.add(now, priority, seconds)

    def add_admitted(self, now: float, priority: int, seconds: float) -> None:
        self._admitted.add(now, priority, seconds)
        self._admitted_long.add(now, priority, seconds)
        self._squares.add(now, priority, seconds**2)
        self._since = now if self._since is None else self._since

    def add_ended(self, seconds: float) -> None:
        """Record that a request ended this long after its admission."""
        self._residence += (_NEW_RESIDENCE if self._residence else 1.0) * (seconds - self._residence)

    def add_step(self, now: float, *, is_prefill: bool, num_rows: int, seconds: float) -> None:
        self._prefill *= _KEPT_PER_STEP
        self._decode *= _KEPT_PER_STEP
        self._rows *= _KEPT_PER_STEP
        if is_prefill:
            self._prefill += seconds
            self._usual_prefill.add(now, 0, seconds)
        else:
            self._usual_rows.add(now, 0, num_rows * seconds)
            self._decode += seconds
            self._rows += num_rows * seconds

    def load(self, now: float, priority: int | None = None) -> float:
        """Seconds of work requested per second, from this priority upwards; of all priorities if `priority` is None."""
        return self._asked.from_priority(now, priority)

    def arrivals(self, now: float, priority: int | None = None) -> ExpectedArrivals:
        """The expected arrivals of this priority and higher ones; of all priorities if `priority` is None."""
        higher = 0.0 if priority is None else self._higher(now, priority)
        if self._decode <= 0:
            return ExpectedArrivals(higher=higher)
        load = min(1.0, self.load(now, priority))
        prefill_share = self._prefill / (self._prefill + self._decode)
        return ExpectedArrivals(load * self._rows / self._decode, prefill=load * prefill_share, higher=higher)

    def usual_arrivals(self, now: float) -> ExpectedArrivals:
        """The arrivals that are most likely: those of the last half minute, idle time included."""
        rows, prefill = (rate.from_priority(now, None) for rate in (self._usual_rows, self._usual_prefill))
        return ExpectedArrivals(rows, self._residence, min(_MAX_USUAL_PREFILL, prefill))

    def is_topmost(self, now: float, priority: int) -> bool:
        """Whether no higher priority is in demand."""
        return not self.load(now, priority + 1)

    def steady_share_above(self, now: float, priority: int) -> float:
        """The share of time that higher priorities take steadily, not only in a burst."""
        return min(self._admitted_long.from_priority(now, priority + 1), self._higher(now, priority))

    def work_above(self, now: float, priority: int) -> tuple[float, float]:
        """Mean and variance of the admitted work of higher priorities, in seconds per second."""
        if self._since is None:
            return 0.0, 0.0
        known = 1 - exp(-max(_LEAST_KNOWN_SECONDS, now - self._since) / _USUAL_SECONDS)
        rates = (self._admitted_long, self._squares)
        mean, variance = (rate.from_priority(now, priority + 1) / known for rate in rates)
        return mean, variance

    def _higher(self, now: float, priority: int) -> float:
        """The share of time that admitted work of higher priorities takes, limited to what they demand now."""
        admitted = self._admitted.from_priority(now, priority + 1)
        return min(_MAX_HIGHER, admitted, self.load(now, priority + 1))
