"""Decides when a draft model guesses, for which sequences, and how far ahead: only where that yields more tokens in a
second, by measured hit rates and by the measured times of both models."""

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from specialist.scheduling.draft_model import DraftModel
from specialist.scheduling.sequence import Sequence

LEAST_GAIN = 1.1  # drafts must make a step so much faster for each token that they are worth their risk
_WINDOWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
_READY = 32  # so many unread tokens are computed together with the first guess
_FEW, _LIKELY = 4, 0.8
_FIRST_CHUNK = 16  # tokens read while their time is unknown, and at least
_WORTH = 2.0  # reading a text must save so many times its cost
_TRIAL_SHARE = 0.02  # of the time of steps, lost on trials while the model does not pay
_LEAST_TRIAL = 1.0  # steps whose time is saved for guesses before trials begin again, beside that of reading for them
_FIRST_TRIALS = 8  # steps whose time may be spent on trials at once, also at the beginning
_UNCHANGED = 8  # steps after which it is asked again whether a model pays that did not; twice as many each time
_MOST_UNCHANGED = 32
_TRIAL_DRAFTS = 16  # of all sequences in a trial step
_FIRST_PAUSE, _LONGEST_PAUSE = 64, 4096  # steps without the model after a failure; twice as many after each further one


class CopiedDrafts(NamedTuple):
    """What is drafted by copying."""

    windows: Mapping[Sequence, int]
    kept: Mapping[Sequence, float]  # how many of these drafts are probably right


class _Plan(NamedTuple):
    windows: dict[Sequence, int]
    rate: float  # tokens in a second, of all sequences


