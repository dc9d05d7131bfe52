"""Each restart of a replica is recorded once, whichever routers see it and whenever the store answers."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from octet.v1 import control_pb2
from router.control.status import RestartRecord, _record_restart, merge_restart_documents
from router.dispatch.replicas.replica import RESTART_KINDS, UNKNOWN_REASON, ReplicaRestart
from tests.router.control.harness import (
    ENSEMBLE,
    NOW,
    ControlHarness,
    DatabaseLink,
    FakeWallClock,
    make_replicas,
    running_control,
)
from tests.router.store.stores import eventually

NAME = "algo-0"
STARTED = round(NOW * 1000)


def restart(number: int, kind: str = "killed", reason: str = "killed by SIGKILL") -> ReplicaRestart:
    return ReplicaRestart(f"process-{number}", STARTED + 1000 * number, kind, reason)


def shown(harness: ControlHarness) -> control_pb2.ReplicaInfo:
    (info,) = (each for each in harness.control.replicas() if each.name == NAME)
    return info


def has_restarts(harness: ControlHarness, number: int) -> bool:
    return shown(harness).restarts == number


async def test_two_routers_record_a_restart_once(shared_url: str) -> None:
    wall, replicas = FakeWallClock(), make_replicas(ENSEMBLE)
    async with (
        running_control(shared_url, wall=wall, replicas=replicas) as one,
        running_control(shared_url, wall=wall, replicas=replicas) as other,
    ):
        assert shown(one).restarts == 0 and not shown(one).last_restart_reason
        for number, seen in enumerate((restart(1), restart(2, "unknown", UNKNOWN_REASON)), 1):
            replicas[NAME].seen_restart = seen
            for harness in (one, other, one):
                await harness.tick()
            for harness in (one, other):
                await eventually(partial(has_restarts, harness, number))
        info = shown(other)
        assert (info.last_restart_reason, info.last_restart_unix_ms) == (UNKNOWN_REASON, STARTED + 2000)
        assert dict(one.control.restarts(NAME)) == {"killed": 1, "unknown": 1} == dict(other.control.restarts(NAME))
        entries = list(await one.control.audit(100, NAME))
        assert [(each.who, each.what, each.before, each.after, each.why) for each in reversed(entries)] == [
            ("octet", "restart", "0 restarts", "1 restart", "killed by SIGKILL"),
            ("octet", "restart", "1 restart", "2 restarts", UNKNOWN_REASON),
        ]


async def test_router_without_a_store_records_restarts_later(shared_url: str) -> None:
    """One router saw both restarts while it had no store. The other one recorded the first of them."""
    wall, replicas, link = FakeWallClock(), make_replicas(ENSEMBLE), DatabaseLink()
    async with (
        running_control(shared_url, wall=wall, replicas=replicas, link=link) as one,
        running_control(shared_url, wall=wall, replicas=replicas) as other,
    ):
        replicas[NAME].seen_restart = restart(1)
        await other.tick()
        link.is_broken = True
        await eventually(lambda: bool(one.control.store_trouble))
        for number in (1, 2):
            replicas[NAME].seen_restart = restart(number)
            await one.tick()
        assert shown(one).restarts == 2, "known here before it is stored"
        link.is_broken = False
        await eventually(lambda: not one.control.store_trouble)
        await one.tick()
        await eventually(lambda: shown(other).restarts == 2)
        entries = [each.after for each in await other.control.audit(100, NAME)]
        assert sorted(entries) == ["1 restart", "2 restarts"]


async def test_restarted_router_does_not_count_again(tmp_path: Path) -> None:
    replicas = make_replicas(ENSEMBLE)
    replicas[NAME].seen_restart = restart(1)
    for _ in range(2):
        async with running_control(tmp_path / "store.db", replicas=replicas) as harness:
            await harness.tick()
            assert shown(harness).restarts == 1


@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from(RESTART_KINDS)), max_size=12))
@settings(deadline=None)
def test_late_and_repeated_sightings_change_nothing(seen: list[tuple[int, str]]) -> None:
    body, newest, num_recorded = None, 0, 0
    for number, kind in seen:
        revision = _record_restart(NAME, restart(number, kind), NOW, body)
        assert (revision is not None) == (number > newest)
        if revision is not None and revision.body is not None:
            if body is not None:
                assert merge_restart_documents(body, revision.body) == revision.body
                assert merge_restart_documents(revision.body, body) is None
            body, newest, num_recorded = revision.body, number, num_recorded + 1
            assert RestartRecord.from_body(body).number == num_recorded


@given(st.lists(st.lists(st.booleans(), max_size=8), max_size=4))
def test_restarts_that_no_router_saw_are_counted(supervisors: list[list[bool]]) -> None:
    """Each supervisor counts from 0, and a router looks after some of the restarts. It never counts too many, and with
    one supervisor it counts all of them."""
    body, instance, num_restarts = None, 0, 0
    for looks in supervisors:
        for number, is_seen in enumerate(looks, 1):
            instance, num_restarts = instance + 1, num_restarts + 1
            if is_seen:
                revision = _record_restart(NAME, replace(restart(instance), number=number), NOW, body)
                assert revision is not None and revision.body is not None
                body = revision.body
                counted = RestartRecord.from_body(body).number
                assert counted <= num_restarts and (counted == num_restarts or len(supervisors) > 1)


def test_wrong_number_of_restarts_does_not_spoil_the_count() -> None:
    assert RestartRecord().add(replace(restart(1), number=2**32 - 1), NOW).number == 1000
