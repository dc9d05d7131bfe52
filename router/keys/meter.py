"""What one key has had of what it may have."""

from octet.rpc.refusal import Refusal
from router.keys.bucket import Bucket
from router.keys.key import Allowance
from router.keys.refusals import limited

_WEIGHT = 0.2
"""Of the newest call in the usual time of one."""


class Meter:
    """Times are the router's clock's, handed in."""

    def __init__(self, allowance: Allowance, now: float) -> None:
        self.allowance = allowance
        self.num_inside = 0
        self._requests = _bucket(None, allowance.requests_per_minute, now)
        self._tokens = _bucket(None, allowance.tokens_per_minute, now)
        self._usual_seconds: float | None = None

    @property
    def is_idle(self) -> bool:
        return self.num_inside == 0

    def change(self, allowance: Allowance, now: float) -> None:
        """What has been had under the old one counts under the new."""
        self._requests = _bucket(self._requests, allowance.requests_per_minute, now)
        self._tokens = _bucket(self._tokens, allowance.tokens_per_minute, now)
        self.allowance = allowance

    def enter(self, now: float) -> None:
        """A call begins. Raises Refusal, and then nothing is counted."""
        refusal = self._refusal(now)
        if refusal is not None:
            raise refusal
        if self._requests is not None:
            self._requests.take(1, now)
        self.num_inside += 1

    def leave(self, seconds: float) -> None:
        """It has ended, after so long."""
        self.num_inside -= 1
        usual = self._usual_seconds
        self._usual_seconds = seconds if usual is None else usual + _WEIGHT * (seconds - usual)

    def charge(self, num_tokens: int, now: float) -> None:
        """Known only when they have been computed: what is taken beyond the allowance is owed."""
        if self._tokens is not None:
            self._tokens.take(num_tokens, now)

    def _refusal(self, now: float) -> Refusal | None:
        most = self.allowance.concurrency
        if most is not None and self.num_inside >= most:
            return limited("concurrency", most, "calls at once", self._next_end())
        wait = 0.0 if self._requests is None else self._requests.wait(now)
        owing = 0.0 if self._tokens is None else self._tokens.wait(now)
        if wait > owing:
            return limited("requests_per_minute", self.allowance.requests_per_minute, "requests a minute", wait)
        return self.debt(now)

    def debt(self, now: float) -> Refusal | None:
        """Why no more tokens may be had now."""
        if self._tokens is not None and (wait := self._tokens.wait(now)) > 0:
            return limited("tokens_per_minute", self.allowance.tokens_per_minute, "tokens a minute", wait)
        return None

    def _next_end(self) -> float | None:
        """Seconds, as calls of this key usually go; None until one has ended."""
        if self._usual_seconds is None:
            return None
        return self._usual_seconds / max(1, self.num_inside)


def _bucket(before: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    return Bucket(per_minute, now) if before is None else before.resized(per_minute, now)
