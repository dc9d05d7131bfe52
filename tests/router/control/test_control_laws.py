"""Laws of the control plane: only answers that passed or failed verification count for their lane, an error in one part
does not stop the others, and the fleet status lists a candidate only while a replica holds it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from admission.budgets import Counts
from admission.lanes import AdapterRef
from router.control.state import CORRECTNESS, LANES
from router.store.rows import CountBucket, StoreChanges
from tests.router.control.harness import NOW, ControlHarness, running_control


def run_scenario(scenario: Callable[[ControlHarness], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with running_control("memory") as harness:
            await harness.tick()
            await scenario(harness)

    asyncio.run(whole())


def counts(harness: ControlHarness, lane_id: str) -> Counts:
    return harness.control._state.correctness.counts(lane_id, harness.wall())


def test_only_passed_or_failed_answers_of_a_lane_count() -> None:
    async def scenario(harness: ControlHarness) -> None:
        lane = harness.control.fleet_status.specialists["algo"].lane.lane_id
        for outcome in ("passed", "failed", "skipped", "unavailable", "passed", "nonsense"):
            harness.control.record_outcome(lane, outcome)
            harness.control.record_outcome("", outcome)
        assert counts(harness, lane) == Counts(2, 1) and counts(harness, "") == Counts()

    run_scenario(scenario)


@pytest.mark.parametrize("part", ["_lanes", "_breakers", "_escalation"])
def test_a_failing_part_does_not_stop_the_ticks_of_others(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(harness: ControlHarness) -> None:
        async def failing(now: float) -> None:
            raise RuntimeError("a mistake")

        monkeypatch.setattr(getattr(harness.control, part), "tick", failing)
        ticked: list[str] = []
        for other in {"_lanes", "_breakers", "_escalation"} - {part}:
            real = getattr(harness.control, other).tick

            async def noted(now: float, other: str = other, real: Callable[..., Awaitable[None]] = real) -> None:
                ticked.append(other)
                await real(now)

            monkeypatch.setattr(getattr(harness.control, other), "tick", noted)
        before = harness.control.fleet_status
        await harness.tick()
        assert sorted(ticked) == sorted({"_lanes", "_breakers", "_escalation"} - {part})
        assert harness.control.fleet_status is not before, "the status must be published despite the failure"

    run_scenario(scenario)


def test_a_whole_report_replaces_all_counts_of_evaluated_answers() -> None:
    """After the database is replaced, the store reports its whole content. Counts that are missing from this report are
    dropped."""

    async def scenario(harness: ControlHarness) -> None:
        lane = harness.control.fleet_status.specialists["algo"].lane.lane_id
        harness.judge("algo", 5, 5)
        harness.control._store_changed(StoreChanges(2, buckets=[CountBucket(CORRECTNESS, "other", int(NOW), 1, 0)]))
        assert counts(harness, lane) == Counts(5, 5)
        documents = [each for each in harness.control._state.documents._documents.values() if each.kind == LANES]
        harness.control._store_changed(
            StoreChanges(3, documents, [CountBucket(CORRECTNESS, "other", int(NOW), 2, 0)], whole=True)
        )
        assert (counts(harness, lane), counts(harness, "other")) == (Counts(), Counts(2, 0))

    run_scenario(scenario)


def test_requests_do_not_see_a_candidate_that_no_replica_holds() -> None:
    async def scenario(harness: ControlHarness) -> None:
        known = harness.control._state
        book, document = known.lanes("algo"), known.documents._documents[LANES, "algo"]
        assert book is not None
        ref = AdapterRef("new", "new-2-ab", "digest", "/new")
        body = book.load([ref], "ada", "a refresh", NOW)[0].to_body()
        for held in (False, True, False):
            harness.replicas["algo-0"].adapters = {"new-2-ab": "digest"} if held else {}
            document = document._replace(version=document.version + 1, body=body)
            harness.control._store_changed(StoreChanges(document.version, [document]))
            candidate = harness.control.fleet_status.specialists["algo"].candidate
            assert (candidate is not None) == held
            assert harness.control.fleet_status.specialists["algo"].lane.number == 1

    run_scenario(scenario)
