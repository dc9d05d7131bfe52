"""What the control lets nobody get wrong: what counts, what goes on beside a failure, what requests are shown."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from admission.budgets import Counts
from admission.lanes import AdapterRef
from router.control.state import CORRECTNESS, LANES
from router.store.rows import CountBucket, StoreChanges
from tests.router.control.houses import NOW, House, housed


def told(story: Callable[[House], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with housed("memory") as house:
            await house.tick()
            await story(house)

    asyncio.run(whole())


def counts(house: House, lane_id: str) -> Counts:
    return house.control._state.correctness.counts(lane_id, house.wall())


def test_only_what_passed_or_failed_counts_and_only_for_a_lane() -> None:
    async def story(house: House) -> None:
        lane = house.control.fleet_status.specialists["algo"].lane.lane_id
        for outcome in ("passed", "failed", "skipped", "unavailable", "passed", "nonsense"):
            house.control.record_outcome(lane, outcome)
            house.control.record_outcome("", outcome)
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
        before = house.control.fleet_status
        await house.tick()
        assert sorted(ticked) == sorted({"_lanes", "_breakers", "_ladders"} - {part})
        assert house.control.fleet_status is not before, "what requests meet is published all the same"

    told(story)


def test_a_whole_report_replaces_all_counts_of_evaluated_answers() -> None:
    """Another database lies in its place: the counts of the one before are nobody's."""

    async def story(house: House) -> None:
        lane = house.control.fleet_status.specialists["algo"].lane.lane_id
        house.judge("algo", 5, 5)
        house.control._store_changed(StoreChanges(2, buckets=[CountBucket(CORRECTNESS, "other", int(NOW), 1, 0)]))
        assert counts(house, lane) == Counts(5, 5)
        documents = [each for each in house.control._state.documents._documents.values() if each.kind == LANES]
        house.control._store_changed(
            StoreChanges(3, documents, [CountBucket(CORRECTNESS, "other", int(NOW), 2, 0)], whole=True)
        )
        assert (counts(house, lane), counts(house, "other")) == (Counts(), Counts(2, 0))

    told(story)


def test_a_candidate_that_no_replica_holds_is_shown_to_no_request() -> None:
    async def story(house: House) -> None:
        known = house.control._state
        book, document = known.lanes("algo"), known.documents._documents[LANES, "algo"]
        assert book is not None
        ref = AdapterRef("new", "new-2-ab", "digest", "/new")
        body = book.load([ref], "ada", "a refresh", NOW)[0].to_body()
        for held in (False, True, False):
            house.toys["algo-0"].adapters = {"new-2-ab": "digest"} if held else {}
            document = document._replace(version=document.version + 1, body=body)
            house.control._store_changed(StoreChanges(document.version, [document]))
            candidate = house.control.fleet_status.specialists["algo"].candidate
            assert (candidate is not None) == held
            assert house.control.fleet_status.specialists["algo"].lane.number == 1

    told(story)
