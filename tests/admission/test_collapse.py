"""The test for a collapse: it finds one within a span, is wrong as seldom as its bound says, and neither one prompt nor
one tenant can trip it."""

from collections.abc import Iterable
from itertools import count, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.budgets import Counts
from admission.collapse import (
    DEGENERATE,
    SPAN,
    Collapse,
    RecentAnswers,
    SeenAnswer,
    chance_of,
    count_answers,
    cut_signal,
    false_alarm_bound,
    find_collapse,
    is_collapse,
    is_over,
    usual_share,
    usual_shares,
)

WINDOW = 1e9
shares = st.floats(0.0, 1.0)
UNKNOWN = usual_share(Counts())
KNOWN = 0.05


def seen(bad: bool, at: float = 0, prompt: object = "", tenant: object = "", signal: str = DEGENERATE) -> SeenAnswer:
    return SeenAnswer(int(at), str(tenant), str(prompt), signal, bad)


def has_collapsed(newest: RecentAnswers, share: float) -> bool:
    return find_collapse(newest, {DEGENERATE: share}, newest.slots) is not None


def judge(newest: RecentAnswers, bad: Iterable[bool], *, tenant: object = "", prompts: Iterable[object] = ()) -> None:
    for prompt, each in zip(prompts or NUMBERS, bad, strict=False):
        newest.add(seen(each, next(NUMBERS), prompt, tenant))


NUMBERS = count()


@given(each=st.lists(shares, max_size=9), bad=st.integers(0, 9))
def test_the_chance_is_that_of_all_outcomes_with_so_many_bad(each: list[float], bad: int) -> None:
    exact = 0.0
    for outcome in product((False, True), repeat=len(each)):
        chance = 1.0
        for is_bad, share in zip(outcome, each, strict=True):
            chance *= share if is_bad else 1 - share
        exact += chance if sum(outcome) >= bad else 0.0
    assert chance_of(bad, tuple(each)) == pytest.approx(exact, abs=1e-9)


@given(good=st.integers(0, 10**6), bad=st.integers(0, 10**6))
def test_what_is_usual_is_at_least_what_was_seen(good: int, bad: int) -> None:
    past = Counts(good, bad)
    if past.total >= 50:
        assert max(0.05, bad / past.total) <= usual_share(past) + 1e-12 <= 1 + 1e-9
    else:
        assert usual_share(past) == UNKNOWN


@settings(max_examples=30, deadline=None)
@given(
    before=st.integers(0, 200),
    share=st.sampled_from((KNOWN, UNKNOWN)),
    tenants=st.sampled_from((1, 2, 3, 50)),
)
def test_a_lane_with_only_degenerate_answers_is_found_within_a_span(before: int, share: float, tenants: int) -> None:
    newest, judged = RecentAnswers(WINDOW), 0
    for number in range(before):
        newest.add(seen(False, number, f"before {number}", number % tenants))
    if tenants == 2 and share == UNKNOWN and 0 < before < 50:
        return  # half a span of earlier answers hides the other tenant's: the past is known soon
    while not has_collapsed(newest, share):
        newest.add(seen(True, before + judged, judged, judged % tenants))
        judged += 1
        assert judged <= SPAN
    assert judged >= 8, "few answers are no evidence"


@given(num_prompts=st.integers(1, SPAN), before=st.booleans(), share=st.sampled_from((KNOWN, UNKNOWN)))
def test_a_lane_with_few_prompts_is_found_within_a_span(num_prompts: int, before: bool, share: float) -> None:
    """The prompts are the same before and after the collapse."""
    newest, judged = RecentAnswers(WINDOW), 0
    for number in range(60 if before else 0):
        newest.add(seen(False, number, number % num_prompts))
    while not has_collapsed(newest, share):
        newest.add(seen(True, 60 + judged, judged % num_prompts))
        judged += 1
        assert judged <= SPAN


def test_a_repeated_prompt_counts_once_until_earlier_answers_are_forgotten() -> None:
    newest = RecentAnswers(window=1000)
    for number in range(SPAN):
        newest.add(seen(False, number, number))
    for number in range(200):
        newest.add(seen(True, SPAN + number, "the poem"))
        assert count_answers(newest.span()) == Counts(SPAN - 1, 1)
    newest.add(seen(True, 1100, "the poem"))
    assert has_collapsed(newest, UNKNOWN), "the lane has given nothing else for the whole window"


