"""Ended jobs that are too old are deleted. While the others exceed the limit on their number or bytes, the oldest job
of the tenant with the most jobs or bytes is deleted."""

from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import JobsConfig
from router.store.jobs import EndedJob, find_expired_jobs

NOW = 1000
JOBS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.integers(0, 30)),
    max_size=24,
).map(
    lambda drawn: [EndedJob(f"j{i}", t, NOW - 20 + at, size) for i, (t, at, size) in enumerate(sorted(drawn, key=_at))]
)
LIMITS = st.builds(
    lambda keep_ms, kept, kept_bytes: JobsConfig(keep=keep_ms / 1000, kept=kept, kept_bytes=kept_bytes),
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(0, 200),
)


def _at(drawn: tuple[str, int, int]) -> int:
    return drawn[1]


def kept(jobs: list[EndedJob], limits: JobsConfig) -> list[EndedJob]:
    gone = list(find_expired_jobs(jobs, limits, NOW))
    assert len(set(gone)) == len(gone) and set(gone) <= {job.id for job in jobs}
    return [job for job in jobs if job.id not in gone]


@given(JOBS, LIMITS)
def test_kept_jobs_are_within_the_limits_and_the_newest_of_each_tenant(
    jobs: list[EndedJob], limits: JobsConfig
) -> None:
    left = kept(jobs, limits)
    assert len(left) <= limits.kept and sum(job.num_bytes for job in left) <= limits.kept_bytes
    young = [job for job in jobs if job.ended_ms > NOW - round(limits.keep * 1000)]
    assert set(left) <= set(young)
    for tenant in "abc":
        own = [job for job in young if job.tenant == tenant]
        mine = [job for job in left if job.tenant == tenant]
        assert mine == own[len(own) - len(mine) :]
    if len(young) <= limits.kept and sum(job.num_bytes for job in young) <= limits.kept_bytes:
        assert left == young


@given(JOBS, LIMITS)
def test_a_tenant_below_its_fair_share_loses_no_job(jobs: list[EndedJob], limits: JobsConfig) -> None:
    left = kept(jobs, limits)
    young = [job for job in jobs if job.ended_ms > NOW - round(limits.keep * 1000)]
    tenants = {job.tenant for job in young}
    for tenant in tenants:
        own = [job for job in young if job.tenant == tenant]
        size = sum(job.num_bytes for job in own)
        if len(own) * len(tenants) <= limits.kept and size * len(tenants) <= limits.kept_bytes:
            assert [job for job in left if job.tenant == tenant] == own


def test_a_tenants_flood_displaces_only_its_own_jobs() -> None:
    quiet = [EndedJob("quiet", "ann", 1, 10)]
    flood = [EndedJob(f"f{number}", "bob", 2 + number, 100) for number in range(50)]
    by_count = JobsConfig(keep=10, kept=10, kept_bytes=1 << 20)
    by_size = JobsConfig(keep=10, kept=1000, kept_bytes=500)
    assert [job.id for job in kept(quiet + flood, by_count)] == ["quiet", *(f"f{number}" for number in range(41, 50))]
    assert [job.id for job in kept(quiet + flood, by_size)] == ["quiet", *(f"f{number}" for number in range(46, 50))]