class ModelDrafts:
    def __init__(self, model: DraftModel, itl_seconds: float = inf) -> None:
        """`itl_seconds`: the longest time that reading a part of a text may take."""
        self.model = model
        self._itl_seconds = itl_seconds
        self.num_failed = 0  # steps without its guesses because it failed
        self._pause = 0  # steps for which it is not asked
        self._next_pause = _FIRST_PAUSE
        self._unchanged = 0  # steps for which it will probably still not pay
        self._next_unchanged = _UNCHANGED
        self._allowance: float | None = None  # the seconds that trials may cost now
        self._usual = 0.0  # the last step without drafts would take so long
        self._could_guess = False
        self._trial: float | None = None  # the model's seconds when the trial of this step began
        self._trying = True  # until what trials may cost is spent
        self._num_right = 0  # the model's right guesses that were counted
        self._refund = 0.0  # the seconds that a right guess of the last step saved, if that was a trial

    def observe(self, seconds: float) -> None:
        """Learn how long a decode step took, without the model's part."""
        self._pause, self._unchanged = max(0, self._pause - 1), max(0, self._unchanged - 1)
        if self._could_guess and self._allowance is not None:
            self._allowance = min(self._allowance + _TRIAL_SHARE * seconds, _FIRST_TRIALS * self._usual)
            self._could_guess = False
        if self._trial is not None and self._allowance is not None:
            lost = self.model.seconds - self._trial + max(0.0, seconds - self._usual)
            self._allowance = max(self._allowance - lost, -_FIRST_TRIALS * self._usual)  # a stall shows nothing
            self._trial = None

    def wants(self, limits: Mapping[Sequence, int]) -> bool:
        """Return whether it would guess or read now, for any of these sequences, or try to."""
        self._could_guess = True
        if self._pause or self._unchanged:
            return False
        return any(seq.num_tokens < self.model.context for seq in limits)

    def guess(
        self, limits: Mapping[Sequence, int], num_rows: int, most: int, seconds: list[float], copied: CopiedDrafts
    ) -> Mapping[Sequence, tuple[int, ...]]:
        """Return the model's guesses, at most `most` with the copied drafts of other sequences. `seconds` are those of
        steps with no draft, one, two and so on, as far as they are known."""
        if not self.wants(limits):
            return {}
        context = self.model.context
        limits = {seq: least for seq, limit in limits.items() if (least := min(limit, context - seq.num_tokens)) > 0}
        try:
            self._usual = seconds[0]
            if self._allowance is None:
                self._allowance = _FIRST_TRIALS * self._usual
            guesses = self.model.guess(self._windows(limits, num_rows, most, seconds, copied))
        except Exception:  # it costs only the drafts
            self.num_failed += 1
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _LONGEST_PAUSE)
            self.model.forget_all()
            return {}
        if guesses:
            self._next_pause, self._next_unchanged = _FIRST_PAUSE, _UNCHANGED
        return guesses

    def _windows(
        self, limits: Mapping[Sequence, int], num_rows: int, most: int, seconds: list[float], copied: CopiedDrafts
    ) -> dict[Sequence, int]:
        unread = {seq: self.model.num_unread(seq) for seq in limits}
        self._count_right()
        num_copied = sum(copied.windows.values())
        usual = (num_rows + sum(copied.kept.values())) / seconds[min(num_copied, len(seconds) - 1)]
        best = self._best_plan(limits, num_rows, most, seconds, copied, unread)
        if best.rate >= LEAST_GAIN * usual:
            saved = num_rows / len(best.windows) * (1 / usual - 1 / best.rate)  # by each token of these sequences
            return self._read(best.windows, unread, saved)
        others = {seq: limit for seq, limit in limits.items() if seq not in copied.windows}
        if others and self._allowance is not None and self._may_try(self._allowance, [unread[seq] for seq in others]):
            windows = self._try(others, most - num_copied, unread, self._allowance)
            self._refund = seconds[0] / num_rows if windows else 0.0
            return windows
        self._unchanged, self._next_unchanged = self._next_unchanged, min(2 * self._next_unchanged, _MOST_UNCHANGED)
        return {}

    def _count_right(self) -> None:
        """Give back what the right guesses of a trial saved: only what it lost counts."""
        if self._allowance is not None:
            saved = (self.model.num_right - self._num_right) * self._refund
            self._allowance = min(self._allowance + saved, _FIRST_TRIALS * self._usual)
        self._num_right, self._refund = self.model.num_right, 0.0

    def _may_try(self, allowance: float, unread: list[int]) -> bool:
        """Return whether trials may go on, or enough was saved to begin again: for a whole trial, because reading a
        part of a text shows nothing and takes hardly less time."""
        if not self._trying:
            behind = sum(number for number in unread if number > _READY)
            needed = _LEAST_TRIAL * self._usual + (self.model.read_cost.seconds(behind) if behind else 0.0)
            self._trying = allowance >= min(needed, _FIRST_TRIALS * self._usual)
        self._trying = self._trying and allowance > 0
        return self._trying

    def _best_plan(
        self,
        limits: Mapping[Sequence, int],
        num_rows: int,
        most: int,
        seconds: list[float],
        copied: CopiedDrafts,
        unread: Mapping[Sequence, int],
    ) -> _Plan:
        """Return the windows with which most tokens are kept in a second. A step that is a little larger than all
        measured ones counts as they let expect."""
        gains = {
            seq: _sums_of_products(self.model.rates(seq, min(limit, _WINDOWS[-1]))) for seq, limit in limits.items()
        }
        ranked = sorted(limits, key=lambda seq: copied.kept.get(seq, 0.0) - gains[seq][-1])
        best, size = _Plan({}, 0.0), len(ranked)
        while size:
            chosen = ranked[:size]
            own = set(chosen)
            drafts = sum(window for seq, window in copied.windows.items() if seq not in own)
            kept = num_rows + sum(number for seq, number in copied.kept.items() if seq not in own)
            num_first = sum(num if (num := unread[seq]) <= _READY else 1 for seq in chosen)
            for window in _WINDOWS:
                windows = {seq: min(window, limits[seq]) for seq in chosen}
                num_drafts = drafts + sum(windows.values())
                drafting = self._drafting_seconds(size, num_first, max(windows.values()))
                if num_drafts > most or drafting is None:
                    break
                checking = _expected_seconds(seconds, num_drafts, max(_FEW, size))
                if checking is None and self._is_likely(windows, gains):
                    checking = seconds[-1]
                if checking is None:
                    break
                total = kept + sum(gains[seq][width - 1] for seq, width in windows.items())
                rate = total / (checking + drafting)
                if rate > best.rate:
                    best = _Plan(windows, rate)
            size //= 2
        return best

    @staticmethod
    def _is_likely(windows: Mapping[Sequence, int], gains: Mapping[Sequence, list[float]]) -> bool:
        """Whether these are a few guesses, and all of them probably right."""
        last = min(
            gains[seq][window - 1] - (gains[seq][window - 2] if window > 1 else 0.0) for seq, window in windows.items()
        )
        return max(windows.values()) <= _FEW and last >= _LIKELY

    def _drafting_seconds(self, num_rows: int, num_first: int, window: int) -> float | None:
        """Return the time of so many guesses for each of the rows, of which the first ones compute more tokens; None if
        no such step was measured."""
        cost = self.model.cost
        later = cost.times(num_rows, num_rows)
        first = cost.times(num_first, num_first) if num_first > num_rows else later
        if not later:
            return None
        beginning = first[0] if first else later[0] * num_first / num_rows
        return (beginning + (window - 1) * later[0]) * cost.pace

    def _read(
        self, windows: Mapping[Sequence, int], unread: Mapping[Sequence, int], saved: float
    ) -> dict[Sequence, int]:
        """Read unread texts where that pays. Return the windows of the sequences that are ready."""
        behind = [seq for seq in windows if unread[seq] > _READY]
        worth = [seq for seq in behind if seq.rounds_left * saved >= _WORTH * self.model.token_seconds * unread[seq]]
        if worth:
            self.model.read(worth, self._chunk())
        ready = [seq for seq in windows if seq not in behind or (seq in worth and self.model.num_unread(seq) <= _READY)]
        return {seq: windows[seq] for seq in ready}

    def _chunk(self) -> int:
        """Return how many tokens it may read in one step."""
        each, most = self.model.token_seconds, self.model.chunk
        return max(1, int(min(self._itl_seconds / each, most))) if each else most

    def _try(
        self, limits: Mapping[Sequence, int], most: int, unread: Mapping[Sequence, int], budget: float
    ) -> dict[Sequence, int]:
        """Return windows that show what the model can do, at a cost of about `budget` seconds. Before, read the
        sequences that are not ready for it, if this takes less; if no sequence is ready, at least a part."""
        self._trial = self.model.seconds
        cost, is_known = self.model.read_cost, self.model.token_seconds > 0
        room = budget + cost.seconds(0)  # they need no step of their own
        ready = [seq for seq in limits if unread[seq] <= _READY and cost.seconds(unread[seq]) <= room]
        others = sorted(set(limits).difference(ready), key=lambda seq: (unread[seq], seq.index))
        short = [seq for seq in others if is_known and cost.seconds(unread[seq]) <= budget]
        if short or not ready:
            most = min(self._chunk(), cost.most_tokens(budget)) if is_known else 0
            self.model.read(short or others[:1], max(_FIRST_CHUNK, most))
            return {}
        window = max(2, min(4, _TRIAL_DRAFTS // len(ready)))
        windows: dict[Sequence, int] = {}
        for seq in ready:
            width = min(window, limits[seq], most)
            if width > 0:
                windows[seq] = width
                most -= width
        return windows


def _expected_seconds(seconds: list[float], num_drafts: int, most_more: int) -> float | None:
    """Return the time of a step with so many drafts; None if it is not known. Beyond the measured ones, for up to
    `most_more` drafts, it grows as it did up to them."""
    last = len(seconds) - 1
    if num_drafts <= last:
        return seconds[num_drafts]
    if last == 0 or num_drafts > last + most_more:
        return None
    return seconds[last] + (seconds[last] - seconds[0]) / last * (num_drafts - last)


def _sums_of_products(rates: list[float]) -> list[float]:
    """Return how many of the first guesses are probably right, for one guess, two and so on."""
    sums, likelihood, total = [], 1.0, 0.0
    for rate in rates:
        likelihood *= rate
        total += likelihood
        sums.append(total)
    return sums
