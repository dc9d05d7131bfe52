"""All replicas of one specialist."""

import asyncio
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from math import inf
from random import Random

from admission.bucket import RetryBucket
from octet.clock import Clock
from octet.config.ensemble import DispatchConfig
from router.replicas.homes import Homes
from router.replicas.pick import pick
from router.replicas.replica import Replica

PATIENCE_SECONDS = 1.0
"""How long a request waits for a lane that was there a moment ago: a restart, a reconnection."""
_RETRY_SHARE = 0.15
"""Of the requests under way: how many may be tried again beside those that the bucket holds. With it, and a burst
of ten, a specialist that fails at everything is asked at most a fifth more often than it would be, from 200 requests
on."""
_A_MOMENT = 5.0
"""A lane that has been away for longer is not waited for."""


def anybody(_: Replica) -> bool:
    return True


class Lane:
    def __init__(self, specialist: str, dispatch: DispatchConfig, clock: Clock) -> None:
        self.specialist = specialist
        self.govern(dispatch)
        self.replicas: dict[str, Replica] = {}
        """By name."""
        self.homes = Homes(clock)
        self._clock = clock
        self._usable = asyncio.Event()
        self._last_usable = -inf

    def govern(self, dispatch: DispatchConfig) -> None:
        """These figures count from now on."""
        self.dispatch = dispatch
        self.bucket = RetryBucket(dispatch.retry_burst, dispatch.retry_ratio, _RETRY_SHARE)

    @property
    def usable(self) -> bool:
        return any(replica.usable for replica in self.replicas.values())

    def told(self) -> None:
        """Something about one of the replicas is different."""
        was_usable = self._usable.is_set()
        if self.usable:
            self._usable.set()
        else:
            self._usable.clear()
        if was_usable or self._usable.is_set():
            self._last_usable = self._clock.now()

    def choose(
        self,
        tried: Container[str],
        session: bytes,
        adapters: Sequence[str],
        random: Random,
        *,
        sound: bool,
        roomy: bool = False,
        may_answer: Callable[[Replica], bool] = anybody,
    ) -> Replica | None:
        """None when there is none left that was not tried; with `sound`, none that is likely to answer; with `roomy`,
        none that has a seat free."""
        stale = self.dispatch.stale_seconds
        asked = (each for name, each in self.replicas.items() if name not in tried and may_answer(each))
        candidates = [each.candidate(stale) for each in asked]
        if sound:
            candidates = [each for each in candidates if not (each.is_closed or each.is_broken)]
        if roomy:
            candidates = [each for each in candidates if each.has_room]
        if not candidates:
            return None
        last = self.homes.find(session, adapters)
        return self.replicas[pick(candidates, session, adapters, self.dispatch, random, last).name]

    async def wait_usable(self, seconds: float) -> bool:
        """Whether a replica can be used, at once or within a moment; a lane that has been away for long is not
        waited for."""
        if self._clock.now() - self._last_usable > _A_MOMENT:
            return self.usable
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, PATIENCE_SECONDS)):
                await self._usable.wait()
        return self._usable.is_set()
