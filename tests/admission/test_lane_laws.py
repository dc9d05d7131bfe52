"""A specialist's lanes after many changes: no lane in use is dropped, and no lane number is used twice."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from admission.lanes import HELD_STATES, AdapterRef, LaneError, SpecialistLanes, configure_lanes

MOST = 20
acts = st.lists(st.sampled_from(["load", "load", "load", "promote", "roll_back", "give_up"]), min_size=25, max_size=50)


def adapter(number: int) -> AdapterRef:
    return AdapterRef(f"a{number}", f"a{number}@{number}", f"{number:064x}", f"/adapters/{number}")


def done(book: SpecialistLanes, act: str, number: int) -> SpecialistLanes:
    if act == "load":
        return book.load([adapter(number)], "ada", "a refresh", float(number))[0]
    if act == "promote":
        return book.promote(None, "ada", "looks good", float(number))[0]
    if act == "roll_back":
        return book.roll_back("ada", "looks bad", float(number))[0]
    moved = book.give_up("gone", float(number))
    return book if moved is None else moved[0]


@given(acts)
def test_held_lanes_stay_known_and_the_oldest_others_are_dropped(acts: list[str]) -> None:
    book, given_numbers = configure_lanes(None, "debug", [adapter(0)], "m" * 64, 0.0)[0], {1}
    for number, act in enumerate(acts, 1):
        before = book
        try:
            book = done(before, act, number)
        except LaneError:
            continue
        held = {lane.number for lane in before.lanes if lane.status in HELD_STATES}
        now = {lane.number for lane in book.lanes}
        assert held <= now, "a lane that was held before the change must still be known"
        forgotten = {lane.number for lane in before.lanes} - now
        assert all(gone < min(now - held - {max(now)}, default=0) for gone in forgotten), (
            "the oldest lanes must be dropped first"
        )
        fresh = now - {lane.number for lane in before.lanes}
        assert not fresh & given_numbers and len(now) <= MOST
        given_numbers |= fresh
        assert book.next_number == max(given_numbers) + 1
        assert [lane.number for lane in book.lanes] == sorted(now)
        assert SpecialistLanes.from_body(book.to_body()) == book


@given(st.integers(3, 1000), acts)
def test_a_number_used_elsewhere_is_not_used_again(next_number: int, acts: list[str]) -> None:
    """`next_number` may exceed the highest lane number by more than 1, as if later lanes had already been dropped."""
    first = configure_lanes(None, "debug", [adapter(0)], "m" * 64, 0.0)[0].load(
        [adapter(1000)], "ada", "a refresh", 0.5
    )[0]
    book = replace(first, next_number=next_number)
    for number, act in enumerate(acts, 1):
        before = book
        try:
            book = done(before, act, number)
        except LaneError:
            continue
        assert book.next_number >= before.next_number
        coming = {lane.number for lane in book.lanes} - {lane.number for lane in before.lanes}
        assert all(each >= next_number for each in coming)
