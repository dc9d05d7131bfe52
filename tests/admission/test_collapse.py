"""The test for a collapse: it finds one within a span, and is wrong as seldom as its bound says."""

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.budgets import Counts
from admission.collapse import (
    DEGENERATE,
    SPAN,
    Collapse,
    RecentAnswers,
    chance_of,
    cut_signal,
    false_alarm_bound,
    find_collapse,
    is_collapse,
    is_over,
    usual_share,
)

shares = st.floats(0.0, 1.0)
UNKNOWN = usual_share(Counts())


@given(total=st.integers(1, 9), bad=st.integers(0, 9), share=shares)
def test_the_chance_is_that_of_all_outcomes_with_so_many_bad(total: int, bad: int, share: float) -> None:
    ways = (sum(each) for each in product((0, 1), repeat=total))
    exact = sum(share**n * (1 - share) ** (total - n) for n in ways if n >= bad)
    assert chance_of(bad, total, share) == pytest.approx(exact, abs=1e-9)


@given(good=st.integers(0, 10**6), bad=st.integers(0, 10**6))
def test_what_is_usual_is_at_least_what_was_seen(good: int, bad: int) -> None:
    past = Counts(good, bad)
    if past.total >= 50:
        assert max(0.05, bad / past.total) <= usual_share(past) + 1e-12 <= 1 + 1e-9
    else:
        assert usual_share(past) == UNKNOWN


@given(before=st.integers(0, 200), share=st.sampled_from((0.05, UNKNOWN)))
def test_a_lane_with_only_degenerate_answers_is_found_within_a_span(before: int, share: float) -> None:
    newest, judged = RecentAnswers(), 0
    for _ in range(before):
        newest.add(0.0, bad=False)
    while not is_collapse(newest.counts(0.0), share):
        newest.add(0.0, bad=True)
        judged += 1
        assert judged <= SPAN
    assert judged >= 10, "few answers are no evidence"


@pytest.mark.parametrize(("true_share", "share"), [(0.01, 0.05), (0.05, UNKNOWN), (0.15, UNKNOWN)])
def test_ten_thousand_answers_of_a_healthy_lane_raise_no_alarm(true_share: float, share: float) -> None:
    assert false_alarm_bound(10_000, true_share, share) < 1e-3
    random, newest = Random(1), RecentAnswers()
    for number in range(10_000):
        newest.add(float(number), bad=random.random() < true_share)
        assert not is_collapse(newest.counts(float(number)), share)


def test_the_bound_covers_the_alarms_that_happen() -> None:
    """At a share at which alarms are frequent enough to be counted."""
    random, answers, true_share = Random(7), 100, 0.55
    runs = 150
    alarms = 0
    for _ in range(runs):
        newest = RecentAnswers()
        for number in range(answers):
            newest.add(float(number), bad=random.random() < true_share)
            if is_collapse(newest.counts(float(number)), UNKNOWN):
                alarms += 1
                break
    bound = false_alarm_bound(answers, true_share, UNKNOWN)
    assert 0 < alarms / runs <= bound <= 1


def test_a_lane_whose_answers_were_always_bad_in_this_way_does_not_collapse() -> None:
    cut = cut_signal(256)
    past = {cut: Counts(10, 400)}
    assert find_collapse({cut: Counts(0, SPAN)}, past) is None
    assert find_collapse({cut: Counts(0, SPAN)}, {cut: Counts(400, 4)}) is not None
    assert find_collapse({cut: Counts(0, SPAN)}, {}) is None, "the callers may want long answers"
    assert find_collapse({DEGENERATE: Counts(0, SPAN)}, {}) is not None


@given(limit=st.integers(0, 1 << 20))
def test_only_limits_of_similar_size_are_compared(limit: int) -> None:
    signal = cut_signal(limit)
    assert bool(signal) == (limit >= 64)
    if signal:
        least = int(signal.removeprefix("cut"))
        assert least <= limit < 2 * least


def test_a_collapse_says_what_was_found() -> None:
    found = Collapse(DEGENERATE, Counts(3, 17), 0.3, "a short unit repeats: 'Z.'")
    assert str(found) == (
        "17 of the last 20 judged answers are degenerate (a short unit repeats: 'Z.'); up to 30.0% is usual"
    )


@given(bad=st.integers(0, SPAN), share=shares)
def test_a_collapse_is_over_only_when_it_would_not_be_found(bad: int, share: float) -> None:
    recent = Counts(SPAN - bad, bad)
    if is_over(recent, share):
        assert not is_collapse(recent, max(share, UNKNOWN))
    assert not is_over(Counts(SPAN - 1, 0), share)


@given(
    answers=st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 3)), max_size=120),
)
def test_routers_that_share_answers_see_all_bad_ones(answers: list[tuple[int, bool, int]]) -> None:
    """Two routers judge in turn; the store gives each of them the sums of both."""
    routers, sums, now = (RecentAnswers(), RecentAnswers()), dict[int, Counts](), 0
    for who, bad, later in answers:
        now += later
        me = routers[who % 2]
        if me.add(now, bad=bad):
            sums[now] = sums.get(now, Counts()) + Counts(int(not bad), int(bad))
        for each in routers:
            for start, counts in sums.items():
                each.put(start, counts, now)
        if bad:
            assert all(each.counts(now).bad for each in routers)
    for start in range(now + 1, now + 1 + SPAN):
        if routers[0].add(start, bad=False):
            routers[1].put(start, Counts(1, 0), start)
    assert not routers[0].counts(now + SPAN).bad, "a whole span of good answers clears the lane"
    seen = routers[1].counts(now + SPAN)
    assert not seen.bad or seen.total < SPAN or not any(bad for _, bad, _ in answers)


@given(starts=st.lists(st.integers(0, 10**7), max_size=200))
def test_memory_is_bounded(starts: list[int]) -> None:
    newest = RecentAnswers()
    for start in starts:
        newest.put(start, Counts(1, 1), 10**6)
    assert len(newest._buckets) <= SPAN
