"""Where requests are let in or refused, with the arithmetic of it."""

from collections.abc import Callable, Collection
from dataclasses import replace
from math import inf

from admission.forecast.booking import Booking
from admission.forecast.books import Books
from admission.forecast.entry import Entry
from admission.forecast.errors import EstimateErrors
from admission.forecast.estimator import Estimator
from admission.forecast.judge import Judge
from admission.forecast.lengths import Lengths
from admission.forecast.names import Names
from admission.forecast.retry import jittered, seconds_to_return
from admission.forecast.room import Room
from admission.forecast.sentence import due_in, own_part, unreachable, would_delay
from admission.forecast.shape import Shape
from admission.forecast.sweep import MOST_BACK, SWEEP_SECONDS, Sweep, is_lost, look
from admission.forecast.told import Told
from admission.forecast.trial import Check, Trial
from admission.forecast.under_way import UnderWay
from admission.forecast.verdict import Admit, Refuse, Verdict
from admission.forecast.walk import Pace

TOGETHER_SECONDS = 0.1
REFUSING_SECONDS = 1.0
"""A replica counts as refusing for so long after it refused somebody for want of capacity."""


class Desk:
    """The books of everything that was let in and has not ended, and the verdict on whoever comes.

    Let in is who reaches its own deadline and makes nobody late who was let in before, but for lower priorities:
    those give way, as few as make it possible, and only where that is enough. Who has time is set aside until it is in
    nobody's way, and those below it give way to it then; who has none is shed. Owned by one thread; knows no clock.
    """

    def __init__(
        self, room: Room, estimator: Estimator, *, chunk: int, jitter: Callable[[], float] = lambda: 0.0
    ) -> None:
        """`chunk` is how many prompt tokens a step takes while others decode; `jitter` draws from [0, 1)."""
        self.room = room
        self.books = Books()
        self.estimator = estimator
        self.lengths = Lengths()
        self.judge = Judge(room, self.books, estimator, chunk)
        self._jitter = jitter
        self._refused_at = -inf
        self._set_aside = False
        """Since the last sweep."""
        self._doubtful: frozenset[str] = frozenset()
        """Who seemed to wait in vain at the last sweep."""
        self._names = Names()
        self._told = Told()

    def ask(self, booking: Booking, now: float) -> Verdict:
        """Changes nothing but the memory of what is asked for and refused."""
        entry = self.books.new_entry(booking)
        entry.guess(self.lengths)
        verdict = self._verdict(entry, now)
        if not booking.shadow and self._names.is_new(booking.caller or booking.key):
            self.judge.usual.ask(now, booking.priority, self._work(entry))
        if isinstance(verdict, Refuse) and not booking.shadow:
            self._refused_at = now
        return verdict

    def _work(self, entry: Entry) -> float:
        """Seconds it keeps the replica busy, as far as one can tell."""
        prices = self.estimator.prices
        if prices is None:
            return 0.0
        rows = max(1, sum(not other.booking.shadow for other in self.books.running))
        prompt = entry.prompt_left * (prices.prefill_token + prices.prefill_step / self.judge.pace.chunk)
        return prompt + entry.expected_left * (prices.decode_token + prices.decode_step / rows)

    def enter(self, booking: Booking, verdict: Admit, now: float) -> None:
        """Do what the verdict says."""
        self._apply(verdict)
        entry = self.books.new_entry(booking)
        entry.guess(self.lengths)
        entry.promise = verdict.promise
        if not booking.shadow:
            self.judge.usual.let_in(now, booking.priority, self._work(entry))
        for other in self.books.entries:
            other.num_higher += other.priority < booking.priority
        self.books.add(entry)

    def _apply(self, verdict: Admit) -> None:
        """To those who give way."""
        for key in verdict.displaced:
            self.books.remove(key)
        for key in verdict.aside:
            self.books.set_aside(key)
        self._set_aside = self._set_aside or bool(verdict.aside)

    def _verdict(self, entry: Entry, now: float) -> Verdict:
        if entry.booking.shadow and not self._has_place(entry):
            sentence = "a shadow does not wait, and no seat or not enough blocks are free"
            return Refuse("would_delay_others", "a free seat and blocks", sentence, None)
        crowded: tuple[str, ...] = ()
        if self.books.num_live >= self.room.total:
            lower = [other for other in self._everybody() if other.shed_before(entry)]
            if not lower:
                return self._queue_full(now)
            crowded = (min(lower, key=lambda other: other.shed_first).booking.key,)
        trial = self.judge.trial(now, self.judge.seen_by(entry))
        if trial is None:
            return Admit(None, crowded)
        judged = self.judge.weigh(entry, trial, crowded)
        return judged if isinstance(judged, Admit) else self._refusal(entry, trial, judged)

    def _everybody(self) -> list[Entry]:
        return [*self.books.entries, *self.books.aside]

    def _has_place(self, entry: Entry) -> bool:
        """Whether seats and blocks are enough for everybody here and for it."""
        if self.books.num_live > len(self.books):
            return False
        slots = sum(other.slots for other in self.books.entries) + entry.slots
        return len(self.books) < self.room.max_running and slots <= self.room.entry_slots

    def _refusal(self, entry: Entry, trial: Trial, check: Check) -> Refuse:
        late = max([check.own_late, *(hurt.late for hurt in check.hurt)])
        seconds = seconds_to_return(entry, trial, check)
        retry = self._spread(seconds)
        if check.own_late > 0:
            left = trial.time_left(entry, check.missed)
            what = own_part(entry.expected_left, first=check.missed == "first" or trial.by_first_token(entry))
            due = due_in(left, check.missed)
            sentence = unreachable(check.wait, check.due - check.wait, what, due, alone=seconds is None)
            limit = f"at least {left + check.own_late:.1f} s"
            return Refuse("deadline_unreachable", limit, sentence, retry, check.missed)
        sentence = would_delay(len(check.hurt), late)
        return Refuse("would_delay_others", "every deadline that was accepted before", sentence, retry)

    def _queue_full(self, now: float) -> Refuse:
        trial = self.judge.trial(now)
        seconds = None if trial is None else trial.seconds_to_an_end()
        most = self.room.max_waiting
        sentence = f"{most} requests are waiting already"
        return Refuse("queue_full", f"at most {most} requests", sentence, self._spread(seconds))

    def full(self, priority: int, now: float, *, shadow: bool) -> Refuse | None:
        """A refusal where the line is full and nobody in it would give way to this priority."""
        if self.books.num_live < self.room.total:
            return None
        entry = self.books.new_entry(Booking("", priority, now, None, 1, 0, 1, exact=True, shadow=shadow))
        entry.guess(self.lengths)
        if any(other.shed_before(entry) for other in self._everybody()):
            return None
        if not shadow:
            self._refused_at = now
        return self._queue_full(now)

    def retry_after(self, booking: Booking, now: float) -> float | None:
        """When one that was shed is worth another try. Those of one class who have to wait together, for others and not
        for what they bring, wait as long."""
        told = self._told.since(booking, now, TOGETHER_SECONDS)
        seconds = self._when_shed(booking, now) if told is None else told.seconds
        if told is None:
            self._told.note(booking, now, seconds)
        return self._spread(seconds)

    def _spread(self, seconds: float | None) -> float | None:
        return jittered(seconds, self._jitter())

    def _when_shed(self, booking: Booking, now: float) -> float | None:
        trial = self.judge.trial(now, None if booking.shadow else self.books.without_shadows())
        if trial is None:
            return None
        entry = self.books.new_entry(_coming_at(now, booking))
        entry.guess(self.lengths)
        return self.judge.seconds_after_shedding(entry, trial)

    def started(self, key: str, num_tokens: int, hit_tokens: int) -> None:
        entry = self.books.get(key)
        if entry is not None:
            entry.start(num_tokens, hit_tokens)
            self.books.start(entry)

    def computed(self, key: str, num_left: int) -> None:
        """A chunk of its prompt is done."""
        entry = self.books.get(key)
        if entry is not None and entry.running:
            entry.prompt_left = num_left

    def progressed(self, key: str, num_tokens: int) -> None:
        entry = self.books.get(key)
        if entry is not None:
            entry.grow(num_tokens)
            entry.guess(self.lengths)

    def preempted(self, key: str) -> None:
        entry = self.books.get(key)
        if entry is not None:
            entry.give_way()
            self.books.give_way(entry)

    def ended(self, key: str, *, whole: bool, cut: bool, now: float) -> None:
        """`whole`: the answer came to its end, by itself or, `cut`, at `max_tokens`."""
        entry = self.books.remove(key)
        if entry is None:
            return
        if entry.generated and not entry.booking.exact:
            self.lengths.add(entry.generated, cut=cut or not whole)
        if whole and entry.promise is not None and not entry.num_higher:
            self.judge.kept.compare(entry.promise, entry.generated, now)

    def forget(self, key: str) -> None:
        """It ended without a word about how."""
        self.books.remove(key)

    def stepping(self, under_way: UnderWay | None) -> None:
        """What is being computed now; None for nothing. To be told before anything is asked."""
        self.judge.under_way = under_way

    def stepped(self, shape: Shape, seconds: float, keys: Collection[str], chunk: int, now: float) -> None:
        """A step of these requests ended; `seconds` since the one before where there was no pause between them."""
        self.estimator.add(shape, seconds)
        self.judge.measured_at = now
        self.judge.pace = Pace(chunk)
        self.judge.usual.step(shape.prefill, len(keys), seconds)
        if shape.prefill:
            self.books.pass_over(keys)

    def sweep(self, now: float) -> Sweep:
        """What is to change now, done in these books already but for the ends: beside somebody more important who would
        be late otherwise, others go; so does who waits in vain, and a shadow that lost its seat; and who was set aside
        comes back."""
        self._set_aside = False
        unseated = tuple(entry.booking.key for entry in self.books.line if entry.booking.shadow and entry.lost_seat)
        trial = self.judge.trial(now)
        if trial is None:
            return Sweep(shed=unseated)
        sweep = look(trial, self.books, 1 - self.estimator.margin, self._doubtful) if trial.timed else Sweep()
        self._doubtful = sweep.doubtful
        for key in sweep.aside:
            self.books.set_aside(key)
        if not sweep.shed and not sweep.aside and self.books.aside:
            sweep = self._call_back(trial)
        return sweep._replace(shed=unseated + sweep.shed)

    def _call_back(self, trial: Trial) -> Sweep:
        """Best rank first, as long as they would be let in; who could not be in time any more goes. Behind one who has
        no deadline and would not be let in, those who have one are asked about all the same."""
        late = tuple(entry.booking.key for entry in self.books.aside if is_lost(entry, trial))
        back: list[str] = []
        num_asked, patient_wait = 0, False
        for entry in [each for each in self.books.aside if each.booking.key not in late]:
            if num_asked == MOST_BACK:
                break
            if patient_wait and not entry.timed:
                continue
            num_asked += 1
            fresh = self.judge.trial(trial.now) if back else trial
            verdict = None if fresh is None else self.judge.weigh(entry, fresh, ())
            if isinstance(verdict, Check):
                if trial.late_alone(entry, SWEEP_SECONDS):
                    late += (entry.booking.key,)
                    continue
                if entry.timed:
                    return Sweep(shed=late, back=tuple(back))
                patient_wait = True
                continue
            if verdict is not None and (verdict.displaced or verdict.aside):
                self._apply(verdict)
                self.books.call_back(entry.booking.key)
                key = entry.booking.key
                return Sweep(late + verdict.displaced, verdict.aside, key, (*back, key))
            self.books.call_back(entry.booking.key)
            back.append(entry.booking.key)
        return Sweep(shed=late, back=tuple(back))

    @property
    def is_due(self) -> bool:
        """Whether a sweep is not to wait for its time: somebody was set aside just now, or nobody else is there."""
        return self._set_aside or (not len(self.books) and self.books.num_live > 0)

    def usual_wait(self, now: float) -> float | None:
        """Seconds that somebody of usual priority would wait now before its first step."""
        books = self.books.without_shadows()
        trial = self.judge.trial(now, books)
        if trial is None:
            return None
        if not books.line and len(books.running) < self.room.max_running:
            return 0.0
        entry = self.books.new_entry(Booking("", 0, now, None, 1, 0, 1, exact=True))
        entry.guess(self.lengths)
        trial.walk(entry, until=entry)
        return entry.begun_at

    @property
    def num_shadows(self) -> int:
        return self.books.num_shadows

    def refusing(self, now: float) -> bool:
        return now - self._refused_at < REFUSING_SECONDS

    def error(self) -> EstimateErrors | None:
        """None until measured."""
        return self.judge.kept.errors(self.estimator)


def _coming_at(now: float, booking: Booking) -> Booking:
    """With as much time as it had."""
    later = now - booking.arrival
    deadline, first = (None if each is None else each + later for each in (booking.deadline, booking.first_deadline))
    return replace(booking, arrival=now, deadline=deadline, first_deadline=first)
