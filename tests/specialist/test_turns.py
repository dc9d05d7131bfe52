"""No member is passed over for more than `age_bound + peak - 2` turns, except in favour of urgent ones.

A member is a request or an adapter stack; at most `peak` members take turns. Suppose a member was last served, or
arrived, at turn t. After turn t + age_bound it is overdue. Overdue members go first, in the order in which they were
last served, so only members not served since turn t are ahead of it. There are at most `peak - 2` of them, because
neither the member itself nor the one served at turn t + 1 is among them. Every further turn serves the first of them,
and none can join them.
"""

from collections.abc import Collection, Hashable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.policy import AdapterStack, DecodeTurns, PrefillTurns
from specialist.scheduling.sequence import Sequence
from tests.specialist.builders import BARE, LANES, make_sequence

STACKS = [replace(BARE, adapters=(f"{i:064x}",)) for i in range(6)]

Prompts = PrefillTurns[Sequence]
Stacks = DecodeTurns[Sequence]
age_bounds = st.integers(1, 5)
THE_ROUTERS = 120.0
"""Seconds until the deadline that the router sets for a request without one. Such a request is not urgent."""
sequences = st.lists(
    st.tuples(st.sampled_from(STACKS), st.integers(0, 3), st.sampled_from([None, THE_ROUTERS])), min_size=1, max_size=8
).map(lambda fields: [make_sequence(i, lane=a, priority=b, deadline=c) for i, (a, b, c) in enumerate(fields)])
hurried_sequences = st.lists(
    st.tuples(st.sampled_from(STACKS[:3]), st.integers(0, 1), st.integers(1, 9)), min_size=1, max_size=8
).map(lambda fields: [make_sequence(i, lane=a, priority=b, deadline=c) for i, (a, b, c) in enumerate(fields)])
who_comes_or_goes = st.lists(st.integers(0, 20), max_size=80)
"""Sequences that arrive or leave before each turn. A number without a sequence changes nothing."""


class PassedTurns:
    """Counts the turns for which each member has been passed over."""

    def __init__(self) -> None:
        self.turns: dict[Hashable, int] = {}
        self.peak = 1

    def turn(self, present: Collection[Hashable], served: Collection[Hashable]) -> None:
        self.turns = {each: 0 if each in served else self.turns.get(each, 0) + 1 for each in present}
        self.peak = max(self.peak, len(present))

    @property
    def longest(self) -> int:
        return max(self.turns.values(), default=0)


def longest_wait(age_bound: int, peak: int) -> int:
    return age_bound + peak - 2 if peak > 1 else 0


def come_or_go(seqs: list[Sequence], which: int, present: set[Sequence], turns: Prompts | Stacks) -> None:
    for seq in seqs[which : which + 1]:
        (turns.discard if seq in present else turns.add)(seq)
        present ^= {seq}


def stacks_of(seqs: Collection[Sequence]) -> set[AdapterStack]:
    return {seq.request.lane.adapters for seq in seqs}


@given(age_bounds, sequences, who_comes_or_goes, st.integers(1, 3))
def test_no_prompt_is_passed_over_for_longer(age_bound: int, seqs: list[Sequence], moves: list[int], most: int) -> None:
    turns, waits, present = Prompts(age_bound), PassedTurns(), set[Sequence]()
    for which in moves:
        come_or_go(seqs, which, present, turns)
        if served := turns.pick()[:most]:
            assert len(stacks_of(served)) == 1
            turns.served(served)
            waits.turn(present, served)
        assert len(turns) == len(present)
        assert waits.longest <= longest_wait(age_bound, waits.peak)


@given(age_bounds, hurried_sequences, who_comes_or_goes, st.integers(1, 3))
def test_urgent_prompts_go_by_rank_and_no_prompt_waits_longer_for_its_stack(
    age_bound: int, seqs: list[Sequence], moves: list[int], most: int
) -> None:
    """The bound holds for every prompt, not for every stack. A stack whose prompts leave and are replaced before their
    turn can wait longer than any of its prompts."""
    turns, waits, present, num_stacks = Prompts(age_bound), PassedTurns(), set[Sequence](), 1
    for which in moves:
        come_or_go(seqs, which, present, turns)
        num_stacks = max(num_stacks, len(stacks_of(present)))
        if served := turns.pick()[:most]:
            [stack] = stacks_of(served)
            line = sorted((seq for seq in present if seq.request.lane.adapters == stack), key=lambda seq: seq.rank)
            assert served == line[:most]
            turns.served(served)
            waits.turn(present, line)
        assert waits.longest <= longest_wait(age_bound, num_stacks)


