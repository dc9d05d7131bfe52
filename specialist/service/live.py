"""The books of one live request: when it came, entered, spoke first and last."""

from octet.clock import Clock
from specialist.conversations import MissReason
from specialist.events import Admitted, Emitted, Finished
from specialist.service.answer import Piece
from specialist.service.job import Job, Usage
from specialist.steering import NothingFits


class Live:
    def __init__(self, job: Job, clock: Clock) -> None:
        self.job = job
        self._clock = clock
        self._admitted_at: float | None = None
        self._first_token_at: float | None = None
        self._last_token_at: float | None = None
        self._num_hit = 0
        self._miss_reason: MissReason = ""
        self._times_preempted = 0
        self._left_at: float | None = None
        self._away: float | None = None
        """Seconds beside the line since the last token: they belong to the time to the next, if one comes."""
        self._preempted: float | None = None

    def admit(self, event: Admitted, at: float) -> None:
        if self._admitted_at is None:
            self._admitted_at = at
            self._num_hit = event.num_hit_tokens
            self._miss_reason = event.miss_reason
        elif self._left_at is not None:
            self._away = (self._away or 0.0) + at - self._left_at
            self._left_at = None

    def preempt(self, at: float) -> None:
        self._times_preempted += 1
        self._left_at = at

    def emit(self, event: Emitted) -> Piece:
        self._last_token_at = self._clock.now()
        if self._first_token_at is None:
            self._first_token_at = self._last_token_at
        if self._away is not None:
            self._preempted = (self._preempted or 0.0) + self._away
            self._away = None
        return self.job.answer.push(event.tokens, event.logprobs)

    def finish(self, event: Finished) -> Usage:
        request, answer = self.job.request, self.job.answer
        return Usage(
            reason=event.reason,
            stop_string=answer.stop_string,
            prompt_tokens=len(request.prompt),
            completion_tokens=answer.num_tokens,
            cache_hit_tokens=self._num_hit,
            miss_reason=self._miss_reason,
            times_preempted=self._times_preempted,
            queued=_between(request.arrival, self._admitted_at),
            prefill=_between(self._admitted_at, self._first_token_at),
            decode=_between(self._first_token_at, self._last_token_at),
            total=self._clock.now() - request.arrival,
            preempted=self._preempted,
            has_lost_form=event.reason == "error" and event.detail.startswith(f"{NothingFits.__name__}:"),
        )


def _between(start: float | None, stop: float | None) -> float | None:
    return None if start is None or stop is None else stop - start
