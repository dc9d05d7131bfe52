"""Stop strings: the text that is sent ends before the first stop string, however the text is split into pieces."""

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specialist.text.tokenization import StopStrings

few = st.text("ab\n", max_size=30)
stop_lists = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)


def before_first(text: str, stops: list[str]) -> tuple[str, bool]:
    begins = [text.find(stop) for stop in stops if stop in text]
    return (text[: min(begins)], True) if begins else (text, False)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    borders = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:stop] for start, stop in pairwise(borders)]


@settings(max_examples=500)
@given(few, stop_lists, st.lists(st.integers(0, 99), max_size=9))
def test_the_sent_text_ends_before_the_first_stop_string(text: str, stops: list[str], cuts: list[int]) -> None:
    watch = StopStrings(stops)
    sent, met = "", False
    for piece in pieces_of(text, cuts):
        safe, met = watch.push(piece)
        sent += safe
        if met:
            break
    assert sent + watch.finish() == before_first(text, stops)[0]
    assert not met or before_first(text, stops)[1]


@given(few, stop_lists.filter(len))
def test_no_more_is_held_back_than_may_begin_a_stop_string(text: str, stops: list[str]) -> None:
    watch = StopStrings(stops)
    safe, met = watch.push(text)
    if before_first(text, stops)[1]:
        return
    begun = {stop[:length] for stop in stops for length in range(1, len(stop))}
    ends = [text[start:] for start in range(len(text)) if text[start:] in begun]
    assert (safe, met) == (text.removesuffix(max(ends, key=len, default="")), False)


def test_a_stop_string_inside_an_earlier_one_waits_for_it() -> None:
    watch = StopStrings(["abcd", "bc"])
    assert watch.push("xabc") == ("x", False)
    assert watch.push("d") == ("", True)
    watch = StopStrings(["abcd", "bc"])
    assert watch.push("xabc") == ("x", False)
    assert watch.push("e") == ("a", True)
    assert watch.push("more") == ("", True)
    assert watch.finish() == ""


def test_after_the_last_piece_a_stop_string_that_was_waiting_counts() -> None:
    watch = StopStrings(["abcd", "bc"])
    watch.push("xabc")
    assert watch.finish() == "a"
    watch = StopStrings(["abcbcx", "bc"])
    assert watch.push("abcbc") == ("", False)
    assert watch.push("y") == ("a", True)


def test_an_empty_stop_string_is_refused_by_its_place() -> None:
    with pytest.raises(ValueError, match=r"stop\[1\] is empty"):
        StopStrings(["a", ""])


def test_work_is_linear_in_the_text() -> None:
    def seconds(length: int) -> float:
        watch = StopStrings(["a" * 2000 + "b", "a" * 1999 + "c"])
        started = time.process_time()
        for _ in range(length):
            watch.push("a")
        return time.process_time() - started

    seconds(1000)
    assert seconds(80_000) < 16 * seconds(10_000) + 0.05
