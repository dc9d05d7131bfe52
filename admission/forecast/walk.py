"""The known work, walked forward to its end as the scheduler will take it."""

from bisect import bisect_left, insort
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from math import ceil, inf
from types import MappingProxyType
from typing import NamedTuple

from admission.forecast.entry import Entry, Rank, newness, rank_of
from admission.forecast.prices import Prices
from admission.forecast.room import Room
from admission.forecast.stream import Stream

_EPSILON = 1e-9
_EXACT_LINE = 32
"""So many of those who wait are followed one by one; those behind them as a stream."""
_EXACT_CHUNKS = 20
"""So many, two turns of everybody as a rule, are dealt out one by one; those behind them by shares."""


class Refill(NamedTuple):
    """Who is to be expected beside the known work: seats that come free do not stay free."""

    rows: float = 0.0
    """That usually decode."""
    prefill: float = 0.0
    """Share of the time that usually goes into prompts."""
    higher: float = 0.0
    """Share of the time that those take who will come and go before everybody here."""


NOBODY_ELSE = Refill()


class Pace(NamedTuple):
    """How the scheduler takes its steps now."""

    chunk: int
    """Prompt tokens in a step while others decode."""
    tokens: float = 1.0
    """That a row of a decode step yields."""


class Start(NamedTuple):
    """Where a walk begins: at the end of the step that is under way."""

    at: float = 0.0
    tokens: Mapping[str, int] = MappingProxyType({})
    """What it does for each request in it."""


NOTHING_UNDER_WAY = Start()


