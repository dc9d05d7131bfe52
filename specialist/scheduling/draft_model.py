"""A smaller model with the same vocabulary that guesses tokens for the sequences of a larger one.

Its keys and values live in a pool of their own and follow the tokens of each sequence: wrong guesses are rolled back,
and tokens that it has not read yet are computed in chunks before it guesses. It draws as the larger model will: with
the request's sampling parameters, structure and noise. At high temperatures this is right more often than its likeliest
token, and at others about as often.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import replace

from kvpool import BlockPool, BlockTable, TokenChain
from octet.clock import Clock
from octet.identity import Lane
from specialist.engines.base import Engine, TurnEngine
from specialist.scheduling.copied_text import HitRates, OwnHits
from specialist.scheduling.sequence import Sequence
from specialist.scheduling.step import Rollback, Row, RowFault, Step, StepOutcome
from specialist.scheduling.step_cost import ReadCost, StepCost


class DraftFailed(RuntimeError):
    """The draft model computed nothing usable."""


class _Follower:
    """What the draft model knows of a sequence."""

    __slots__ = ("guesses", "hits", "num_computed", "num_known", "own", "table")

    def __init__(self, own: Sequence, table: BlockTable, num_computed: int) -> None:
        self.own = own  # the sequence as the draft model's engine sees it: with the guesses
        self.table = table
        self.num_computed = num_computed  # tokens and guesses whose keys and values are in the table
        self.num_known = num_computed  # the sequence's tokens when it guessed
        self.guesses: tuple[int, ...] = ()  # what it expected after them
        self.hits = OwnHits()

    def row(self, num_tokens: int, num_samples: int) -> Row:
        start = self.num_computed
        return Row(self.own, self.table, start, self.own.chain.tokens(start, start + num_tokens), 0, num_samples)


class DraftModel:
    """Guesses tokens, and measures what they cost and how often they are right. If its pool is full, it forgets the
    sequences that it guessed for least recently. If a method raises, call `forget_all`."""

    def __init__(
        self,
        engine: Engine,
        pool: BlockPool,
        lane: Lane,
        clock: Clock,
        max_step_tokens: int,
        context: int,
        in_turn: TurnEngine | None = None,
        chunk: int = 128,
    ) -> None:
        """`max_step_tokens`: the most tokens that the engine computes at once. `context`: the most of a sequence.
        `in_turn`: the engine, if it can draw several guesses without waiting for each. `chunk`: the most tokens that
        should be read in one step, so that other requests wait only briefly."""
        self.pool = pool
        self.context = context
        self.chunk = chunk
        self.cost = StepCost()  # of drawing, by the number of tokens that are computed for it
        self.read_cost = ReadCost()
        self.token_seconds = 0.0  # of each token that is only read; 0 until one was
        self.seconds = 0.0  # spent in all
        self.num_right = 0  # guesses, so far as the sequences show it
        self._engine = engine
        self._in_turn = in_turn
        self._lane = lane
        self._clock = clock
        self._max_step_tokens = max_step_tokens
        self._rates = HitRates()
        self._followers: OrderedDict[Sequence, _Follower] = OrderedDict()  # the least recently used first
        self._num_steps = 0

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """The sequences that it follows, the least recently used first."""
        return tuple(self._followers)

    def rates(self, seq: Sequence, most: int) -> list[float]:
        """Return the likelihoods that its first guess is right, its second one if the first is, and so on."""
        follower = self._followers.get(seq)
        hits = OwnHits() if follower is None else follower.hits
        return [self._rates.rate(min(number, HitRates.MOST), hits) for number in range(1, most + 1)]

    def num_unread(self, seq: Sequence) -> int:
        """Return how many of the sequence's tokens it must compute before it can guess, at least 1."""
        follower = self._followers.get(seq)
        if follower is None:
            return seq.num_tokens
        self._follow(seq, follower)
        return seq.num_tokens - follower.num_computed

    def forget(self, seq: Sequence) -> None:
        follower = self._followers.pop(seq, None)
        if follower is not None:
            self.pool.release(follower.table)

    def forget_all(self) -> None:
        for seq in self.sequences:
            self.forget(seq)

    def read(self, seqs: Collection[Sequence], most: int) -> None:
        """Compute up to `most` tokens that it has not read, but of no sequence the last one."""
        left = most = min(most, self._max_step_tokens)
        rows: list[tuple[_Follower, Row]] = []
        for seq in seqs:
            follower = self._reserve(seq, seq.num_tokens, seqs) if left else None
            num_tokens = 0 if follower is None else min(seq.num_tokens - 1 - follower.num_computed, left)
            if follower is not None and num_tokens > 0:
                rows.append((follower, follower.row(num_tokens, 0)))
                left -= num_tokens
        if rows:
            seconds, _ = self._compute(rows)
            num_read = most - left
            self.read_cost.learn(num_read, seconds)
            weight = num_read / (num_read + self.chunk) if self.token_seconds else 1.0
            self.token_seconds += weight * (seconds / num_read - self.token_seconds)

    def guess(self, windows: Mapping[Sequence, int]) -> dict[Sequence, tuple[int, ...]]:
        """Return for each sequence up to so many tokens that may follow; none for one for which there is no room."""
        active: dict[Sequence, _Follower] = {}
        room = self._max_step_tokens
        for seq, window in windows.items():
            num_unread = self.num_unread(seq)
            follower = self._reserve(seq, seq.num_tokens + window - 1, windows) if num_unread <= room else None
            if follower is not None:
                room -= seq.num_tokens - follower.num_computed
                active[seq] = follower
        followers = dict(active)
        if self._in_turn is not None:
            alike = [seq for seq in active if self._in_turn.draws_in_turn(active[seq].own.request)]
            most = self._in_turn.most_in_turn
            for first in range(0, len(alike), most):
                part = {seq: active.pop(seq) for seq in alike[first : first + most]}
                self._guess_in_turn(self._in_turn, part, windows)
        while active:
            rows = [(each, each.row(len(each.own.chain) - each.num_computed, 1)) for each in active.values()]
            seconds, drawn = self._compute(rows)
            self.cost.learn(sum(len(row.tokens) for _, row in rows), seconds)
            for seq, tokens in zip(list(active), drawn, strict=True):
                follower = active[seq]
                if isinstance(tokens, RowFault):  # such as a structure that its own guesses cannot follow
                    self._learn(follower, len(follower.guesses) + 1, is_right=False)
                    del active[seq]
                    continue
                follower.own.append(tokens)
                follower.guesses += tokens
                if len(follower.guesses) == windows[seq] or tokens[0] in seq.request.stop_ids:
                    del active[seq]
        return {seq: follower.guesses for seq, follower in followers.items() if follower.guesses}

    def _guess_in_turn(
        self, engine: TurnEngine, active: dict[Sequence, _Follower], windows: Mapping[Sequence, int]
    ) -> None:
        """Guess for these sequences without waiting for each guess."""
        self._num_steps += 1
        began = self._clock.now()
        rows = tuple(each.row(len(each.own.chain) - each.num_computed, 1) for each in active.values())
        step = Step(self._num_steps, (), rows, 0, began, may_repeat=False)
        num_tokens, wanted, drawing = step.num_tokens, [windows[seq] for seq in active], dict(active)
        for number, drawn in enumerate(engine.draw_in_turn(step, wanted), 1):
            now = self._clock.now()
            self.cost.learn(num_tokens, now - began)
            self.seconds += now - began
            began = now
            for (seq, follower), token in zip(list(drawing.items()), drawn, strict=True):
                self._take(follower, number, token, seq.request.stop_ids)
                if number == windows[seq]:
                    del drawing[seq]
            num_tokens = len(drawing)
        undone: list[Rollback] = []  # after a guess that no other may follow
        for follower, row, num_drawn in zip(active.values(), rows, wanted, strict=True):
            follower.num_computed = row.stop + max(0, len(follower.guesses) - 1)
            if follower.num_computed < row.stop + num_drawn - 1:
                undone.append(Rollback(follower.table, follower.num_computed, row.stop + num_drawn - 1))
        if undone:
            engine.discard(undone)

    def _take(self, follower: _Follower, number: int, drawn: int | RowFault, stop_ids: Collection[int]) -> None:
        """Take guess `number` of a round, unless one before it failed or ended the text."""
        if len(follower.guesses) < number - 1 or (follower.guesses and follower.guesses[-1] in stop_ids):
            return
        if isinstance(drawn, RowFault):
            self._learn(follower, number, is_right=False)
            return
        follower.own.append((drawn,))
        follower.guesses += (drawn,)

    def _compute(self, rows: list[tuple[_Follower, Row]]) -> tuple[float, tuple[tuple[int, ...] | RowFault, ...]]:
        """Compute the rows. Return the seconds, and what was drawn after each. Raises DraftFailed."""
        self._num_steps += 1
        began = self._clock.now()
        step = Step(self._num_steps, (), tuple(row for _, row in rows), 0, began, may_repeat=False)
        completions = [each.outcome for each in self._engine.run(step) if each.step is step]
        outcome = completions[0] if completions else None
        if not isinstance(outcome, StepOutcome) or len(outcome.sampled) != len(rows):
            raise DraftFailed(f"a step of the draft model gave {outcome!r:.200}")
        for (follower, row), drawn in zip(rows, outcome.sampled, strict=True):
            if not isinstance(drawn, RowFault) and len(drawn) != row.num_samples:
                raise DraftFailed(f"the draft model drew {drawn!r:.200} where {row.num_samples} tokens were due")
            follower.num_computed = row.stop
        if self._in_turn is not None and not any(row.num_samples for _, row in rows):
            self._in_turn.wait()
        seconds = self._clock.now() - began
        self.seconds += seconds
        return seconds, outcome.sampled

    def _reserve(self, seq: Sequence, num_slots: int, kept: Collection[Sequence]) -> _Follower | None:
        """Return the sequence's follower, with room for this many tokens and without its last guesses; None if the pool
        has no room even without all sequences but those `kept`."""
        follower = self._followers.get(seq)
        if follower is None:
            plan = self.pool.admit(seq.chain, num_slots)
            while plan.shortage:
                if not self._forget_oldest(kept):
                    return None
                plan = self.pool.admit(seq.chain, num_slots)
            table = self.pool.apply(plan)
            follower = self._followers[seq] = _Follower(self._own(seq), table, plan.num_hit_tokens)
        else:
            while self.pool.blocks_short(follower.table, num_slots) > self.pool.num_free:
                if not self._forget_oldest(kept):
                    return None
            self.pool.grow(follower.table, num_slots)
        self._follow(seq, follower)
        self._followers.move_to_end(seq)
        follower.own.chain = TokenChain(b"", self.pool.block_size, seq.chain.view())
        follower.own.num_tokens = seq.num_tokens
        return follower

    def _forget_oldest(self, kept: Collection[Sequence]) -> bool:
        """Forget a sequence that is not `kept`. Return False if every sequence is kept."""
        oldest = next((seq for seq in self._followers if seq not in kept), None)
        if oldest is not None:
            self.forget(oldest)
        return oldest is not None

    def _own(self, seq: Sequence) -> Sequence:
        request = seq.request
        sampling = replace(request.sampling, num_logprobs=None)
        own = replace(request, lane=self._lane, sampling=sampling, draft_window=0, hidden_sum=None)
        return Sequence(own, seq.chain, seq.index, seq.max_total_tokens, 0)

    def _follow(self, seq: Sequence, follower: _Follower) -> None:
        """Learn which guesses were right, and roll back what was computed of the others. The sequence's last token is
        always computed again, to draw after it."""
        if not follower.guesses and follower.num_computed < seq.num_tokens:
            follower.num_known = seq.num_tokens
            self.pool.register(follower.table, seq.chain, follower.num_computed)
            return
        num_right = 0
        for guess, token in zip(follower.guesses, seq.chain.tokens(follower.num_known, seq.num_tokens), strict=False):
            is_right = guess == token
            self._learn(follower, num_right + 1, is_right=is_right)
            if not is_right:
                break
            num_right += 1
        self.num_right += num_right
        boundary = min(follower.num_known + num_right, seq.num_tokens - 1)
        if boundary < follower.num_computed:
            self._engine.discard([Rollback(follower.table, boundary, follower.num_computed)])
            follower.num_computed = boundary
        follower.num_known, follower.guesses = seq.num_tokens, ()
        self.pool.register(follower.table, seq.chain, follower.num_computed)

    def _learn(self, follower: _Follower, number: int, *, is_right: bool) -> None:
        """Learn whether guess `number` of a round was right."""
        number = min(number, HitRates.MOST)
        self._rates.learn(number, hit=is_right)
        follower.hits.learn(number, hit=is_right)
