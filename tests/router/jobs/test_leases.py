"""A lease expires only if it is observed for its whole duration without a heartbeat."""

from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import JobsConfig
from router.jobs.workers import LeaseTracker
from router.store.connection import SqliteMemory
from router.store.database import Database, StoreSnapshot
from router.store.jobs import JobLease, JobTable, NewJob
from router.store.migrations import MIGRATIONS, migrate

LEASE = 10.0
GAPS = st.floats(0.01, 60)
STEPS = st.lists(st.tuples(GAPS, st.booleans()), min_size=1, max_size=40)
"""Seconds between two observations, and whether a heartbeat arrived between them."""


@given(STEPS)
def test_a_lease_expires_after_a_whole_lease_of_observed_silence(steps: list[tuple[float, bool]]) -> None:
    leases = LeaseTracker(LEASE)
    now, beat, silent = 0.0, 0, 0.0
    for number, (gap, beats) in enumerate(steps):
        now, beat = now + gap, beat + beats
        silent = 0.0 if beats or number == 0 else silent + min(gap, LEASE / 4)
        stale = leases.find_expired([JobLease("job", 1, beat)], (), now)
        assert bool(stale) == (silent >= LEASE)
        assert not stale or stale == [JobLease("job", 1, beat)]


@given(STEPS)
def test_a_holder_never_expires_its_own_lease_and_a_new_holder_restarts_it(steps: list[tuple[float, bool]]) -> None:
    leases, now = LeaseTracker(LEASE), 0.0
    for epoch, (gap, _) in enumerate(steps):
        now += gap
        assert leases.find_expired([JobLease("job", 1, 1)], {"job"}, now) == []
        assert leases.find_expired([JobLease("job", epoch, 1), JobLease("other", epoch, 1)], {"other"}, now) == []


def test_observations_far_apart_do_not_add_up_to_silence() -> None:
    """The store may have been unavailable between the observations, so that no router could send a heartbeat."""
    leases = LeaseTracker(LEASE)
    assert leases.find_expired([JobLease("job", 1, 1)], (), 0.0) == []
    assert leases.find_expired([JobLease("job", 1, 1)], (), 1000.0) == []
    assert leases.find_expired([JobLease("job", 1, 1)], (), 1008.0) == []


def test_a_router_whose_clock_is_behind_takes_jobs_at_once() -> None:
    connection = SqliteMemory().open()
    migrate(connection, "octet", "identity", MIGRATIONS)
    jobs = JobTable(Database(connection, StoreSnapshot("octet", lambda: 0.0)))
    new = NewJob("job-1", "ann", "ann", None, "d", 2, 900_000, 1_800_000, b"asked", b"event")
    jobs.submit(new, JobsConfig())
    assert jobs.scan(600_000, ()).has_due
    row = jobs.claim("other", 600_000)
    assert row is not None and row.id == "job-1"
