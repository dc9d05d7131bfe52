"""The queues of the verifiers are independent and fair, and the oldest answers are dropped first."""

from collections import Counter, defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from router.quality.evaluation import LineKey
from router.quality.evaluation_queue import EvaluationLines
from router.verify.pool import FairQueue

places = st.builds(LineKey, st.sampled_from("xy"), st.sampled_from("abc"))
moves = st.lists(
    st.tuples(st.just("put"), places) | st.tuples(st.sampled_from(["take", "done", "oldest"]), st.integers(0, 9)),
    max_size=60,
)


class _Work:
    """A task whose content the queue does not read."""


@given(moves)
def test_every_answer_leaves_once_in_order_and_a_verifier_has_one_at_a_time(moves: list[tuple[str, Any]]) -> None:
    lines = EvaluationLines()
    waiting: list[tuple[LineKey, Any]] = []
    judged: list[LineKey] = []
    for move, what in moves:
        if move == "put":
            waiting.append((what, _Work()))
            lines.put(*waiting[-1])
        elif move == "take":
            taken = lines.take()
            busy = {place.verifier for place in judged}
            assert (taken is None) == all(place.verifier in busy for place, _ in waiting), (
                "a free verifier must get waiting work"
            )
            if taken is not None:
                assert taken[0].verifier not in busy
                assert taken == next(each for each in waiting if each[0] == taken[0]), (
                    "the answer that was queued first must be taken first"
                )
                waiting.remove(taken)
                judged.append(taken[0])
        elif move == "done" and judged:
            lines.done(judged.pop(what % len(judged)), what)
        elif move == "oldest" and waiting:
            assert lines.pop_oldest() is waiting.pop(0)[1]
        assert len(lines) == len(waiting)


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 50), min_size=2), st.integers(1, 200))
def test_specialists_that_always_wait_get_equal_time(lasting: dict[str, int], num_turns: int) -> None:
    """The total times of any two specialists differ by at most the longest turn."""
    lines, had = EvaluationLines(), Counter(dict.fromkeys(lasting, 0))
    for _ in range(num_turns + 1):
        for specialist in lasting:
            lines.put(LineKey("x", specialist), _Work())  # type: ignore[arg-type]
    for _ in range(num_turns):
        taken = lines.take()
        assert taken is not None
        place, _ = taken
        lines.done(place, lasting[place.specialist])
        had[place.specialist] += lasting[place.specialist]
        assert max(had.values()) - min(had.values()) <= max(lasting.values())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=40), st.integers(0, 1000))
def test_idle_owners_save_up_no_turns(turns: list[tuple[str, int]], long: int) -> None:
    """An owner that joins late gets at most one turn before an owner that was already waiting."""
    fair = FairQueue[None]()
    for by in "abc":
        fair.put(by, None)
    for _, seconds in turns:
        by, _ = fair.pop()
        fair.put(by, None)
        fair.charge(by, seconds)
    for by in "bc":
        fair.remove(by, None)
    fair.put("late", None)
    got: defaultdict[str, int] = defaultdict(int)
    while "a" not in got:
        by, _ = fair.pop()
        fair.put(by, None)
        got[by] += 1
        fair.charge(by, 21 + long)
        assert got["late"] <= 1


def test_a_stuck_verifier_delays_no_other_verifier() -> None:
    lines = EvaluationLines()
    for number in range(3):
        lines.put(LineKey("slow", "a"), _Work())  # type: ignore[arg-type]
        lines.put(LineKey("quick", f"b{number}"), _Work())  # type: ignore[arg-type]
    taken = [lines.take() for _ in range(3)]
    assert {each[0].verifier for each in taken if each} == {"slow", "quick"} and taken[-1] is None
    for _ in range(2):
        lines.done(LineKey("quick", "b0"), 1.0)
        again = lines.take()
        assert again is not None and again[0].verifier == "quick"
