"""The number of job watchers is limited, and no tenant can take all slots."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from router.jobs.workers import JobWatchers


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.sampled_from(["", "ann", "bob", "eve"]), st.booleans()), max_size=40),
)
def test_no_tenant_takes_all_slots_and_leaving_watchers_free_theirs(most: int, steps: list[tuple[str, bool]]) -> None:
    watchers = JobWatchers(most)
    share = max(1, most // 4)
    inside: dict[str, list[ExitStack]] = {"": [], "ann": [], "bob": [], "eve": []}
    for tenant, leaves in steps:
        if leaves and inside[tenant]:
            inside[tenant].pop().close()
            continue
        slot = ExitStack()
        full = sum(map(len, inside.values())) >= most or (tenant != "" and len(inside[tenant]) >= share)
        if full:
            with pytest.raises(Refusal) as refused:
                slot.enter_context(watchers.watching("job", tenant))
            error = refused.value.error
            assert (error.reason, error.field) == (error_pb2.ERROR_REASON_QUEUE_FULL, "watchers")
            assert error.retry_after_ms > 0
        else:
            slot.enter_context(watchers.watching("job", tenant))
            inside[tenant].append(slot)
        assert len(watchers) == sum(map(len, inside.values()))