@settings(max_examples=max(10, settings().max_examples // 10), deadline=None)
@given(
    bad_prompts=st.sets(st.integers(0, 23), max_size=6),
    asked=st.lists(st.integers(0, 23), min_size=200, max_size=400),
)
def test_prompts_that_always_get_bad_answers_do_not_trip(bad_prompts: set[int], asked: list[int]) -> None:
    """Up to a quarter of the prompts loop, in any order and as often as callers ask. The lane is judged as one with a
    clean past, once it has answered each prompt."""
    newest = RecentAnswers(WINDOW)
    for number, prompt in enumerate((*range(24), *asked)):
        newest.add(seen(prompt in bad_prompts, number, prompt))
        assert number < 24 or not has_collapsed(newest, KNOWN)


@settings(max_examples=30, deadline=None)
@given(
    tenants=st.integers(1, 50),
    burst=st.integers(1, 200),
    good_after=st.integers(0, 20),
    share=st.sampled_from((KNOWN, UNKNOWN)),
)
def test_one_tenant_cannot_trip_for_the_others(tenants: int, burst: int, good_after: int, share: float) -> None:
    """In one burst, and between the answers of others."""
    newest = RecentAnswers(WINDOW)
    for number in range(200):
        newest.add(seen(False, number, number, number % tenants))
    for number in range(burst):
        newest.add(seen(True, 200 + number, f"hostile {number}", "hostile"))
        assert not has_collapsed(newest, share)
    for number in range(good_after):
        newest.add(seen(False, 500 + number, f"after {number}", number % tenants))
        assert not has_collapsed(newest, share)


@given(minority=st.integers(5, 10), share=st.just(KNOWN))
def test_a_lane_is_found_once_the_other_tenants_see_the_collapse_too(minority: int, share: float) -> None:
    newest = RecentAnswers(WINDOW)
    for number in range(200):
        newest.add(seen(False, number, number, number % 2))
    for number in range(100):
        newest.add(seen(True, 200 + number, f"large {number}", 0))
    assert not has_collapsed(newest, share)
    for number in range(minority):
        newest.add(seen(True, 400 + number, f"small {number}", 1))
    assert has_collapsed(newest, share)


@pytest.mark.parametrize(("true_share", "share"), [(0.01, KNOWN), (0.15, UNKNOWN)])
def test_ten_thousand_answers_of_a_healthy_lane_raise_no_alarm(true_share: float, share: float) -> None:
    assert false_alarm_bound(10_000, true_share, share) < 1e-3
    random, newest = Random(1), RecentAnswers(WINDOW)
    for number in range(10_000):
        newest.add(seen(random.random() < true_share, number, number))
        assert not has_collapsed(newest, share)


@pytest.mark.parametrize("runs", [60, pytest.param(150, marks=pytest.mark.slow)])
def test_the_bound_covers_the_alarms_that_happen(runs: int) -> None:
    """At a share at which alarms are frequent enough to be counted."""
    random, answers, true_share = Random(7), 100, 0.55
    alarms = 0
    for _ in range(runs):
        newest = RecentAnswers(WINDOW)
        for number in range(answers):
            newest.add(seen(random.random() < true_share, number, number))
            if has_collapsed(newest, UNKNOWN):
                alarms += 1
                break
    bound = false_alarm_bound(answers, true_share, UNKNOWN)
    assert 0 < alarms / runs <= bound <= 1


def test_each_cut_answer_is_compared_with_its_own_limit() -> None:
    """Answers with a small limit were usually cut before, those with a large one were not."""
    small, large, unknown = cut_signal(64), cut_signal(1024), cut_signal(300)
    usual = usual_shares({small: Counts(10, 400), large: Counts(400, 4), unknown: Counts(9, 0)})
    assert unknown not in usual, "the callers may want long answers"

    def collapses(*signals: str) -> bool:
        newest = RecentAnswers(WINDOW)
        for number, signal in enumerate(signals):
            newest.add(seen(True, number, number, signal=signal))
        return find_collapse(newest, usual, newest.slots) is not None

    assert collapses(*[large] * SPAN) and not collapses(*[small] * SPAN) and not collapses(*[unknown] * SPAN)
    assert collapses(*[large, unknown] * SPAN), "limits with an unknown past do not hide the others"
    assert collapses(*[large, small] * 10) and not collapses(*[large] * 3, *[small] * 17)


@given(limit=st.integers(0, 1 << 20))
def test_limits_of_similar_size_share_a_signal(limit: int) -> None:
    signal = cut_signal(limit)
    assert bool(signal) == (limit >= 64)
    if signal:
        least = int(signal.removeprefix("cut"))
        assert least <= limit < 2 * least


@given(bad=st.integers(0, 1000), most=shares)
def test_a_collapsed_past_does_not_make_degenerate_answers_usual(bad: int, most: float) -> None:
    assert usual_shares({DEGENERATE: Counts(10, bad)}, most)[DEGENERATE] <= most


def test_a_collapse_says_what_was_found() -> None:
    found = Collapse(DEGENERATE, Counts(3, 17), 0.3, "it is empty")
    assert str(found) == "17 of the last 20 judged answers are degenerate (it is empty); up to 30.0% is usual"


@given(bad=st.integers(0, SPAN), share=shares)
def test_a_collapse_is_over_only_when_it_would_not_be_found(bad: int, share: float) -> None:
    recent = Counts(SPAN - bad, bad)
    if is_over(recent, share):
        assert not is_collapse(bad, (max(share, UNKNOWN),) * SPAN)
    assert not is_over(Counts(SPAN - 1, 0), share)


@given(answers=st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.integers(0, 3)), max_size=15))
def test_routers_that_share_answers_see_all_bad_ones(answers: list[tuple[int, bool, int]]) -> None:
    """Two routers judge in turn; each gets what both share, at once and again."""
    routers, shared, now = (RecentAnswers(WINDOW), RecentAnswers(WINDOW)), list[SeenAnswer](), 0
    for number, (who, bad, later) in enumerate(answers):
        now += later
        answer = seen(bad, now, number)
        if routers[who].add(answer):
            shared.append(answer)
        for each in routers:
            for given_answer in shared:
                each.put(given_answer, now)
    num_bad = sum(bad for _, bad, _ in answers)
    assert all(count_answers(each.span()).bad == num_bad for each in routers)
    assert all(each.is_clear != bool(num_bad) for each in routers)
    for number in range(SPAN):
        routers[0].add(seen(False, now + 1, f"after {number}"))
    assert routers[0].is_clear, "a whole span of good answers clears the lane"