class Walk:
    """From finish to finish, not from step to step. A round is a decode step for everybody who decodes.

    Leaves in every entry when it begins, has its first token and ends, in seconds from now.
    """

    def __init__(self, room: Room, prices: Prices, pace: Pace, refill: Refill = NOBODY_ELSE) -> None:
        self._room = room
        self._prices = prices
        self._prefill, self._decode = prices.prefill, prices.decode
        self._pace = pace
        self.refill = refill
        self._refill_rows = refill.rows
        self._stretch = 1.0 / max(0.1, 1.0 - refill.prefill)
        self._per_seat = room.block_size / 2
        """Slots of a last block that are empty, on average."""
        self._now = self._rounds = 0.0
        self._held = 0.0
        """Slots of the pool in use."""
        self._context = 0.0
        """Tokens that those who decode look back at."""
        self._prompts: list[tuple[Rank, Entry]] = []
        self._decoding: list[tuple[float, int, Entry]] = []
        self._stacks: dict[tuple[str, ...], int] = {}
        self._line: list[Entry] = []
        self._next = 0
        self._one_stack = True
        self._ticks = 0
        self._overdue_from = 0
        """Before that tick nobody has been passed over too often: who comes, comes with a later turn."""
        self._lowest: float = inf
        self._curve_rounds, self._curve_times = [0.0], [0.0]

    def run(
        self,
        running: list[Entry],
        line: list[Entry],
        start: Start = NOTHING_UNDER_WAY,
        until: Entry | None = None,
    ) -> "Walk":
        """`line` is in order of rank. Behind the end of `until` nobody's end is looked for."""
        self._now = start.at
        self._curve_times = [start.at]
        self._line = list(line)
        self._one_stack = len({entry.stack for entry in running} | {entry.stack for entry in line}) < 2
        for entry in line:
            entry.begun_at = entry.first_at = entry.finish_at = inf
            entry.to_go = entry.expected_left
            entry.left = entry.prompt_left
        for entry in running:
            self._seat_runner(entry, start.tokens.get(entry.booking.key, 0))
        self._prompts.sort()
        heapify(self._decoding)
        while True:
            self._enter()
            if self._next >= _EXACT_LINE and len(self._line) - self._next > _EXACT_LINE:
                self._flow(until)
                break
            if until is not None and self._is_over(until):
                break
            if self._prompts:
                self._take_chunks()
            elif self._decoding:
                self._take_rounds()
            else:
                break
            self._curve_rounds.append(self._rounds)
            self._curve_times.append(self._now)
            self._finish()
        return self

    def _is_over(self, entry: Entry) -> bool:
        """Whether all is known about it."""
        return entry.finish_at < inf and self._rounds >= self._long_round(entry)

    def _flow(self, until: Entry | None) -> None:
        """The rest as a stream: each begins when the work of those before it is done."""
        stream = self._stream()
        last = at = self._now
        for end, _, entry in self._decoding:
            last = max(last, stream.end(entry, self._now + (end - self._rounds) * stream.cycle))
        for _, entry in self._prompts:
            last = max(last, stream.seat(entry, at))
            at += entry.left * stream.prompt_token
        if until is None or until.finish_at == inf:
            last = max(last, stream.carry(self._line[self._next :], self._now + self._work_ahead(stream)))
        else:
            last = max(last, self._now + (self._long_round(until) - self._rounds) * stream.cycle)
        self._curve_rounds.append(stream.round_at(last))
        self._curve_times.append(last)

    def _work_ahead(self, stream: Stream) -> float:
        """Seconds of work in the seats beyond what usually is there: half of what those had who sit in them."""
        seated = sum(end - self._rounds for end, _, _ in self._decoding) * self._pace.tokens * stream.answer_token
        seated += sum(stream.work(entry) for _, entry in self._prompts)
        rest = self._line[self._next :]
        usual = sum(map(stream.work, rest)) / len(rest)
        return max(0.0, seated - (len(self._decoding) + len(self._prompts)) * usual / 2)

    def _stream(self) -> Stream:
        """As many as are seated now share each round."""
        prices, tokens, chunk = self._prices, self._pace.tokens, self._pace.chunk
        rows = len(self._decoding) + len(self._prompts)
        look_back = self._context / max(1, len(self._decoding))
        stacks = max(1, len(self._stacks))
        a_round = stacks * prices.decode_step + (stacks * prices.switch / self._room.age_bound if stacks > 1 else 0.0)
        a_round += max(rows * tokens, self._refill_rows) * (prices.decode_token + prices.decode_pair * look_back)
        prompt_token = prices.prefill_step / chunk + prices.prefill_token + prices.prefill_pair * look_back / 2
        answer_token = a_round / (rows * tokens)
        rest = self._line[self._next :]
        prompts = prompt_token * sum(entry.left for entry in rest)
        answers = answer_token * sum(entry.to_go for entry in rest)
        cycle = max(a_round, _EPSILON) / tokens * (1 + prompts / max(answers, _EPSILON))
        return Stream(self._now, self._rounds, prompt_token, answer_token, a_round / chunk, cycle)

    def _seat_runner(self, entry: Entry, done: int) -> None:
        """`done` is what the step under way does for it."""
        entry.begun_at = 0.0
        entry.first_at = 0.0 if entry.generated else inf
        entry.finish_at = inf
        entry.to_go = entry.expected_left
        entry.turn = entry.passed_over
        self._held += entry.slots + self._per_seat
        self._lowest = min(self._lowest, entry.priority)
        if entry.prompt_left:
            entry.left = entry.prompt_left - done
            if entry.left > 0:
                self._prompts.append((entry.rank, entry))
            else:
                self._speak(entry)
            return
        entry.to_go -= done
        self._decode_on(entry)

    def _enter(self) -> None:
        room = self._room
        while self._next < len(self._line):
            head = self._line[self._next]
            seated = len(self._decoding) + len(self._prompts)
            no_seat = seated >= room.max_running
            short = seated and self._held + head.slots + self._per_seat > room.entry_slots
            if no_seat or short:
                if head.priority <= self._lowest or seated < 2 or not self._make_way(head, recompute=bool(short)):
                    return
                continue
            self._next += 1
            head.begun_at = min(head.begun_at, self._now)
            head.turn = self._ticks
            self._held += head.slots + self._per_seat
            self._lowest = min(self._lowest, head.priority)
            insort(self._prompts, (head.rank, head))

    def _make_way(self, head: Entry | None, *, recompute: bool) -> bool:
        """The lowest and newest goes back into the line, if it is below the head or there is no head."""
        seated = [item[2] for item in self._decoding] + [item[1] for item in self._prompts]
        victim = max(seated, key=newness)
        if head is not None and victim.priority >= head.priority:
            return False
        if any(item[1] is victim for item in self._prompts):
            self._prompts = [item for item in self._prompts if item[1] is not victim]
            self._held -= victim.slots + self._per_seat
        else:
            self._decoding = [item for item in self._decoding if item[2] is not victim]
            heapify(self._decoding)
            grown = self._leave(victim)
            victim.to_go -= grown
            victim.left = victim.size + grown if recompute else self._per_seat
        self._line.insert(bisect_left(self._line, victim.rank, lo=self._next, key=rank_of), victim)
        return True

    def _take_chunks(self) -> None:
        """Chunks as long as no prompt ends with them, or one that ends some; a round behind each of them."""
        most = float(self._pace.chunk if self._decoding else self._most_alone())
        count = 1.0
        if len(self._prompts) == 1 or self._is_plain():
            left = self._prompts[0][1].left
            if left > most:
                count = self._take_whole_chunks(most, left / most, [(self._prompts[0], 1.0)])
            else:
                self._take_chunk(most, self._prompts)
        elif self._ticks < _EXACT_CHUNKS:
            taken = self._take_chunk(most, self._turns())
            while self._prompts and taken < self._pace.chunk:  # what is left of the budget, for prompts of other stacks
                taken += self._take_chunk(self._pace.chunk - taken, self._turns())
        else:
            shares = self._shares()
            ends = min(item[1].left / (share * most) for item, share in shares)
            if ends > 1:
                count = self._take_whole_chunks(most, ends, shares)
            else:
                self._take_chunk(most, self._nearest_first(shares))
        if self._decoding:
            self._now += count * self._round_seconds(1.0)
            self._advance(count)

    def _most_alone(self) -> int:
        most, chunks = self._room.max_step_tokens, self._room.lone_chunks
        return most if chunks is None else min(most, chunks * self._pace.chunk)

    def _is_plain(self) -> bool:
        """Whether one prompt is computed behind the other."""
        return self._one_stack and self._prompts[0][1].pressed

    def _turns(self) -> list[tuple[Rank, Entry]]:
        """Prompts of one adapter stack in the order of their turns: who was passed over too often, then by rank; by
        rank alone where the first of them is pressed for time."""
        if self._ticks < self._overdue_from:
            return self._stack_of(self._prompts[0][1].stack)
        overdue = self._ticks - self._room.age_bound
        late = [item for item in self._prompts if item[1].turn <= overdue]
        if not late:
            self._overdue_from = self._room.age_bound + min(item[1].turn for item in self._prompts)
        first = min(late, key=_by_turn) if late else self._prompts[0]
        order = self._stack_of(first[1].stack)
        if late and not order[0][1].pressed:
            late = sorted((item for item in order if item[1].turn <= overdue), key=_by_turn)
            return late + [item for item in order if item[1].turn > overdue]
        return order

    def _stack_of(self, stack: tuple[str, ...]) -> list[tuple[Rank, Entry]]:
        return self._prompts if self._one_stack else [item for item in self._prompts if item[1].stack == stack]

    def _shares(self) -> list[tuple[tuple[Rank, Entry], float]]:
        """Of the chunks, for the first prompt and for each other that has turns."""
        first, *others = self._taking_turns()
        turns = max(1 + len(others), self._room.age_bound + 1)
        return [(first, 1 - len(others) / turns), *((item, 1 / turns) for item in others)]

    def _taking_turns(self) -> list[tuple[Rank, Entry]]:
        """Of a stack whose first is pressed for time nobody else."""
        if self._one_stack:
            return self._prompts[:1] if self._is_plain() else self._prompts
        heads = {item[1].stack: item for item in reversed(self._prompts)}
        hurried = {stack for stack, head in heads.items() if head[1].pressed}
        return [item for item in self._prompts if item[1].stack not in hurried or heads[item[1].stack] is item]

    def _take_whole_chunks(self, most: float, count: float, shares: list[tuple[tuple[Rank, Entry], float]]) -> float:
        count = float(ceil(count - 1))
        if self._decoding:
            count = max(1.0, min(count, ceil(self._decoding[0][0] - self._rounds)))
        step, token, pair = self._prefill
        seconds = count * (step + most * token)
        for (_, entry), share in shares:
            taken = count * most * share
            entry.left -= taken
            seconds += pair * taken * (self._known(entry) - entry.left - taken / 2)
        self._now += seconds
        return count

    def _nearest_first(self, shares: list[tuple[tuple[Rank, Entry], float]]) -> list[tuple[Rank, Entry]]:
        nearest = min(shares, key=lambda each: each[0][1].left / each[1])[0]
        if nearest is self._prompts[0]:
            return self._prompts
        return [nearest, *(item for item in self._prompts if item is not nearest)]

    def _take_chunk(self, budget: float, order: list[tuple[Rank, Entry]]) -> float:
        """How many tokens that was."""
        step, token, pair = self._prefill
        self._now += step
        self._ticks += 1
        most = budget
        ended = []
        first = (order[0] if order is self._prompts else min(order))[1]
        for item in order:
            entry = item[1]
            taken = min(entry.left, budget)
            budget -= taken
            entry.left -= taken
            entry.turn = self._ticks
            self._now += taken * (token + pair * (self._known(entry) - entry.left - taken / 2))
            if entry.left <= _EPSILON:
                ended.append(item)
            if budget <= 0:
                break
        for item in ended:
            self._prompts.remove(item)
        if first.pressed:
            self._note_turn(first.stack)
        for _, entry in ended:
            self._speak(entry)
        return most - budget

    def _note_turn(self, stack: tuple[str, ...]) -> None:
        """Nobody of it counts as passed over."""
        for _, entry in self._prompts:
            if entry.stack == stack:
                entry.turn = self._ticks

    def _speak(self, entry: Entry) -> None:
        """Its prompt is computed: the first token is there, and it decodes from now on."""
        entry.first_at = min(entry.first_at, self._now)
        entry.to_go -= 1
        self._decode_on(entry)

    def _decode_on(self, entry: Entry) -> None:
        entry.since = self._rounds
        entry.size = self._known(entry)
        if entry.to_go <= _EPSILON:
            entry.finish_at = self._now
            entry.end_round = self._rounds
            self._held -= entry.slots + self._per_seat
            return
        heappush(self._decoding, (self._rounds + entry.to_go / self._pace.tokens, entry.rank[3], entry))
        self._context += entry.size
        self._stacks[entry.stack] = self._stacks.get(entry.stack, 0) + 1

    @staticmethod
    def _known(entry: Entry) -> float:
        return entry.booking.prompt_tokens + entry.generated + entry.expected_left - entry.to_go

    def _take_rounds(self) -> None:
        """Until the first of them ends, or the pool is full."""
        count = max(self._decoding[0][0] - self._rounds, _EPSILON)
        growth = len(self._decoding) * self._pace.tokens
        free = self._room.num_slots - self._held
        if count * growth > free and len(self._decoding) > 1:
            count = free / growth
            if count < 1:
                self._make_way(None, recompute=True)
                return
        self._now += count * self._round_seconds(float(self._room.age_bound), count)
        self._advance(count)

    def _round_seconds(self, turns: float, count: float = 1.0) -> float:
        """`turns` is how many rounds an adapter stack goes on."""
        step, token, pair = self._decode
        rows = len(self._decoding) * self._pace.tokens
        context = self._context + rows * count / 2
        num_stacks = len(self._stacks)
        seconds = num_stacks * step + token * max(rows, self._refill_rows) + pair * context
        if num_stacks > 1:
            seconds += num_stacks * self._prices.switch / turns
        return seconds if self._prompts else seconds * self._stretch

    def _advance(self, count: float) -> None:
        growth = count * len(self._decoding) * self._pace.tokens
        self._context += growth
        self._held += growth
        self._rounds += count

    def _finish(self) -> None:
        decoding = self._decoding
        while decoding and decoding[0][0] <= self._rounds + _EPSILON:
            entry = heappop(decoding)[2]
            entry.finish_at = self._now
            entry.end_round = self._rounds
            self._leave(entry)

    def _leave(self, entry: Entry) -> float:
        """It no longer decodes. How many tokens it had since it began to."""
        grown = (self._rounds - entry.since) * self._pace.tokens
        self._context -= entry.size + grown
        self._held -= entry.slots + grown + self._per_seat
        self._stacks[entry.stack] -= 1
        if not self._stacks[entry.stack]:
            del self._stacks[entry.stack]
        return grown

    def long_finish(self, entry: Entry) -> float:
        """When one of the longest answers it may get would end."""
        if entry.long_left <= entry.expected_left or entry.finish_at == inf:
            return entry.finish_at
        return self._time_of(self._long_round(entry))

    def _long_round(self, entry: Entry) -> float:
        return entry.end_round + max(0.0, entry.long_left - entry.expected_left) / self._pace.tokens

    def _time_of(self, rounds: float) -> float:
        """When so many rounds are done; behind the last, as if one went on alone."""
        curve = self._curve_rounds
        i = bisect_left(curve, rounds)
        if i == len(curve):
            step, token, _ = self._decode
            alone = (step + token * max(1.0, self._refill_rows)) * self._stretch
            return self._curve_times[-1] + (rounds - curve[-1]) * alone
        if i == 0:
            return 0.0
        share = (rounds - curve[i - 1]) / (curve[i] - curve[i - 1])
        return self._curve_times[i - 1] + share * (self._curve_times[i] - self._curve_times[i - 1])


def _by_turn(item: tuple[Rank, Entry]) -> tuple[int, Rank]:
    return item[1].turn, item[0]
