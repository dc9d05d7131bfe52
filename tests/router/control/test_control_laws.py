"""What the control lets nobody get wrong: what counts, what goes on beside a failure, what requests are shown."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from admission.lane import AdapterRef
from admission.window import Counts
from octet.store import Bucket, Changes
from router.control.known import LANES
from router.control.windows import CORRECTNESS
from tests.router.control.houses import NOW, House, housed


def told(story: Callable[[House], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with housed("memory") as house:
            await house.tick()
            await story(house)

    asyncio.run(whole())


def counts(house: House, lane_id: str) -> Counts:
    return house.control._known.judged.counts(lane_id, house.wall())


def test_only_what_passed_or_failed_counts_and_only_for_a_lane() -> None:
    async def story(house: House) -> None:
        lane = house.control.standing.of("algo").lane.lane_id
        for outcome in ("passed", "failed", "skipped", "unavailable", "passed", "nonsense"):
            house.control.judged(lane, outcome)
            house.control.judged("", outcome)
        assert counts(house, lane) == Counts(2, 1) and counts(house, "") == Counts()

    told(story)


@pytest.mark.parametrize("part", ["_lanes", "_breakers", "_ladders"])
def test_a_part_that_fails_keeps_no_other_from_its_tick(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(house: House) -> None:
        async def failing(now: float) -> None:
            raise RuntimeError("a mistake")

        monkeypatch.setattr(getattr(house.control, part), "tick", failing)
        ticked: list[str] = []
        for other in {"_lanes", "_breakers", "_ladders"} - {part}:
            real = getattr(house.control, other).tick

            async def noted(now: float, other: str = other, real: Callable[..., Awaitable[None]] = real) -> None:
                ticked.append(other)
                await real(now)

            monkeypatch.setattr(getattr(house.control, other), "tick", noted)
        before = house.control.standing
        await house.tick()
        assert sorted(ticked) == sorted({"_lanes", "_breakers", "_ladders"} - {part})
        assert house.control.standing is not before, "what requests meet is published all the same"

    told(story)


def test_when_all_is_told_anew_what_is_not_told_was_never_judged() -> None:
    """Another database lies in its place: the counts of the one before are nobody's."""

    async def story(house: House) -> None:
        lane = house.control.standing.of("algo").lane.lane_id
        house.judge("algo", 5, 5)
        house.control._changed(Changes(2, buckets=[Bucket(CORRECTNESS, "other", int(NOW), 1, 0)]))
        assert counts(house, lane) == Counts(5, 5)
        documents = [each for each in house.control._known.shelf._documents.values() if each.kind == LANES]
        house.control._changed(Changes(3, documents, [Bucket(CORRECTNESS, "other", int(NOW), 2, 0)], whole=True))
        assert (counts(house, lane), counts(house, "other")) == (Counts(), Counts(2, 0))

    told(story)


def test_a_candidate_that_no_replica_holds_is_shown_to_no_request() -> None:
    async def story(house: House) -> None:
        known = house.control._known
        book, document = known.book("algo"), known.shelf._documents[LANES, "algo"]
        assert book is not None
        ref = AdapterRef("new", "new-2-ab", "digest", "/new")
        body = book.load([ref], "ada", "a refresh", NOW)[0].to_body()
        for held in (False, True, False):
            house.toys["algo-0"].adapters = {"new-2-ab": "digest"} if held else {}
            document = replace(document, version=document.version + 1, body=body)
            house.control._changed(Changes(document.version, [document]))
            candidate = house.control.standing.of("algo").candidate
            assert (candidate is not None) == held
            assert house.control.standing.of("algo").lane.number == 1

    told(story)
