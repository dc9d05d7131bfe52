"""The queue of answers that are judged and compared, one after the other, while nobody waits."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from octet.v1 import inference_pb2 as wire
from router.after.comparison import Pair, compare
from router.after.kept import Kept
from router.after.reading import Bench, Reading, read
from router.after.room import Room
from router.after.rules import Rules
from router.after.sample import Answer, Finished, Outcomes, Pending
from router.after.tally import Tally
from router.after.work import Work
from router.between.way import Way
from router.service.background import for_good
from router.verify.verdict import Outcome, Verifier

_log = logging.getLogger(__name__)
MOST_BYTES = 16 << 20
"""Of answers and questions that are kept, all together."""


class Aftermath:
    """Belongs to the event loop. When it cannot keep up, the oldest go: what is answered now says most."""

    def __init__(
        self, outcomes: Outcomes, wall_ms: Callable[[], int], rules: Rules, most_bytes: int = MOST_BYTES
    ) -> None:
        """`wall_ms` is milliseconds since 1970."""
        self._outcomes = outcomes
        self._wall_ms = wall_ms
        self._rules = rules
        self.room = Room(most_bytes)
        self.tally = Tally()
        self._queue: deque[Work] = deque()
        self._pending: set[Work] = set()
        """Their shadows are under way."""
        self._filled = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def num_waiting(self) -> int:
        return len(self._queue) + len(self._pending)

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
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        waiting = (*self._queue, *self._pending)
        self._queue.clear()
        self._pending.clear()
        for work in waiting:
            if work.shadow is not None:
                work.shadow.cancel()
            self._drop(work)
        verifiers = {id(verifier): verifier for verifier in self._rules.verifiers.values()}
        await asyncio.gather(*(verifier.close() for verifier in verifiers.values()), return_exceptions=True)

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
            if not self._queue:
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
        self._queue.append(work)
        while len(self._queue) > self._rules.queue:
            self._shed()
        self._filled.set()

    def _shed(self) -> None:
        work = self._queue.popleft()
        self.tally.shed += 1
        self.tally.shed_shadows += work.answer is not None
        self._drop(work)

    def _drop(self, work: Work) -> None:
        self.room.give(work.num_bytes)
        work.drop()

    async def _run(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._queue:
                await self._process(self._queue.popleft())
                await asyncio.sleep(0)  # a verifier may be done before anybody else had a turn

    async def _process(self, work: Work) -> None:
        try:
            await self._look_at(work)
        except Exception:
            self.tally.failed += 1
            _log.error("an answer is not judged", exc_info=True)
        finally:
            self._drop(work)

    async def _look_at(self, work: Work) -> None:
        finished, bench = work.finished, Bench(work.finished.question)
        primary = await self._read(finished.kept, finished.receipt.usage)
        shadow = None if work.answer is None else await self._read(work.answer.kept, work.answer.usage)
        verifiers = work.rules.verifiers
        if primary is not None and finished.sample:
            await self._judge(bench, verifiers[finished.way.specialist], primary, finished.way, finished.receipt.lane)
        if shadow is not None and work.shadow is not None and work.answer is not None and work.counts_for_shadow:
            way = work.shadow.order.way
            if primary is not None and work.shadow_ran_on:
                await self._hold_against(bench, verifiers[way.specialist], primary, way, work.answer.lane)
            else:
                await self._judge(bench, verifiers[way.specialist], shadow, way, work.answer.lane)
        if primary is not None and shadow is not None and work.has_two_lanes:
            await self._compare(work, bench, primary, shadow)

    async def _read(self, kept: Kept, usage: wire.Usage) -> Reading | None:
        reading = await read(kept, usage)
        self.tally.unread += reading is None
        return reading

    async def _judge(self, bench: Bench, verifier: Verifier, reading: Reading, way: Way, lane: wire.Lane) -> None:
        """For the lane's window, by its own specialist's verifier. What another revision of the model said, or other
        adapters than the lane's, counts for nobody."""
        if not reading.ended or not _counts(way, lane):
            return
        outcome = await bench.outcome(verifier, reading.text)
        if outcome in ("passed", "failed"):
            self.tally.judged += 1
            self._outcomes.judged(way.lane_id, way.specialist, outcome)
        else:
            self.tally.undecided += 1

    async def _hold_against(
        self, bench: Bench, verifier: Verifier, primary: Reading, way: Way, lane: wire.Lane
    ) -> None:
        """A lane that does not come to an end where the one that serves did, and was right, has failed."""
        if not _counts(way, lane):
            return
        if await bench.outcome(verifier, primary.text) == "passed":
            self.tally.judged += 1
            self._outcomes.judged(way.lane_id, way.specialist, "failed")
        else:
            self.tally.undecided += 1

    async def _compare(self, work: Work, bench: Bench, primary: Reading, shadow: Reading) -> None:
        """Where one was cut off, neither is judged: like is compared with like."""
        if work.shadow is None:
            return
        verifier = work.rules.verifiers[work.finished.receipt.specialist]
        outcomes: tuple[Outcome, Outcome] = ("skipped", "skipped")
        if primary.ended and work.shadow_ran_on:
            outcomes = (await bench.outcome(verifier, primary.text), "failed")
        elif primary.ended and shadow.ended:
            outcomes = (await bench.outcome(verifier, primary.text), await bench.outcome(verifier, shadow.text))
        pair = Pair(primary.text, shadow.text, *outcomes)
        order, similar, at_ms = work.shadow.order, work.rules.similar, self._wall_ms()
        comparison = await asyncio.to_thread(compare, work.finished, order, pair, similar, at_ms)
        self.tally.compared += 1
        self._outcomes.compared(comparison)


def _counts(way: Way, lane: wire.Lane) -> bool:
    """Whether what was said on the lane that answered is said on the one that was meant."""
    return bool(way.lane_id) and (not way.revision or way.revision == lane.revision)
