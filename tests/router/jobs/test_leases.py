"""Whose job may be taken away: the lease's only law, at any pace of looks and beats."""

from hypothesis import given
from hypothesis import strategies as st

from octet.store.database import Database
from octet.store.history import History
from octet.store.job_rows import Holding, JobRoom, NewJob
from octet.store.job_table import JobTable
from octet.store.migrations import MIGRATIONS, migrate
from octet.store.sqlite import SqliteMemory
from router.jobs.leases import Leases

LEASE = 10.0
GAPS = st.floats(0.01, 60)
STEPS = st.lists(st.tuples(GAPS, st.booleans()), min_size=1, max_size=40)
"""Seconds since the look before, and whether there was a sign of life in between."""


@given(STEPS)
def test_it_takes_a_whole_lease_of_looks_without_a_sign(steps: list[tuple[float, bool]]) -> None:
    leases = Leases(LEASE)
    now, beat, silent = 0.0, 0, 0.0
    for number, (gap, beats) in enumerate(steps):
        now, beat = now + gap, beat + beats
        silent = 0.0 if beats or number == 0 else silent + min(gap, LEASE / 4)
        stale = leases.observe([Holding("job", 1, beat)], (), now)
        assert bool(stale) == (silent >= LEASE)
        assert not stale or stale == [Holding("job", 1, beat)]


@given(STEPS)
def test_who_holds_it_takes_it_from_nobody_and_a_new_hand_begins_anew(steps: list[tuple[float, bool]]) -> None:
    leases, now = Leases(LEASE), 0.0
    for epoch, (gap, _) in enumerate(steps):
        now += gap
        assert leases.observe([Holding("job", 1, 1)], {"job"}, now) == []
        assert leases.observe([Holding("job", epoch, 1), Holding("other", epoch, 1)], {"other"}, now) == []


def test_looks_far_apart_do_not_make_a_silence() -> None:
    """While the store was away, nobody could give a sign."""
    leases = Leases(LEASE)
    assert leases.observe([Holding("job", 1, 1)], (), 0.0) == []
    assert leases.observe([Holding("job", 1, 1)], (), 1000.0) == []
    assert leases.observe([Holding("job", 1, 1)], (), 1008.0) == []


def test_a_router_whose_clock_is_behind_takes_jobs_at_once() -> None:
    connection = SqliteMemory().open()
    migrate(connection, "house", "identity", MIGRATIONS)
    jobs = JobTable(Database(connection, History("house", lambda: 0.0)))
    new = NewJob("job-1", "ann", "ann", None, "d", 2, 900_000, 1_800_000, b"asked", b"told")
    jobs.submit(new, JobRoom(9, 9, 999))
    assert jobs.look(600_000, ()).waits
    row = jobs.claim("other", 600_000)
    assert row is not None and row.id == "job-1"
