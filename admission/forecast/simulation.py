"""The known work, simulated to its end under the scheduling policy.

The simulation jumps from event to event (a prompt ends, an answer ends, a request enters), not from step to step. A
round is one decode step of every adapter stack. The distant future is approximated: long prompts get shares of the
chunks instead of turns, and the far end of the queue becomes a steady stream of requests.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from math import ceil, exp, expm1, inf
from operator import attrgetter

from admission import policy
from admission.forecast.bookings import (
    NO_ARRIVALS,
    START_NOW,
    BookedRequest,
    ExpectedArrivals,
    ReplicaCapacity,
    SimulationStart,
)
from admission.forecast.estimates import StepPace, StepPrices
from admission.forecast.simulated_pool import SimulatedPool, SimulatedRequest
from admission.policy import (
    DecodingRequest,
    PrefillHold,
    PrefillTurns,
    get_rank,
    steps_between_switches,
)

_EPSILON = 1e-9
_EXACT_LINE = 32  # waiting requests that are simulated individually; those behind them form a stream
_EXACT_CHUNKS = 20  # chunks assigned individually, usually two turns of every prompt; later ones are assigned by shares


_get_not_before = attrgetter("not_before")
_get_preemption_order = attrgetter("request.preemption_order")


class Simulation:
    """Simulates when each request begins, gets its first token and ends."""

    def __init__(
        self,
        capacity: ReplicaCapacity,
        prices: StepPrices,
        pace: StepPace,
        running: Mapping[BookedRequest, int],
        line: list[BookedRequest],
        start: SimulationStart = START_NOW,
        arrivals: ExpectedArrivals = NO_ARRIVALS,
    ) -> None:
        """`running` maps each request to the number of turns that it has missed; `line` is in order of rank."""
        self._capacity, self._prices, self._start = capacity, prices, start
        self._prefill, self._decode, self._num_slots = prices.prefill, prices.decode, capacity.num_slots
        self._chunk, self._slowdown = pace.chunk, start.slowdown
        self._hold: PrefillHold | None = None
        if pace.hold is not None:
            self._hold = PrefillHold(pace.hold.chunk_seconds, pace.hold.round_seconds * start.slowdown)
        self._expected_rows, self._ramp = arrivals.rows, arrivals.ramp
        self._stretch = 1.0 / max(0.1, 1.0 - arrivals.prefill)
        self._now, self._rounds = start.delay, 0.0
        self._num_chunked: float = start.num_chunked  # prompt tokens since the last round
        self._num_chunks = 0
        self._context = 0.0  # tokens that the decoding requests attend to
        self._turns: PrefillTurns[SimulatedRequest] = PrefillTurns(capacity.age_bound)
        self._prompts = self._turns.by_rank
        self._decoding: list[tuple[float, int, SimulatedRequest]] = []  # a heap by the round in which they end
        self._stacks: dict[tuple[str, ...], int] = {}  # decoding requests by adapter stack
        self._timed: dict[SimulatedRequest, DecodingRequest] = {}  # decoding requests with a deadline
        self._jobs = {request: SimulatedRequest(request) for request in (*running, *line)}
        self._line = [self._jobs[request] for request in line if request.not_before <= start.now]
        # Requests to come, the next one last.
        coming = sorted((each for each in line if each.not_before > start.now), key=_get_not_before, reverse=True)
        self._coming = [self._jobs[request] for request in coming]
        self._pool = SimulatedPool(capacity, self._jobs, self._prompts, self._decoding)
        self._next = 0
        self._may_enter = True  # whether a slot or blocks became free since the first in line did not fit
        self._lowest = -inf  # negated priority; no running request has a lower priority
        self._is_over = False
        # `_curve_rounds[i]` rounds are done at `_curve_times[i]`.
        self._curve_rounds, self._curve_times = [0.0], [start.delay]
        for request, passed_over in running.items():
            self._load_running(self._jobs[request], passed_over)
        # Requests that enter now do not postpone the round after the step in flight.
        self._owes_first = bool(self._num_chunked) and self._owes_round()
        for job in self._list_running():
            if job.shared:
                self._pool.share_blocks(job)

    def run(self, until: BookedRequest | None = None) -> "Simulation":
        """Run to the end, or until all times of `until` are known."""
        target = None if until is None else self[until]
        while not self._is_over:
            if self._coming and self._coming[-1].request.not_before - self._start.now <= self._now:
                self._arrive()
            if self._may_enter:
                self._enter()
            if self._next >= _EXACT_LINE and len(self._line) - self._next > _EXACT_LINE:
                while self._coming:
                    self._arrive()
                self._stream_rest()
                self._is_over = True
            elif target is not None and target.finish_at < inf and self._rounds >= target.long_round:
                break
            elif self._step():
                self._curve_rounds.append(self._rounds)
                self._curve_times.append(self._now)
                decoding = self._decoding
                while decoding and decoding[0][0] <= self._rounds + _EPSILON:
                    job = heappop(decoding)[2]
                    job.finish_at, job.end_round = self._now, self._rounds
                    self._stop_decoding(job)
            elif self._coming:  # nothing to do before the next arrival
                self._now = max(self._now, self._coming[-1].request.not_before - self._start.now)
                self._curve_rounds.append(self._rounds)
                self._curve_times.append(self._now)
            else:
                self._is_over = True
        return self

    def _arrive(self) -> None:
        job = self._coming.pop()
        self._line.insert(bisect_left(self._line, job.rank, lo=self._next, key=get_rank), job)
        self._may_enter = True

    def __getitem__(self, request: BookedRequest) -> SimulatedRequest:
        return self._jobs.get(request) or SimulatedRequest(request)

    def long_finish(self, request: BookedRequest, num_left: float | None = None) -> float:
        """When the request ends if `num_left` tokens of its answer are left now (None: if it is among the longest)."""
        job, num_left = self[request], request.long_left if num_left is None else num_left
        if num_left <= request.expected_left or job.finish_at == inf:
            return job.finish_at
        rounds, curve, times = job.round_of(num_left), self._curve_rounds, self._curve_times
        i = bisect_left(curve, rounds)
        if i == len(curve):
            step, token, _ = self._decode
            lone_round = (step + token * max(1.0, self._expected_rows)) * self._stretch
            return times[-1] + (rounds - curve[-1]) * lone_round
        if i == 0:
            return 0.0
        return times[i - 1] + (rounds - curve[i - 1]) / (curve[i] - curve[i - 1]) * (times[i] - times[i - 1])

    def _step(self) -> bool:
        """Simulate the next chunks and the round after them, or only rounds. Return False if there is no work."""
        if self._owes_first or (self._num_chunked and self._owes_round()):
            self._owes_first = False
            self._take_rounds(1.0, after_chunk=True)
            return True
        held: SimulatedRequest | None = None
        if self._prompts:
            prompts = self._turns.pick()
            margin = self._hold_margin(prompts[0])
            if margin >= 0:
                self._take_chunks(prompts, margin)
                if self._num_chunked and self._owes_round():
                    self._take_rounds(1.0, after_chunk=True)
                return True
            held, self._num_chunked = prompts[0], 0
        if not self._decoding:
            return False
        count = max(self._decoding[0][0] - self._rounds, _EPSILON)
        if self._coming:
            left = self._coming[-1].request.not_before - self._start.now - self._now
            count = min(count, max(1.0, ceil(left / self._round_seconds(1.0, after_chunk=False))))
        self._take_rounds(count if held is None else self._rounds_held(held, count), after_chunk=False)
        return True

    def _owes_round(self) -> bool:
        """Return whether a round must follow the last prompt tokens. If so, the caller takes it next."""
        if not policy.owes_decode(self._chunk, self._num_chunked, more_prompts=bool(self._prompts)):
            return False
        self._num_chunked = 0
        return bool(self._decoding)

    def _load_running(self, job: SimulatedRequest, passed_over: int) -> None:
        request = job.request
        done = self._start.tokens.get(request.booking.key, 0)
        job.begun_at, job.first_at = 0.0, 0.0 if request.generated else inf
        if not request.prompt_left:
            job.to_go -= done
            job.slots += done - 1  # the last token is computed by the next round
            self._add_running(job)
            self._begin_decoding(job)
            return
        self._add_running(job)
        job.left -= done
        if job.left > 0:
            self._turns.add(job, passed_over)
        else:
            self._emit_first(job)

    def _add_running(self, job: SimulatedRequest) -> None:
        self._pool.add_running(job)
        if job.rank[0] > self._lowest:
            self._lowest = job.rank[0]

    def _enter(self) -> None:
        """Start requests in queue order while slots and blocks are free or lower priorities can be preempted."""
        self._may_enter = False
        while self._next < len(self._line):
            job = self._line[self._next]
            num_running = len(self._decoding) + len(self._prompts)
            no_slot = num_running >= self._capacity.max_running
            is_short = num_running > 0 and not self._pool.has_room(job, self._rounds)
            if no_slot or is_short:
                victims = self._choose_victims(job) if job.rank[0] < self._lowest else []
                if not victims:
                    return
                for victim in victims:
                    self._preempt(victim, recompute=is_short)
                continue
            self._next += 1
            job.begun_at = min(job.begun_at, self._now)
            self._add_running(job)
            if job.shared:
                self._pool.share_blocks(job)
            self._turns.add(job)

    def _choose_victims(self, head: SimulatedRequest) -> list[SimulatedRequest]:
        running = sorted(self._list_running(), key=_get_preemption_order)
        self._lowest = running[0].rank[0]
        lower = (job for job in running if policy.may_preempt(head.rank, job.rank))
        shortage = self._pool.count_shortage(head, self._rounds)
        count_held = partial(self._pool.count_held, rounds=self._rounds)
        return policy.choose_victims(lower, count_held, shortage, most=len(running) - 1)

    def _preempt(self, victim: SimulatedRequest, *, recompute: bool) -> None:
        if victim in self._turns:
            self._turns.discard(victim)
            self._remove_running(victim, victim.slots)
        else:
            self._decoding[:] = [item for item in self._decoding if item[2] is not victim]
            heapify(self._decoding)
            num_grown = self._stop_decoding(victim)
            victim.to_go -= num_grown
            victim.slots += num_grown + 1
            victim.left = victim.size + num_grown if recompute else self._capacity.block_size / 2
        self._line.insert(bisect_left(self._line, victim.rank, lo=self._next, key=get_rank), victim)

    def _list_running(self) -> list[SimulatedRequest]:
        return [item[2] for item in self._decoding] + self._prompts

    def _remove_running(self, job: SimulatedRequest, slots: float) -> None:
        self._pool.remove_running(job, slots)
        self._may_enter = True

    def _hold_margin(self, prompt: SimulatedRequest) -> float:
        """Return `PrefillHold.margin` for the prompt now; infinite if no decoding request can hold it back."""
        if self._hold is None or not self._timed:
            return inf
        now, num_chunks = self._start.now + self._now * self._slowdown, ceil(prompt.left / self._chunk)
        return self._hold.margin(prompt.rank, self._timed.values(), now, num_chunks, self._rounds)

    def _rounds_held(self, prompt: SimulatedRequest, count: float) -> float:
        """Return how many of the next `count` rounds are taken before the held prompt continues."""
        if self._hold is None or count <= 1:
            return count
        hold, num_stacks, seconds = self._hold, len(self._stacks), self._round_seconds(1.0, after_chunk=False)
        num_chunks, real_seconds = ceil(prompt.left / self._chunk), seconds * self._slowdown
        now = self._start.now + self._now * self._slowdown

        def goes_on(num_rounds: float) -> bool:
            later = PrefillHold(hold.chunk_seconds, hold.round_seconds)
            later.observe(real_seconds / num_stacks, num_rounds * num_stacks)
            at, rounds = now + num_rounds * real_seconds, self._rounds + num_rounds
            return later.margin(prompt.rank, self._timed.values(), at, num_chunks, rounds) >= 0

        if not goes_on(count - 1):
            return count
        return 1 + bisect_left(range(1, ceil(count)), True, key=goes_on)

    def _take_chunks(self, prompts: Sequence[SimulatedRequest], margin: float) -> None:
        """Simulate the next chunk or, if that is accurate, several at once, each with the decode steps after it."""
        most, decodes, holds = self._capacity.max_step_tokens, bool(self._decoding), self._hold is not None
        tokens = policy.prefill_tokens(self._chunk, int(self._num_chunked), most, decodes=decodes, holds=holds)
        first = self._prompts[0]
        goes_alone = len(self._prompts) == 1 or (len(prompts) == len(self._prompts) and first.is_urgent)
        is_exact = first.left <= tokens if goes_alone else self._num_chunks < _EXACT_CHUNKS
        if is_exact or self._num_chunked:
            self._take_chunk(prompts, tokens)
            return
        others = [] if goes_alone else self._turns.sharing()[1:]
        turns = max(1 + len(others), self._capacity.age_bound + 1)
        first_share, share = 1 - len(others) / turns, 1 / turns
        nearest, num_chunks = first, first.left / (first_share * tokens)
        for job in others:
            if job.left / (share * tokens) < num_chunks:
                nearest, num_chunks = job, job.left / (share * tokens)
        if num_chunks > 1:
            shares = [(first, first_share), *[(job, share) for job in others]]
            self._take_whole_chunks(ceil(num_chunks - 1), tokens, shares, margin)
        else:
            self._take_chunk([nearest, *[job for job in self._prompts if job is not nearest]], tokens)

    def _take_chunk(self, prompts: Sequence[SimulatedRequest], tokens: float) -> None:
        step, token, pair = self._prefill
        self._now += step
        self._num_chunks += 1
        served = []
        for job in prompts:
            taken = job.left if job.left < tokens else tokens
            job.left -= taken
            tokens -= taken
            self._num_chunked += taken
            self._now += taken * (token + pair * ((job.num_total - job.to_go) - job.left - taken / 2))
            served.append(job)
            if tokens <= 0:
                break
        self._turns.served(served)
        for job in served:
            if job.left <= _EPSILON:
                self._turns.discard(job)
                self._emit_first(job)

    def _take_whole_chunks(
        self,
        count: float,
        tokens: int,
        shares: Sequence[tuple[SimulatedRequest, float]],
        margin: float,
    ) -> None:
        step, token, pair = self._prefill
        num_rows = len(self._decoding)
        if num_rows:
            count = min(count, ceil(self._decoding[0][0] - self._rounds))
            count = max(1.0, self._pool.rounds_in_pool(self._rounds, count))
        if margin < inf:
            chunk_seconds = (step + tokens * token) * self._slowdown + _EPSILON
            count = max(1.0, min(count, margin // chunk_seconds))
        seconds = count * (step + tokens * token)
        for job, share in shares:
            taken = count * tokens * share
            job.left -= taken
            seconds += pair * taken * ((job.num_total - job.to_go) - job.left - taken / 2)
        self._now += seconds
        if num_rows:
            self._take_rounds(count, after_chunk=True)

    def _emit_first(self, job: SimulatedRequest) -> None:
        job.first_at = min(job.first_at, self._now)
        job.to_go -= 1
        self._begin_decoding(job)

    def _begin_decoding(self, job: SimulatedRequest) -> None:
        rounds = self._rounds
        job.since = rounds
        job.size = job.num_total - job.to_go
        if job.to_go <= _EPSILON:
            job.finish_at, job.end_round = self._now, rounds
            self._remove_running(job, job.slots)
            return
        booking = job.request.booking
        if booking.deadline is not None and self._hold is not None:
            longest = min(booking.prompt_tokens + booking.max_tokens, self._num_slots)
            self._timed[job] = job.rank, booking.deadline, rounds + longest - job.size
        heappush(self._decoding, (rounds + job.to_go, job.rank[3], job))
        self._context += job.size
        self._stacks[job.stack] = self._stacks.get(job.stack, 0) + 1

    def _take_rounds(self, count: float, *, after_chunk: bool) -> None:
        """Take rounds. If the pool is too full for a round, running requests are preempted first, as in a real step."""
        fitting = self._pool.rounds_in_pool(self._rounds, count)
        while not fitting and len(self._decoding) + len(self._prompts) > 1:
            self._preempt(min(self._list_running(), key=_get_preemption_order), recompute=True)
            fitting = self._pool.rounds_in_pool(self._rounds, count)
        num_rows = len(self._decoding)
        if not num_rows:
            return
        count = fitting or count
        seconds = self._round_seconds(count, after_chunk=after_chunk)
        self._now += count * seconds
        self._rounds += count
        self._context += count * num_rows
        self._pool.used_slots += count * num_rows
        if self._hold is not None:
            num_stacks = len(self._stacks)
            self._hold.observe(seconds * self._slowdown / num_stacks, count * num_stacks)

    def _round_seconds(self, count: float, *, after_chunk: bool) -> float:
        """Mean seconds per round over the next `count` rounds."""
        step, token, pair = self._decode
        num_rows, num_stacks = len(self._decoding), len(self._stacks)
        seconds = num_stacks * step + token * num_rows + pair * (self._context + count * num_rows / 2)
        if num_stacks > 1:
            steps = steps_between_switches(self._capacity.age_bound, after_chunk=after_chunk)
            seconds += num_stacks * self._prices.switch / steps
        stretch = 1.0 if self._prompts else self._stretch
        if not self._ramp:
            return (seconds + token * max(0.0, self._expected_rows - num_rows)) * stretch
        most = self._expected_rows * (token + pair * self._context / num_rows)
        return stretch * (seconds + most * self._share_arrived(count * stretch * (seconds + most / 2)))

    def _share_arrived(self, seconds: float) -> float:
        """The mean share of the expected arrivals that have come, over the next `seconds`."""
        x, left = seconds / self._ramp, exp(-self._now / self._ramp)
        return 1.0 - left * (-expm1(-x) / x if x > _EPSILON else 1.0)

    def _stop_decoding(self, job: SimulatedRequest) -> float:
        """Free what the decoding request holds. Return the number of tokens generated since it began to decode."""
        num_grown = self._rounds - job.since
        self._context -= job.size + num_grown
        self._timed.pop(job, None)
        self._stacks[job.stack] -= 1
        if not self._stacks[job.stack]:
            del self._stacks[job.stack]
        self._remove_running(job, job.slots + num_grown)
        return num_grown

    def _stream_rest(self) -> None:
        """Approximate the rest of the line as a stream: each request begins when the work before it is done, and the
        number of requests that share a round stays as it is now."""
        rest, prices, now, rounds = self._line[self._next :], self._prices, self._now, self._rounds
        num_rows, num_stacks = len(self._decoding) + len(self._prompts), max(1, len(self._stacks))
        look_back = self._context / max(1, len(self._decoding))
        a_round = num_stacks * prices.decode_step
        if num_stacks > 1:
            a_round += num_stacks * prices.switch / steps_between_switches(self._capacity.age_bound, after_chunk=False)
        a_round += max(num_rows, self._expected_rows) * (prices.decode_token + prices.decode_pair * look_back)
        prompt_token = prices.prefill_step / self._chunk + prices.prefill_token + prices.prefill_pair * look_back / 2
        slow_token = prompt_token + a_round / self._chunk  # with the rounds between the chunks
        answer_token = a_round / num_rows  # an answer's share of a round
        prompts = answers = 0.0
        for job in rest:
            prompts += job.left * prompt_token
            answers += job.to_go * answer_token
        # Seconds from one token of an answer to the next, with the prompts between them.
        cycle = max(a_round, _EPSILON) * (1 + prompts / max(answers, _EPSILON))
        work, at, last = 0.0, now, now
        for end, _, job in self._decoding:
            work += (end - rounds) * answer_token
            job.finish_at, job.end_round = now + (end - rounds) * cycle, end
            last = max(last, job.finish_at)
        for job in self._prompts:
            work += job.left * prompt_token + job.to_go * answer_token
            first_at = at + job.left * slow_token
            job.begun_at, job.first_at = min(job.begun_at, at), min(job.first_at, first_at)
            job.finish_at = first_at + max(0.0, job.to_go - 1) * cycle
            job.end_round = rounds + (job.finish_at - now) / cycle
            last = max(last, job.finish_at)
            at += job.left * prompt_token
        # Work of the running requests beyond the usual amount, which is half of a mean request's work for each.
        at = now + max(0.0, work - num_rows * (prompts + answers) / len(rest) / 2)
        for job in rest:  # a hot loop: hundreds of requests per decision
            left, to_go = job.left, job.to_go
            at += left * prompt_token + to_go * answer_token
            first_at = at + left * slow_token
            end = first_at + (to_go - 1) * cycle if to_go > 1 else first_at
            if at < job.begun_at:
                job.begun_at = at
            if first_at < job.first_at:
                job.first_at = first_at
            job.finish_at, job.end_round = end, rounds + (end - now) / cycle
            if end > last:
                last = end
        self._curve_rounds.append(rounds + (last - now) / cycle)
        self._curve_times.append(last)
