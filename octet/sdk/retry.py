"""Whether to ask once more, and when: a client must never make a crowd larger."""

from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import NamedTuple

from octet.clock import Clock
from octet.sdk.errors import Busy, OctetError, ReplicaLost, Unavailable

_DOUBLINGS = 60
"""As many as any float can take."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    max_retries: int = 2
    """Of one call."""
    first_wait: float = 0.1
    """Seconds, at most, before the first retry; twice as long before every other. Drawn between 0 and that."""
    longest_wait: float = 5.0
    longest_retry_after: float = 60.0
    """A server that wants more patience than that gets none."""

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ValueError(f"max_retries must be at least 0, got {self.max_retries}")


class RetryBudget:
    """Shared by all calls of a client: a retry costs 1, an answer brings back a part of it."""

    def __init__(self, *, capacity: float = 10.0, earned: float = 0.1) -> None:
        self._capacity = capacity
        self._earned = earned
        self._left = capacity
        self._lock = Lock()

    @property
    def left(self) -> float:
        return self._left

    def spend(self) -> bool:
        """Whether there was enough for one retry."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True

    def earn(self) -> None:
        with self._lock:
            self._left = min(self._capacity, self._left + self._earned)


_STAYS_SO = {"below_floor", "demoted"}
"""A priority that is too low stays too low, and a specialist that answers wrongly is not trusted again so soon."""


def _is_worth_it(error: OctetError) -> bool:
    """Nothing of an answer has come, so a replica that was lost with the request costs nobody a word. A deadline that
    cannot be met, with no time named at which it could, is not met later either."""
    if error.reason in _STAYS_SO or (error.reason == "deadline_unreachable" and error.retry_after is None):
        return False
    return isinstance(error, Busy | Unavailable | ReplicaLost)


class Left(NamedTuple):
    """Seconds; None for no end."""

    total: float | None
    first: float | None
    """To the first token."""


class Effort:
    """One call with all of its attempts, before anything of an answer has come."""

    def __init__(
        self,
        policy: RetryPolicy,
        budget: RetryBudget,
        clock: Clock,
        random: Random,
        timeout: float | None,
        first_timeout: float | None = None,
    ) -> None:
        """`first_timeout` is for the first token."""
        self._policy = policy
        self._budget = budget
        self._clock = clock
        self._random = random
        self._deadline = None if timeout is None else clock.now() + timeout
        self._first_deadline = None if first_timeout is None else clock.now() + first_timeout
        self._num_retries = 0

    def left(self) -> Left:
        return Left(self._until(self._deadline), self._until(self._first_deadline))

    def _until(self, deadline: float | None) -> float | None:
        return None if deadline is None else deadline - self._clock.now()

    def wait_after(self, error: OctetError) -> float | None:
        """Seconds until the next attempt, which is paid for; None to give up."""
        if not _is_worth_it(error) or self._num_retries >= self._policy.max_retries:
            return None
        wait = self._wait(error.retry_after)
        is_too_late = any(left is not None and wait >= left for left in self.left())
        if wait > self._policy.longest_retry_after or is_too_late or not self._budget.spend():
            return None
        self._num_retries += 1
        return wait

    def answered(self) -> None:
        self._budget.earn()

    def _wait(self, retry_after: float | None) -> float:
        if retry_after is not None:
            return max(0.0, retry_after)
        doubled = self._policy.first_wait * 2 ** min(self._num_retries, _DOUBLINGS)
        return self._random.uniform(0, min(self._policy.longest_wait, doubled))
