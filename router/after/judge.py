"""What is made of one answer, and of its shadow's: verdicts for their lanes, and a comparison."""

import asyncio
from collections.abc import Callable

from octet.v1 import inference_pb2 as wire
from router.after.comparison import Pair, compare
from router.after.judged import Judged
from router.after.kept import Kept
from router.after.reading import Reading, read
from router.after.sample import Outcomes
from router.after.tally import Tally
from router.after.work import Work
from router.between.way import Way
from router.verify.verdict import Outcome


class Judge:
    def __init__(
        self,
        outcomes: Outcomes,
        wall_ms: Callable[[], int],
        tally: Tally,
        clock: Callable[[], float],
        told: Callable[[Judged], None] | None = None,
    ) -> None:
        """`wall_ms` is milliseconds since 1970; `told` hears of verdicts on answers that are traced, with times in
        seconds by `clock`."""
        self._clock = clock
        self._told = told
        self._outcomes = outcomes
        self._wall_ms = wall_ms
        self._tally = tally

    async def look_at(self, work: Work) -> bool:
        """All that the specialist whose turn it is has to do with. Whether another one's turn must follow."""
        if work.is_compared:
            await self._judge_shadow(work)
            return False
        work.primary = await self._read(work.finished.kept, work.finished.receipt.usage)
        if work.answer is not None:
            work.copy = await self._read(work.answer.kept, work.answer.usage)
        if work.primary is not None and work.finished.sample:
            await self._judge_primary(work, work.primary)
        if not work.is_of_two:
            await self._judge_shadow(work)
        await self._compare(work)
        work.is_compared = True
        return work.is_of_two

    async def _read(self, kept: Kept, usage: wire.Usage) -> Reading | None:
        reading = await read(kept, usage)
        self._tally.unread += reading is None
        return reading

    async def _judge_primary(self, work: Work, primary: Reading) -> None:
        outcome = await self._judge(work, primary, work.finished.way, work.finished.receipt.lane)
        if outcome is not None:
            self._outcomes.looked_at(work.finished.receipt, outcome)

    async def _judge_shadow(self, work: Work) -> None:
        if work.copy is None or work.shadow is None or work.answer is None or not work.counts_for_shadow:
            return
        if work.primary is not None and work.shadow_ran_on:
            await self._hold_against(work, work.primary, work.shadow.order.way, work.answer.lane)
        else:
            await self._judge(work, work.copy, work.shadow.order.way, work.answer.lane)

    async def _judge(self, work: Work, reading: Reading, way: Way, lane: wire.Lane) -> Outcome | None:
        """For the lane's window, by its own specialist's verifier: passed, failed, or None. What another revision of
        the model said, or other adapters than the lane's, counts for nobody."""
        if not reading.ended or not _counts(way, lane):
            return None
        began, verifier = self._clock(), work.rules.verifiers[way.specialist]
        outcome = await work.bench.outcome(verifier, reading.text)
        if self._told is not None and work.finished.receipt.span_id:
            is_shadow = reading is work.copy
            self._told(
                Judged(work.finished.receipt, way.specialist, verifier.name, outcome, began, self._clock(), is_shadow)
            )
        if outcome not in ("passed", "failed"):
            self._tally.undecided += 1
            return None
        self._tally.judged += 1
        self._outcomes.judged(way.lane_id, way.specialist, outcome)
        return outcome

    async def _hold_against(self, work: Work, primary: Reading, way: Way, lane: wire.Lane) -> None:
        """A lane that does not come to an end where the one that serves did, and was right, has failed."""
        if not _counts(way, lane):
            return
        if await work.bench.outcome(work.rules.verifiers[way.specialist], primary.text) == "passed":
            self._tally.judged += 1
            self._outcomes.judged(way.lane_id, way.specialist, "failed")
        else:
            self._tally.undecided += 1

    async def _compare(self, work: Work) -> None:
        """Where one was cut off, neither is judged: like is compared with like."""
        primary, shadow = work.primary, work.copy
        if work.shadow is None or primary is None or shadow is None or not work.has_two_lanes:
            return
        verifier = work.rules.verifiers[work.finished.receipt.specialist]
        outcomes: tuple[Outcome, Outcome] = ("skipped", "skipped")
        if primary.ended and work.shadow_ran_on:
            outcomes = (await work.bench.outcome(verifier, primary.text), "failed")
        elif primary.ended and shadow.ended:
            outcomes = (
                await work.bench.outcome(verifier, primary.text),
                await work.bench.outcome(verifier, shadow.text),
            )
        pair = Pair(primary.text, shadow.text, *outcomes)
        order, similar, at_ms = work.shadow.order, work.rules.similar, self._wall_ms()
        comparison = await asyncio.to_thread(compare, work.finished, order, pair, similar, at_ms)
        self._tally.compared += 1
        self._outcomes.compared(comparison, work.finished.receipt.tenant)


def _counts(way: Way, lane: wire.Lane) -> bool:
    """Whether what was said on the lane that answered is said on the one that was meant."""
    return bool(way.lane_id) and (not way.revision or way.revision == lane.revision)
