"""The watchdog: one look at everything that lives, ten times a second, instead of a timer for every message."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from octet.clock import Clock
from octet.config.ensemble import DispatchConfig
from octet.rpc.refusal import caller_stalled, past_deadline, past_first_token
from router.dispatch.live import Live
from router.replicas.attempt import Attempt
from router.replicas.replica import Replica

INTERVAL = 0.1
_LATE = 2 * INTERVAL
DEADLINE_SLACK = 0.25
"""The replica ends a request at its deadline and says how far it came; for so long it is left to say it."""


@dataclass(slots=True)
class _Watched:
    num_heard: int
    heard_at: float


class Sweep:
    """Silence is measured in time that the sweep itself has lived through: a router that was stopped for a while
    finds nobody silent for that."""

    def __init__(self, clock: Clock, dispatch: Callable[[], DispatchConfig]) -> None:
        self._clock = clock
        self._dispatch = dispatch
        self._last = clock.now()
        self._lived = 0.0
        self._watched: dict[Replica, _Watched] = {}

    async def run(self, live: Iterable[Live], replicas: Callable[[], list[Replica]]) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            self.look(live, replicas())

    def look(self, live: Iterable[Live], replicas: list[Replica]) -> None:
        now = self._clock.now()
        self._lived += min(now - self._last, _LATE)
        self._last = now
        for each in live:
            if now >= each.deadline + DEADLINE_SLACK:
                each.end(past_deadline())
            elif _waits_in_vain(each, now):
                each.end(past_first_token())
            elif each.attempt is not None:
                self._look_at_attempt(each, each.attempt)
        self._watched = {replica: self._look_at_replica(replica) for replica in replicas}
        for each in live:
            if each.attempt is not None and each.attempt.replica.hung and not each.attempt.writing:
                each.attempt.lose(f"nothing was heard of it for {self._dispatch().hang_seconds:g} s")

    def _look_at_attempt(self, live: Live, attempt: Attempt) -> None:
        if attempt.num_seen != attempt.num_messages:
            if attempt.num_messages:
                attempt.replica.num_heard += 1
            attempt.num_seen, attempt.moved_at = attempt.num_messages, self._lived
            return
        limit = self._dispatch().stall_seconds
        if self._lived - attempt.moved_at < limit:
            return
        if attempt.writing:
            live.end(caller_stalled(f"nothing was taken for {limit:g} s"))
        elif attempt.started:  # one that waits for its turn, or whose long prompt is read, is left to its deadline
            attempt.lose(f"no token came for {limit:g} s")

    def _look_at_replica(self, replica: Replica) -> _Watched:
        before = self._watched.get(replica)
        if before is None or before.num_heard != replica.num_heard or not replica.should_report:
            return _Watched(replica.num_heard, self._lived)
        silent = self._lived - before.heard_at
        if silent >= self._dispatch().hang_seconds:
            replica.hangs(silent)
        return before


def _waits_in_vain(live: Live, now: float) -> bool:
    """Past the deadline of its first token, without one."""
    if live.first_deadline is None or now < live.first_deadline + DEADLINE_SLACK:
        return False
    return live.attempt is None or not live.attempt.started
