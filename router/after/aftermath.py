"""The queue of answers that are judged and compared while nobody waits: every verifier at its own pace."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from octet.telemetry import bounds
from octet.telemetry.histogram import Histogram
from router.after.judge import Judge
from router.after.judged import Judged
from router.after.kept import Kept
from router.after.lines import Lines
from router.after.place import Place
from router.after.room import Room
from router.after.rules import Rules
from router.after.sample import Answer, Finished, Outcomes, Pending
from router.after.tally import Tally
from router.after.work import Work
from router.background import for_good

_log = logging.getLogger(__name__)
MOST_BYTES = 16 << 20
"""Of answers and questions that are kept, all together."""


class Aftermath:
    """Belongs to the event loop. When it cannot keep up, the oldest go: what is answered now says most. No more answers
    are judged at once than there are verifiers."""

    def __init__(
        self,
        outcomes: Outcomes,
        wall_ms: Callable[[], int],
        rules: Rules,
        most_bytes: int = MOST_BYTES,
        clock: Callable[[], float] = time.monotonic,
        told: Callable[[Judged], None] | None = None,
    ) -> None:
        """`wall_ms` is milliseconds since 1970; `clock` says how long verifiers take, in seconds. `told` hears of
        verdicts on answers that are traced."""
        self._rules = rules
        self._clock = clock
        self.room = Room(most_bytes)
        self.tally = Tally()
        self.seconds: dict[Place, Histogram] = {}
        """That judging took, by verifier and specialist."""
        self._judge = Judge(outcomes, wall_ms, self.tally, clock, told)
        self._lines = Lines()
        self._pending: set[Work] = set()
        """Their shadows are under way."""
        self._changed = asyncio.Event()
        """There is more to be judged, or somebody free to judge."""
        self._worker: asyncio.Task[None] | None = None
        self._judging: set[asyncio.Task[bool]] = set()
        self._closed = False

    @property
    def num_waiting(self) -> int:
        return len(self._lines) + len(self._pending)

    def start(self) -> None:
        self._worker = for_good(self._run, "judging answers")

    def apply(self, rules: Rules) -> None:
        """For what is handed over from now on."""
        self._rules = rules

    def keep(self) -> Kept:
        """A place for an answer that begins now. Whoever does not hand it over drops it."""
        return Kept(self.room, self._rules.answer_bytes)

    def hand(self, finished: Finished, shadow: Pending | None = None) -> None:
        """Never waits and never raises. Both are its own from now on."""
        self.tally.handed += 1
        work = Work(finished, shadow, self._rules)
        try:
            self._take(work)
        except Exception:
            self.tally.failed += 1
            _log.error("an answer is not judged", exc_info=True)

    async def close(self) -> None:
        """What waits is not judged any more. The verifiers in force are closed."""
        if self._closed:
            return
        self._closed = True
        await self._stop()
        waiting = (*(self._lines.oldest() for _ in range(len(self._lines))), *self._pending)
        self._pending.clear()
        for work in waiting:
            if work.shadow is not None:
                work.shadow.cancel()
            self._drop(work)
        verifiers = {id(verifier): verifier for verifier in self._rules.verifiers.values()}
        await asyncio.gather(*(verifier.close() for verifier in verifiers.values()), return_exceptions=True)

    async def _stop(self) -> None:
        running = (*self._judging, *(() if self._worker is None else (self._worker,)))
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _take(self, work: Work) -> None:
        if self._closed or not self._has_room(work):
            if work.shadow is not None:
                work.shadow.cancel()
            work.drop()
            return
        if work.shadow is None:
            self._put(work)
            return
        self._pending.add(work)
        work.shadow.when_done(lambda answer: self._paired(work, answer))

    def _has_room(self, work: Work) -> bool:
        """For the question, with an answer that was not too long. It is taken."""
        if not work.finished.kept.whole:
            self.tally.unread += 1
            return False
        while not self.room.take(work.num_bytes):
            if not self._lines:
                self.tally.unread += 1
                return False
            self._shed()
        return True

    def _paired(self, work: Work, answer: Answer | None) -> None:
        work.answer = answer
        if work not in self._pending:
            work.drop()
            return
        self._pending.discard(work)
        if work.worthwhile:
            self._put(work)
        else:
            self._drop(work)

    def _put(self, work: Work) -> None:
        self._lines.put(work.place, work)
        while len(self._lines) > self._rules.queue:
            self._shed()
        self._changed.set()

    def _shed(self) -> None:
        work = self._lines.oldest()
        self.tally.shed += 1
        self.tally.shed_shadows += work.answer is not None and not work.is_compared
        self._drop(work)

    def _drop(self, work: Work) -> None:
        self.room.give(work.num_bytes)
        work.drop()

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while (taken := self._lines.take()) is not None:
                task = asyncio.create_task(self._look_at(taken[1]), name="judging an answer")
                self._judging.add(task)
                task.add_done_callback(partial(self._looked, *taken, self._clock()))

    async def _look_at(self, work: Work) -> bool:
        try:
            return await self._judge.look_at(work)
        except Exception:
            self.tally.failed += 1
            _log.error("an answer is not judged", exc_info=True)
            return False

    def _looked(self, place: Place, work: Work, began: float, task: "asyncio.Task[bool]") -> None:
        """Also where it was cancelled before it began."""
        self._judging.discard(task)
        seconds = self._clock() - began
        self._lines.done(place, seconds)
        self.seconds.setdefault(place, Histogram(bounds.VERIFY_SECONDS)).add(seconds)
        self._changed.set()
        if not task.cancelled() and task.result():
            self._put(work)
        else:
            self._drop(work)
