"""Each timed situation of the scheduler is exactly what the name of its figure says."""

from collections.abc import Callable
from functools import partial

import pytest

from bench.scheduler import BenchReplica, blocked, decoding, outgrowing, overtaken, prefilling, queueing, speculating

STEPS = 16


def test_every_request_decodes_and_takes_one_new_block_per_run() -> None:
    replica = decoding(8)
    before = replica.pool.num_used
    for _ in range(STEPS):
        replica.step(replica.answer())
        assert (replica.in_flight.mode, len(replica.in_flight.rows)) == ("decode", 8)
    assert replica.pool.num_used == before + 8


def test_waiting_requests_stay_in_the_queue() -> None:
    replica = queueing(4, 20)
    replica.step(replica.answer())
    assert (len(replica.in_flight.rows), len(replica.scheduler.waiting)) == (4, 20)


@pytest.mark.parametrize(("accepted", "num_kept"), [(True, 5), (False, 1)])
def test_all_drafts_are_accepted_or_none(accepted: bool, num_kept: int) -> None:
    replica = speculating(4, 64, accepted=accepted)
    before = [seq.num_tokens for seq in replica.running]
    for number in range(1, STEPS + 1):
        assert [row.num_drafts for row in replica.in_flight.rows] == [4] * 4
        replica.step(replica.answer())
        assert [seq.num_tokens for seq in replica.running] == [n + number * num_kept for n in before]


@pytest.mark.parametrize("length", [1_000, 50_000])
@pytest.mark.parametrize("cached", [False, True])
def test_blocked_head_never_enters_and_no_request_leaves(length: int, cached: bool) -> None:
    replica = blocked(4, length, cached=cached)
    for _ in range(STEPS):
        replica.step(replica.answer())
        assert (len(replica.in_flight.rows), len(replica.scheduler.waiting)) == (4, 1)
    head = replica.scheduler.waiting.peek()
    assert head is not None
    assert len(replica.scheduler.states.plan(head, 0).hit) == (length - 1) // 16 * cached


def test_no_request_is_preempted_for_a_head_that_would_still_not_fit() -> None:
    replica = blocked(32, 50_000, prompt_length=1_024, more_important=True)
    for _ in range(STEPS):
        replica.step(replica.answer())
        assert (len(replica.in_flight.rows), replica.in_flight.num_preempted) == (32, 0)


def test_long_prompt_is_computed_in_chunks() -> None:
    replica = prefilling(50_000, 2_048)
    for _ in range(STEPS):
        assert [len(row.tokens) for row in replica.in_flight.rows] == [2_048]
        assert replica.in_flight.rows[0].num_samples == 0
        replica.step(replica.answer())


def test_chunks_alternate_with_decode_steps() -> None:
    replica = prefilling(50_000, 256, num_decoding=4)
    for _ in range(STEPS // 2):
        assert [len(row.tokens) for row in replica.in_flight.rows] == [256]
        replica.step(replica.answer())
        assert [len(row.tokens) for row in replica.in_flight.rows] == [1] * 4
        replica.step(replica.answer())


@pytest.mark.parametrize(
    ("build", "num_preempted"),
    [
        (partial(outgrowing, 8, 64), 1),
        (partial(outgrowing, 8, 1_000), 1),
        (partial(overtaken, 8, 1), 1),
        (partial(overtaken, 8, 4), 4),
    ],
)
def test_the_next_step_preempts(build: Callable[[], BenchReplica], num_preempted: int) -> None:
    replica = build()
    assert replica.in_flight.num_preempted == 0
    replica.step(replica.answer())
    assert replica.in_flight.num_preempted == num_preempted


def test_answer_without_a_step_in_flight_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no step is in flight"):
        BenchReplica(10).answer()
