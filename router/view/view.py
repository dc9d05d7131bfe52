"""What operators look at: one overview for all of them, no older than a moment."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

from octet.clock import Clock
from octet.config.ensemble import Ensemble
from octet.v1 import overview_pb2 as wire
from router.background import background, for_good
from router.operator.controls import Archive
from router.operator.seats import Seats
from router.view.composer import Parts, compose, forget_gone
from router.view.facts import rules_of
from router.view.finding import patience_with
from router.view.frame import Frame
from router.view.history import STEP_SECONDS, History
from router.view.stand_ins import answers
from router.view.trouble_memory import TroubleMemory
from router.view.troubles import findings, headline, worst_first

TICK_SECONDS = 0.5
"""Between two overviews."""
SILENCE_SECONDS = 5.0
"""Without one, though nothing has changed: a little less passes."""
MOST_WATCHERS = 32
_START_SECONDS = patience_with("no_replica").before
"""A router that has just begun waits so long for its replicas before it says that nobody serves."""
_SHARE = 0.02
"""Of a core, at most: where many replicas make overviews costly, they come less often."""


class View:
    """Belongs to the event loop. While nobody looks an overview is made every few seconds, for the history and so that
    it is known since when something is wrong; it is written for nobody."""

    def __init__(
        self,
        parts: Parts,
        ensemble: Ensemble,
        clock: Clock,
        wall_ms: Callable[[], int],
        cpu: Callable[[], float] = time.thread_time,
        most_watchers: int = MOST_WATCHERS,
    ) -> None:
        """`wall_ms` is milliseconds since 1970; `cpu` tells seconds of computing of this thread."""
        self.parts = parts
        self.history = History()
        self.seats = Seats("watching the overview", most_watchers)
        self._ensemble = ensemble
        self._clock = clock
        self._wall_ms = wall_ms
        self._cpu = cpu
        self._memory = TroubleMemory()
        self._frame: Frame | None = None
        self._news = asyncio.Event()
        self._looked = float("-inf")
        """When an overview was last made, whether it said anything new or not."""
        self._stepped = float("-inf")
        self._last_cost = 0.0
        self._begun = clock.now()
        self._has_served = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, archive: Archive) -> None:
        """After the store has been started."""
        self._tasks = [
            for_good(self._run, "the overview"),
            for_good(self.parts.audit.follow, "following the audit"),
            background(self.parts.agreement.read(archive), "reading comparisons"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def reload(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble

    def now(self) -> Frame:
        """At most so old that no more are made than there may be."""
        if self._frame is None or self._clock.now() - self._looked >= TICK_SECONDS:
            return self._look()
        return self._frame

    async def follow(self) -> AsyncGenerator[Frame, None]:
        """One at once, then whichever is the newest when the next one is taken: who is slow misses some. Raises
        Refusal where too many watch."""
        with self.seats.one():
            frame = self.now()
            while True:
                yield frame
                frame = await self._newer(frame.number)

    def since_ms(self, last_seconds: float) -> int:
        """0: since ever."""
        return self._wall_ms() - round(last_seconds * 1000) if last_seconds else 0

    def tick(self) -> None:
        """What is due."""
        now = self._clock.now()
        if now - self._stepped >= STEP_SECONDS:
            self._stepped = now
            self._sample()
            self.history.add(self._look().overview)
        elif self.seats.taken and now - self._looked >= TICK_SECONDS:
            self._look()

    @property
    def pause(self) -> float:
        """Until the next tick."""
        cost = self._last_cost + (0.0 if self._frame is None else self._frame.cost)
        return min(max(TICK_SECONDS, cost / _SHARE), STEP_SECONDS)

    async def _run(self) -> None:
        while True:
            self.tick()
            await asyncio.sleep(self.pause)

    async def _newer(self, number: int) -> Frame:
        while self._frame is None or self._frame.number <= number:
            await self._news.wait()
        return self._frame

    def _look(self) -> Frame:
        now, began = self._clock.now(), self._cpu()
        overview = self._overview(now)
        self._looked = now
        frame = self._frame
        if frame is None or now - frame.made >= SILENCE_SECONDS - TICK_SECONDS or not frame.says_the_same(overview):
            frame = self._frame = Frame(0 if frame is None else frame.number + 1, overview, now, self._cpu)
            self._news.set()
            self._news = asyncio.Event()
        self._last_cost = self._cpu() - began
        return frame

    def _overview(self, now: float) -> wire.Overview:
        now_ms = self._wall_ms()
        facts = compose(self.parts, self._ensemble, now_ms)
        overview = facts.overview
        self._has_served = self._has_served or any(map(answers, overview.specialists))
        found = findings(facts, rules_of(self._ensemble), self._memory.told)
        if not self._has_served and now - self._begun < _START_SECONDS:
            found = [each for each in found if each.kind != "nobody_serves"]
        overview.troubles.extend(worst_first(self._memory.step(found, now, now_ms)))
        overview.headline = headline(overview)
        return overview

    def _sample(self) -> None:
        """Replicas' counters."""
        loads = self.parts.loads()
        by_specialist: dict[str, list[str]] = {}
        for info in self.parts.control.replicas():
            by_specialist.setdefault(info.specialist, []).append(info.name)
        for specialist, names in by_specialist.items():
            self.parts.cache.look(specialist, ((name, loads[name]) for name in names if name in loads))
        forget_gone(self.parts, self._ensemble, [name for names in by_specialist.values() for name in names])