@given(
    age_bounds, sequences | hurried_sequences, st.lists(st.tuples(st.integers(0, 7), st.integers(0, 6), st.booleans()))
)
@settings(max_examples=200)
def test_a_repeated_pick_equals_the_pick_of_a_copy(
    age_bound: int, seqs: list[Sequence], moves: list[tuple[int, int, bool]]
) -> None:
    """`pick` remembers its result and when a prompt can be overdue at the earliest. A copy remembers neither."""
    turns = Prompts(age_bound)
    for which, passed_over, serve in moves:
        for seq in seqs[which : which + 1]:
            turns.discard(seq) if seq in turns else turns.add(seq, passed_over)
        picked = list(turns.pick())
        assert picked == list(forgetful(turns, age_bound).pick())
        if picked and serve:
            turns.served(picked[:2])


def forgetful(turns: Prompts, age_bound: int) -> Prompts:
    copy = Prompts(age_bound)
    for item in turns.by_rank:
        copy.add(item, turns.passed_over(item))
    return copy


@given(age_bounds, sequences, who_comes_or_goes)
def test_no_stack_is_passed_over_for_longer(age_bound: int, seqs: list[Sequence], moves: list[int]) -> None:
    turns, waits, present = Stacks(age_bound), PassedTurns(), set[Sequence]()
    for which in moves:
        come_or_go(seqs, which, present, turns)
        if served := turns.pick():
            [stack] = stacks_of(served)
            assert set(served) == {seq for seq in present if seq.request.lane.adapters == stack}
            turns.served(stack)
            waits.turn(stacks_of(present), [stack])
        assert len(turns) == len(stacks_of(present))
        assert waits.longest <= longest_wait(age_bound, waits.peak)


@pytest.mark.parametrize("age_bound", [1, 2, 5])
@pytest.mark.parametrize("peak", [1, 2, 3, 6])
@pytest.mark.parametrize("deadline", [None, THE_ROUTERS])
def test_the_last_in_rank_waits_exactly_so_long(age_bound: int, peak: int, deadline: float | None) -> None:
    turns = Prompts(age_bound)
    seqs = [make_sequence(i, deadline=deadline) for i in range(peak)]
    for seq in seqs:
        turns.add(seq)
    waited = 0
    while (first := turns.pick()[0]) is not seqs[-1]:
        turns.served([first])
        waited += 1
    assert waited == longest_wait(age_bound, peak)


@pytest.mark.parametrize("age_bound", [1, 2, 5])
@pytest.mark.parametrize("peak", [1, 2, 3, 6])
def test_the_last_stack_to_come_waits_exactly_so_long(age_bound: int, peak: int) -> None:
    turns = Stacks(age_bound)
    seqs = [make_sequence(i, lane=lane) for i, lane in enumerate(STACKS[:peak])]
    for seq in seqs:
        turns.add(seq)
    waited = 0
    while (picked := turns.pick()) != [seqs[-1]]:
        turns.served(picked[0].request.lane.adapters)
        waited += 1
    assert waited == longest_wait(age_bound, peak)


def test_prompts_of_the_best_stack_run_by_rank() -> None:
    turns = Prompts(age_bound=8)
    seqs = [make_sequence(i, lane=LANES[i % 2], priority=i // 2) for i in range(6)]
    for seq in seqs:
        turns.add(seq)
    assert turns.pick() == [seqs[4], seqs[2], seqs[0]]


def test_an_empty_stack_is_followed_by_the_longest_unserved() -> None:
    turns = Stacks(age_bound=8)
    seqs = [make_sequence(i, lane=lane) for i, lane in enumerate(LANES)]
    turns.add(seqs[0])
    turns.served(seqs[0].request.lane.adapters)
    turns.add(seqs[1])
    turns.served(seqs[0].request.lane.adapters)
    turns.add(seqs[2])
    turns.discard(seqs[0])
    assert turns.pick() == [seqs[1]]
