"""The waiting queue is a sorted set. Removed entries do not accumulate in it."""

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from specialist.scheduling.sequence import Sequence, WaitingQueue
from tests.simulation.laws.scheduler import place_of
from tests.specialist.builders import make_sequence

NUM_SEQUENCES = 12

ranks = st.tuples(st.integers(0, 2), st.integers(0, 2), st.none() | st.sampled_from([1, 3, 60]))
moves = st.tuples(st.sampled_from(["push", "push", "discard"]), st.integers(0, NUM_SEQUENCES - 1))


def new_queue() -> WaitingQueue:
    return WaitingQueue(order=lambda seq: seq.rank)


def keeps_members_only(queue: WaitingQueue) -> bool:
    return len(queue._places) == len(queue._sorted) == len(queue)


@given(
    ranks=st.lists(ranks, min_size=NUM_SEQUENCES, max_size=NUM_SEQUENCES),
    moves=st.lists(moves, max_size=60),
    peeks=st.booleans(),
)
def test_it_is_a_sorted_set(
    ranks: list[tuple[int, int, int | None]], moves: list[tuple[Literal["push", "discard"], int]], peeks: bool
) -> None:
    """The order is: highest priority, earliest due time, earliest arrival, first submitted. Removals do not change
    it."""
    seqs = [make_sequence(i, priority=p, arrival=at, deadline=end) for i, (p, at, end) in enumerate(ranks)]
    queue, members = new_queue(), set[Sequence]()
    for move, i in moves:
        if move == "discard":
            queue.discard(seqs[i])
            members.discard(seqs[i])
        elif seqs[i] not in members:
            queue.push(seqs[i])
            members.add(seqs[i])
        in_order = sorted(members, key=lambda seq: place_of(seq.request, seq.index))
        assert list(queue) == in_order
        assert len(queue) == len(members)
        assert [seq in queue for seq in seqs] == [seq in members for seq in seqs]
        assert keeps_members_only(queue)
        if peeks:
            assert queue.peek() is (in_order[0] if in_order else None)


def test_it_empties_in_order() -> None:
    seqs = [make_sequence(i, priority=i % 3, arrival=i % 5) for i in range(30)]
    queue = new_queue()
    for seq in seqs:
        queue.push(seq)
    served = []
    while (head := queue.peek()) is not None:
        served.append(head)
        queue.discard(head)
    assert served == sorted(seqs, key=lambda seq: seq.rank)


def test_repeated_pushes_and_removals_leak_nothing() -> None:
    """Sequences that are repeatedly pushed and removed behind a head that stays must not remain in memory."""
    queue = new_queue()
    queue.push(make_sequence(0, priority=9))
    restless = [make_sequence(i) for i in range(1, 8)]
    for _ in range(100):
        for seq in restless:
            queue.push(seq)
        for seq in restless:
            queue.discard(seq)
            assert keeps_members_only(queue)


def test_a_preempted_request_keeps_its_place() -> None:
    first, second = make_sequence(1), make_sequence(2)
    queue = new_queue()
    queue.push(first)
    queue.push(second)
    queue.discard(first)
    assert queue.peek() is second
    queue.push(first)
    assert list(queue) == [first, second]


def test_discarding_an_unknown_sequence_is_harmless() -> None:
    queue = new_queue()
    queue.discard(make_sequence(1))
    assert len(queue) == 0
    assert queue.peek() is None