@settings(max_examples=30, deadline=None)
@given(every=st.integers(1, 40), most=st.integers(1, 300), seconds=st.integers(0, 2))
def test_few_answers_are_shared(every: int, most: int, seconds: int) -> None:
    """Every so many answers, one is bad."""
    newest, shared = RecentAnswers(WINDOW), 0
    for number in range(most):
        shared += newest.add(seen(number % every == every - 1, number * seconds, number))
    assert shared <= SPAN * (1 + most * seconds // 60)
    assert bool(shared) == (most >= every)


@given(ahead=st.integers(6, 10**6), bad=st.booleans())
def test_a_router_whose_clock_is_ahead_hides_no_answers(ahead: int, bad: bool) -> None:
    newest = RecentAnswers(WINDOW)
    for number in range(SPAN):
        newest.add(seen(bad, 100, number))
        newest.put(seen(not bad, 100 + ahead, f"ahead {number}"), 100)
    assert {each.bad for each in newest.span()} == {bad}


@settings(max_examples=30, deadline=None)
@given(answers=st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 30), st.integers(0, 30)), max_size=300))
def test_memory_is_bounded_and_the_span_is_made_of_the_newest(answers: list[tuple[int, int, int]]) -> None:
    newest = RecentAnswers(WINDOW)
    for at, prompt, tenant in answers:
        newest.put(seen(True, at, prompt, tenant), 10**7)
    assert len(newest._newest) <= 5 * SPAN and len(newest.span()) == min(SPAN, len(newest._newest))
    prompts = [each.prompt for each in newest.span()]
    assert len(set(prompts)) == min(SPAN, len({each.prompt for each in newest._newest}))
