"""Rate limits of one key: requests and tokens per minute, concurrent calls."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import ceil

from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from router.api.keys.keys import Allowance

_MINUTE = 60.0
_EPSILON = 1e-6  # tolerates rounding errors in sums of floats
_NEWEST_WEIGHT = 0.2  # weight of the newest call in the typical duration of a call


class TokenBucket:
    """A limit that refills at a rate per minute and holds at most one minute's worth. It may be overdrawn."""

    def __init__(self, per_minute: int, now: float) -> None:
        self._per_minute = per_minute
        self._level = float(per_minute)
        self._updated = now

    def level(self, now: float) -> float:
        """Return the available amount; negative if overdrawn."""
        filled = self._level + (now - self._updated) * self._per_minute / _MINUTE
        return min(float(self._per_minute), filled)

    def wait(self, now: float) -> float:
        """Return the seconds until at least one unit is available."""
        lacking = 1.0 - self.level(now)
        return lacking * _MINUTE / self._per_minute if lacking > _EPSILON else 0.0

    def take(self, amount: float, now: float) -> None:
        self._level = self.level(now) - amount
        self._updated = now

    def resized(self, per_minute: int, now: float) -> "TokenBucket":
        """Return a bucket with a new rate; the amount taken so far stays taken."""
        other = TokenBucket(per_minute, now)
        other.take(self._per_minute - self.level(now), now)
        return other


class KeyMeter:
    """Usage of one key. All times are on the router's clock."""

    def __init__(self, allowance: Allowance, now: float) -> None:
        self.allowance = allowance
        self.num_open = 0
        self._requests = _make_bucket(None, allowance.requests_per_minute, now)
        self._tokens = _make_bucket(None, allowance.tokens_per_minute, now)
        self._typical_seconds: float | None = None

    def change(self, allowance: Allowance, now: float) -> None:
        self._requests = _make_bucket(self._requests, allowance.requests_per_minute, now)
        self._tokens = _make_bucket(self._tokens, allowance.tokens_per_minute, now)
        self.allowance = allowance

    def begin_call(self, now: float) -> None:
        """Count a call. Raises Refusal, and counts nothing, if a limit is reached."""
        refusal = self._refusal(now)
        if refusal is not None:
            raise refusal
        if self._requests is not None:
            self._requests.take(1, now)
        self.num_open += 1

    def end_call(self, seconds: float) -> None:
        self.num_open -= 1
        typical = self._typical_seconds
        self._typical_seconds = seconds if typical is None else typical + _NEWEST_WEIGHT * (seconds - typical)

    def charge(self, num_tokens: int, now: float) -> None:
        """Charge tokens after they were computed; this may overdraw the limit."""
        if self._tokens is not None:
            self._tokens.take(num_tokens, now)

    def token_refusal(self, now: float) -> Refusal | None:
        if self._tokens is not None and (wait := self._tokens.wait(now)) > 0:
            return _limit_reached("tokens_per_minute", self.allowance.tokens_per_minute, "tokens per minute", wait)
        return None

    def _refusal(self, now: float) -> Refusal | None:
        most = self.allowance.concurrency
        if most is not None and self.num_open >= most:
            typical = self._typical_seconds  # None until a call has ended
            next_end = None if typical is None else typical / max(1, self.num_open)
            return _limit_reached("concurrency", most, "concurrent calls", next_end)
        request_wait = 0.0 if self._requests is None else self._requests.wait(now)
        token_wait = 0.0 if self._tokens is None else self._tokens.wait(now)
        if request_wait > token_wait:
            most = self.allowance.requests_per_minute
            return _limit_reached("requests_per_minute", most, "requests per minute", request_wait)
        return self.token_refusal(now)


def _make_bucket(before: TokenBucket | None, per_minute: int | None, now: float) -> TokenBucket | None:
    if per_minute is None:
        return None
    return TokenBucket(per_minute, now) if before is None else before.resized(per_minute, now)


def _limit_reached(field: str, most: int | None, unit: str, retry_after: float | None) -> Refusal:
    """Return the refusal. Its retry-after is rounded up, so that a retry at that time is admitted."""
    return Refusal(
        error_pb2.ERROR_REASON_KEY_LIMIT,
        f"this key is limited to {most} {unit}",
        field=field,
        limit=f"at most {most} {unit}",
        retry_after=None if retry_after is None else ceil(retry_after * 1000) / 1000,
    )


@dataclass
class AnswerTokenCounter:
    """Counts the tokens of one answer as they are forwarded, for a key with a token limit."""

    _write: Callable[[bytes], Awaitable[None]]
    _num_forwarded: int = 0

    async def write(self, raw: bytes) -> None:
        event = wire.InferEvent.FromString(raw)
        if event.HasField("chunk"):
            self._num_forwarded += len(event.chunk.token_ids)
        await self._write(raw)

    def num_tokens(self, receipt: wire.Receipt) -> int:
        """Return the number of tokens in prompt and answer. If the answer was aborted, the replica has not reported its
        length; then the forwarded tokens are counted."""
        if receipt.HasField("usage"):
            return int(receipt.usage.prompt_tokens + receipt.usage.completion_tokens)
        return int(receipt.accepted.prompt_tokens) + self._num_forwarded
