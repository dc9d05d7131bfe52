"""Exactly one lane serves; a lane that was not promoted never serves; every change has a reason."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from admission.budgets import Counts
from admission.floors import Floor, Floors
from admission.lanes import (
    BY_CONFIGURATION,
    BY_POLICY,
    AdapterRef,
    LaneError,
    LaneMove,
    LaneRecord,
    LaneState,
    SpecialistLanes,
    configure_lanes,
    lane_id,
)
from octet.config.ensemble import LanesConfig

RULES = LanesConfig(promote="manual", min_samples=50, margin=0.02, roll_back=True, worse=0.1)
AUTO = replace(RULES, promote="auto")
MODEL, OTHER_MODEL = "a" * 64, "b" * 64
START = 1_000_000.0


def pinned(floor: float | None) -> Floors:
    return {} if floor is None else {"": Floor(floor)}


def adapter(content: str, name: str = "") -> AdapterRef:
    name = name or content
    return AdapterRef(name, f"{name}@{content}", content, f"/adapters/{name}")


def first(*adapters: AdapterRef) -> SpecialistLanes:
    return configure_lanes(None, "debug", adapters, MODEL, START)[0]


def loaded(book: SpecialistLanes, content: str = "new") -> SpecialistLanes:
    return book.load([adapter(content)], "ada", "a refresh", START + 1)[0]


def promoted(book: SpecialistLanes, content: str = "new") -> SpecialistLanes:
    return loaded(book, content).promote(None, "ada", "looks good", START + 2)[0]


def trusted(book: SpecialistLanes) -> SpecialistLanes:
    """Return the lanes as if the serving lane had already proved its pass rate."""
    lanes = tuple(replace(lane, fresh=False) if lane.status == "serving" else lane for lane in book.lanes)
    return replace(book, lanes=lanes)


def statuses(book: SpecialistLanes) -> dict[int, LaneState]:
    return {lane.number: lane.status for lane in book.lanes}


counted = st.one_of(
    st.builds(Counts, st.integers(0, 80), st.integers(0, 80)),
    st.builds(Counts, st.just(0), st.integers(0, 80)),
    st.builds(Counts, st.integers(0, 80), st.just(0)),
)
contents = st.sampled_from(["red", "green", "blue", "grey"])


class LanesMachine(RuleBasedStateMachine):
    """Operators and the policy change lanes in any order, with restarts and new configurations in between."""

    @initialize(contents=st.lists(contents, max_size=2, unique=True))
    def a_start(self, contents: list[str]) -> None:
        self.now = START
        self.revision = MODEL
        self.configured = [adapter(each) for each in contents]
        self.book, move = configure_lanes(None, "debug", self.configured, self.revision, self.now)
        assert move is not None
        self.may_serve = {self.book.serving.number}
        self.gone: set[int] = set()
        self.num_given = 1
        assert not self.book.serving.fresh

    def take(self, result: tuple[SpecialistLanes, LaneMove | None]) -> None:
        before, (self.book, move) = self.book, result
        known = {lane.number: lane for lane in before.lanes}
        for lane in self.book.lanes:
            former = known.get(lane.number)
            if former is None:
                assert lane.number > self.num_given, "a lane number was used twice"
                self.num_given = lane.number
            if former is None or former.status != lane.status:
                assert move is not None
                assert lane.by == move.by != ""
                assert lane.why != ""
                assert lane.since == self.now
                assert former is None or former.status in ("serving", "candidate", "previous")
            else:
                assert replace(lane, fresh=former.fresh) == former
        if move is None:
            assert self.book == before
        elif move.what in ("begin", "promote"):
            self.may_serve.add(move.lane)
        elif move.what == "roll_back":
            assert self.book.lane(move.lane).status == "rolled_back"
            self.gone.add(move.lane)

    @rule(seconds=st.floats(0.1, 100))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(contents=st.lists(contents, max_size=2, unique=True))
    def load(self, contents: list[str]) -> None:
        adapters = [adapter(each) for each in contents]
        known = {self.book.serving.digests, self.book.candidate and self.book.candidate.digests}
        if tuple(contents) in known:
            with pytest.raises(LaneError, match="already"):
                self.book.load(adapters, "ada", "again", self.now)
            return
        former = self.book.candidate
        self.take(self.book.load(adapters, "ada", "a refresh", self.now))
        assert self.book.candidate is not None
        assert self.book.candidate.fresh
        assert self.book.candidate.digests == tuple(contents)
        assert former is None or self.book.lane(former.number).status == "retired"

    @rule(by_name=st.booleans())
    def promote(self, by_name: bool) -> None:
        candidate, serving = self.book.candidate, self.book.serving
        if candidate is None:
            with pytest.raises(LaneError, match="no candidate"):
                self.book.promote(None, "bob", "now", self.now)
            return
        self.take(self.book.promote(candidate.name if by_name else None, "bob", "now", self.now))
        assert self.book.serving.number == candidate.number
        assert self.book.serving.fresh
        assert self.book.previous is not None
        assert self.book.previous.number == serving.number

    @rule()
    def roll_back(self) -> None:
        candidate, serving, previous = self.book.candidate, self.book.serving, self.book.previous
        if candidate is None and previous is None:
            with pytest.raises(LaneError, match="to return to"):
                self.book.roll_back("eve", "bad", self.now)
            return
        self.take(self.book.roll_back("eve", "bad", self.now))
        if candidate is not None:
            assert self.book.serving == serving
        else:
            assert previous is not None
            assert self.book.serving.number == previous.number

    @rule(
        counts=st.dictionaries(st.integers(0, 2), counted),
        rules=st.builds(
            LanesConfig,
            promote=st.sampled_from(["auto", "manual"]),
            min_samples=st.integers(1, 60),
            margin=st.floats(0, 0.2),
            roll_back=st.booleans(),
            worse=st.floats(0, 0.3),
        ),
        floor=st.none() | st.floats(0, 1),
    )
    def policy(self, counts: dict[int, Counts], rules: LanesConfig, floor: float | None) -> None:
        held = [lane.number for lane in self.book.lanes if lane.status in ("serving", "candidate", "previous")]
        by_lane = {held[i]: each for i, each in counts.items() if i < len(held)}
        before = self.book
        self.take(self.book.judge(by_lane, self.now, rules, pinned(floor)))
        shown = by_lane.get(before.candidate.number, Counts()) if before.candidate else Counts()
        if self.book.candidate is None and before.candidate is not None:
            went = self.book.lane(before.candidate.number)
            if went.status == "serving":
                assert rules.promote == "auto"
                assert shown.total >= rules.min_samples
                assert floor is None or shown.good >= floor * shown.total
                assert not before.serving.fresh
            else:
                assert rules.roll_back
                assert shown.total >= 10

    @rule(
        change=st.sampled_from(["nothing", "model", "adapters"]), contents=st.lists(contents, max_size=2, unique=True)
    )
    def restart(self, change: str, contents: list[str]) -> None:
        self.book = SpecialistLanes.from_body(json.loads(json.dumps(self.book.to_body())))
        before = self.book
        if change == "model":
            self.revision = OTHER_MODEL if self.revision == MODEL else MODEL
        elif change == "adapters":
            self.configured = [adapter(each) for each in contents]
        changed = before.origin != replace(
            before.origin, digests=tuple(each.digest for each in self.configured), revision=self.revision
        )
        result = configure_lanes(self.book, "debug", self.configured, self.revision, self.now)
        self.take(result)
        assert (result[1] is not None) == changed
        if changed:
            assert self.book.serving.number > before.serving.number
            assert self.book.serving.fresh
            assert self.book.serving.by == BY_CONFIGURATION

    @invariant()
    def one_serves_and_at_most_one_waits(self) -> None:
        if not hasattr(self, "book"):
            return
        by_status = list(statuses(self.book).values())
        assert by_status.count("serving") == 1
        assert by_status.count("candidate") <= 1
        assert by_status.count("previous") <= 1
        assert set(by_status) <= set(get_args(LaneState))
        assert self.book.serving.number in self.may_serve - self.gone
        assert list(statuses(self.book)) == sorted(statuses(self.book))
        assert self.book.next_number > self.num_given
        assert len(self.book.lanes) <= 20

    @invariant()
    def all_that_may_serve_is_held_and_runs_on_the_model_there_is(self) -> None:
        if not hasattr(self, "book"):
            return
        held = [lane for lane in (self.book.serving, self.book.candidate, self.book.previous) if lane]
        assert {lane.revision for lane in held} == {self.revision}
        assert set(self.book.wanted()) == {each for lane in held for each in lane.adapters}
        assert len({each.load_name for each in self.book.wanted()}) == len(self.book.wanted())
        assert set(self.book.evidence_from()) == {lane.number for lane in held}
        assert len({lane_id("debug", lane) for lane in self.book.lanes}) == len(self.book.lanes)
        assert SpecialistLanes.from_body(json.loads(json.dumps(self.book.to_body()))) == self.book


TestBooks = LanesMachine.TestCase
TestBooks.settings = settings(max_examples=60)


def test_a_refresh_is_loaded_promoted_and_trusted() -> None:
    book = first(adapter("old"))
    book = loaded(book)
    assert statuses(book) == {1: "serving", 2: "candidate"}
    assert [each.name for each in book.wanted()] == ["old", "new"]
    book, move = book.promote("new", "ada", "looks good", START + 2)
    assert statuses(book) == {1: "previous", 2: "serving"}
    assert (move.what, move.before, move.after) == ("promote", "lane 1 (old)", "lane 2 (new) serving")
    book, move = book.roll_back("bob", "it does not compile", START + 3)
    assert statuses(book) == {1: "serving", 2: "rolled_back"}
    assert (move.by, move.why, move.lane) == ("bob", "it does not compile", 2)
    assert "it does not compile" in book.serving.why
    assert not book.serving.fresh, "the lane was trusted before"
    assert [each.name for each in book.wanted()] == ["old"]


def test_a_promotion_retires_the_lane_before_the_last() -> None:
    book = promoted(promoted(first(), "red"), "green")
    assert statuses(book) == {1: "retired", 2: "previous", 3: "serving"}


def test_content_identifies_a_lane_and_not_its_name() -> None:
    book = first(adapter("old", "my-lora"))
    with pytest.raises(LaneError, match="already has this content; its status is serving"):
        book.load([adapter("old", "renamed")], "ada", "again", START)
    book, _ = book.load([adapter("new", "my-lora")], "ada", "a refresh", START)
    with pytest.raises(LaneError, match="already has this content; its status is candidate"):
        book.load([adapter("new", "my-lora")], "ada", "again", START)
    clash = AdapterRef("other", "my-lora@new", "newest", "/adapters/other")
    with pytest.raises(LaneError, match="different adapter of the same name"):
        book.load([clash], "ada", "again", START)
    with pytest.raises(LaneError, match="'my-lora', not 'other'"):
        book.promote("other", "ada", "now", START)


def test_the_same_adapters_on_another_model_are_another_lane() -> None:
    book, move = first(adapter("old")).load([adapter("old")], "lanes", "another model", START, revision=OTHER_MODEL)
    assert statuses(book) == {1: "serving", 2: "candidate"}
    assert (book.lane(2).revision, move.before) == (OTHER_MODEL, "")
    with pytest.raises(LaneError, match="already has this content; its status is candidate"):
        book.load([adapter("old")], "lanes", "again", START, revision=OTHER_MODEL)
    book, move = book.load([adapter("new")], "ada", "a refresh", START)
    assert (book.lane(3).revision, move.before) == (MODEL, "lane 2 (old) candidate")


def test_another_model_leaves_no_lane_to_roll_back_to() -> None:
    book = loaded(promoted(first()), "newer")
    book, move = configure_lanes(book, "debug", (), OTHER_MODEL, START + 9)
    assert statuses(book) == {1: "retired", 2: "retired", 3: "retired", 4: "serving"}
    assert move is not None
    assert (move.what, move.by, move.why) == ("begin", BY_CONFIGURATION, "another model")
    with pytest.raises(LaneError, match="to return to"):
        book.roll_back("ada", "bad", START + 10)


def test_other_configured_adapters_keep_the_previous_lane_and_the_candidate() -> None:
    book = loaded(promoted(first()), "newer")
    book, _ = configure_lanes(book, "debug", [adapter("configured")], MODEL, START + 9)
    assert statuses(book) == {1: "retired", 2: "previous", 3: "candidate", 4: "serving"}


def test_a_name_with_new_content_drops_its_old_lane() -> None:
    fixed = AdapterRef("style", "style", "before", "/style")
    book, _ = configure_lanes(first(fixed), "debug", [replace(fixed, digest="after")], MODEL, START + 9)
    assert statuses(book) == {1: "retired", 2: "serving"}


def test_a_promotion_survives_a_restart() -> None:
    book = promoted(first(adapter("configured")))
    assert configure_lanes(book, "debug", [adapter("configured")], MODEL, START + 9) == (book, None)


def judged(
    book: SpecialistLanes, counts: Mapping[int, Counts], rules: LanesConfig, floor: float | None
) -> tuple[str, SpecialistLanes]:
    after, move = book.judge(counts, START + 5, rules, pinned(floor))
    assert move is None or (move.by, move.at) == (BY_POLICY, START + 5)
    return ("" if move is None else move.what), after


ENOUGH_GOOD, ENOUGH_BAD = Counts(49, 1), Counts(30, 20)


@pytest.mark.parametrize(
    ("serving", "candidate", "floor", "what"),
    [
        (Counts(95, 5), Counts(48, 2), None, "promote"),
        (Counts(95, 5), Counts(47, 3), None, "promote"),
        (Counts(100, 0), Counts(48, 2), None, ""),
        (Counts(100, 0), Counts(49, 1), None, "promote"),
        (Counts(95, 5), Counts(49, 0), None, ""),
        (Counts(49, 0), Counts(50, 0), None, ""),
        (Counts(0, 49), Counts(50, 0), None, ""),
        (Counts(49, 0), Counts(40, 10), 0.8, "promote"),
        (Counts(10, 90), Counts(39, 11), 0.8, "roll_back"),
        (Counts(10, 90), Counts(40, 10), 0.8, "promote"),
        (Counts(), Counts(50, 0), None, ""),
        (Counts(), Counts(50, 0), 0.5, "promote"),
        (Counts(100, 0), Counts(89, 11), None, "roll_back"),
        (Counts(100, 0), Counts(90, 10), None, ""),
    ],
)
def test_policy_promotes_a_candidate_that_is_no_worse_and_drops_one_that_is_much_worse(
    serving: Counts, candidate: Counts, floor: float | None, what: str
) -> None:
    book = loaded(first())
    counts = {1: serving, 2: candidate}
    assert judged(book, counts, AUTO, floor)[0] == what
    assert judged(book, counts, RULES, floor)[0] == ("" if what == "promote" else what), (
        "without automatic promotion, only an operator promotes"
    )


@given(serving=counted, candidate=counted, floor=st.none() | st.floats(0, 1), better=st.integers(0, 80))
def test_a_better_candidate_fares_no_worse(
    serving: Counts, candidate: Counts, floor: float | None, better: int
) -> None:
    ranks = {"roll_back": 0, "": 1, "promote": 2}
    book = loaded(first())
    turned = min(better, candidate.bad)
    improved = Counts(candidate.good + turned, candidate.bad - turned)
    before, after = (judged(book, {1: serving, 2: each}, AUTO, floor)[0] for each in (candidate, improved))
    assert ranks[before] <= ranks[after]


@pytest.mark.parametrize("total", range(0, 50))
def test_failures_alone_drop_a_candidate_but_never_before_the_tenth(total: int) -> None:
    for book in (loaded(first()), promoted(first())):
        what, after = judged(book, {2: Counts(0, total)}, RULES, 0.8)
        assert what == ("roll_back" if total >= 10 else "")
        assert after.serving.number == (1 if total >= 10 or book.candidate else 2)
        assert judged(book, {2: Counts(0, total)}, replace(RULES, roll_back=False), 0.8)[0] == ""
        assert judged(book, {2: Counts(0, total)}, RULES, None)[0] == "", (
            "without a floor there is no baseline to compare with"
        )


@pytest.mark.parametrize(
    ("good", "bad", "goes"), [(8, 4, False), (5, 7, False), (2, 10, True), (30, 19, False), (27, 22, True)]
)
def test_before_all_samples_are_there_a_breach_must_be_beyond_doubt(good: int, bad: int, goes: bool) -> None:
    assert (judged(loaded(first()), {2: Counts(good, bad)}, RULES, 0.8)[0] == "roll_back") == goes


@given(good=st.integers(0, 49), total=st.integers(10, 49), bar=st.floats(0.05, 0.95))
def test_a_lane_at_its_floor_hardly_ever_goes_early(good: int, total: int, bar: float) -> None:
    """If the true pass rate equals the floor, a result poor enough for a rollback has a probability below 0.1 %."""
    good = min(good, total)
    if judged(loaded(first()), {2: Counts(good, total - good)}, RULES, bar)[0] == "roll_back":
        assert binomial_tail(good, total, bar) < 0.001


def test_a_single_failure_is_beyond_doubt_where_there_may_be_none() -> None:
    assert judged(loaded(first()), {2: Counts(10, 0)}, RULES, 1.0)[0] == ""
    what, book = judged(loaded(first()), {2: Counts(9, 1)}, RULES, 1.0)
    assert what == "roll_back"
    assert statuses(book) == {1: "serving", 2: "rolled_back"}


def binomial_tail(good: int, total: int, chance: float) -> float:
    """Return the probability of at most `good` passes in `total` trials, each of which passes with probability
    `chance`."""
    probability, tail = (1 - chance) ** total, 0.0
    for i in range(good + 1):
        tail += probability
        probability *= (total - i) / (i + 1) * chance / (1 - chance)
    return tail


@pytest.mark.parametrize(
    ("previous", "serving", "floor", "what"),
    [
        (Counts(95, 5), ENOUGH_GOOD, 0.8, "trust"),
        (Counts(95, 5), Counts(48, 1), 0.8, ""),
        (Counts(95, 5), ENOUGH_BAD, 0.8, "roll_back"),
        (Counts(95, 5), ENOUGH_BAD, None, "roll_back"),
        (Counts(60, 40), ENOUGH_BAD, None, "trust"),
        (Counts(40, 9), ENOUGH_BAD, None, "trust"),
        (Counts(95, 5), Counts(40, 10), 0.8, "roll_back"),
        (Counts(90, 10), Counts(40, 10), 0.8, "trust"),
    ],
)
def test_a_fresh_serving_lane_is_trusted_or_rolled_back(
    previous: Counts, serving: Counts, floor: float | None, what: str
) -> None:
    found, book = judged(promoted(first()), {1: previous, 2: serving}, RULES, floor)
    assert found == what
    assert book.serving.number == (1 if what == "roll_back" else 2)
    assert book.serving.fresh == (what == "")
    if what == "trust":
        assert judged(book, {1: previous, 2: ENOUGH_BAD}, RULES, floor)[0] == "", (
            "a trusted lane is left to the breaker"
        )


def test_a_fresh_lane_below_the_floor_with_nothing_before_it_stays_and_is_not_trusted() -> None:
    book, _ = configure_lanes(first(), "debug", (), OTHER_MODEL, START)
    assert judged(book, {2: Counts(0, 100)}, RULES, 0.8)[0] == ""
    assert judged(book, {2: Counts(100, 0)}, RULES, 0.8)[0] == "trust"


def test_a_roll_back_names_its_reference() -> None:
    book = promoted(first())
    bad, good, none = Counts(0, 60), Counts(60, 0), "0 of 60 passed (0.0%)"
    for counts, floor, said in (
        ({2: bad}, 0.9, "0 of 60 passed (0.0%), below the floor of 90.0%"),
        (
            {1: good, 2: bad},
            0.8,
            f"{none}, below 90.0%, which is lane 1 (bare model)'s 100.0% less 10.0%",
        ),
        ({1: good, 2: bad}, 0.95, "0 of 60 passed (0.0%), below the floor of 95.0%"),
        ({2: Counts(0, 10)}, 0.9, "0 of 10 passed (0.0%), beyond doubt below the floor of 90.0%"),
    ):
        _, move = book.judge(counts, START + 3, RULES, pinned(floor))
        assert move is not None and (move.what, move.why) == ("roll_back", said)


def test_a_lane_that_is_given_up_leaves_the_candidate_alone() -> None:
    assert first().give_up("lost", START + 3) is None
    book = loaded(promoted(first()), "newest")
    moved = book.give_up("lost", START + 3)
    assert moved is not None
    assert statuses(moved[0]) == {1: "serving", 2: "rolled_back", 3: "candidate"}
    assert (moved[1].what, moved[1].by, moved[1].why) == ("roll_back", BY_POLICY, "lost")


def test_a_fresh_lane_that_goes_leaves_the_candidate_alone() -> None:
    book = loaded(promoted(first()), "newer")
    what, book = judged(book, {2: Counts(0, 12)}, RULES, 0.8)
    assert what == "roll_back"
    assert statuses(book) == {1: "serving", 2: "rolled_back", 3: "candidate"}


def test_nothing_is_promoted_by_policy_over_a_lane_that_is_not_trusted_yet() -> None:
    """The untrusted lane would become the lane to roll back to."""
    book = loaded(promoted(first()), "newer")
    assert judged(book, {3: Counts(100, 0)}, AUTO, 0.8)[0] == ""
    assert judged(trusted(book), {3: Counts(100, 0)}, AUTO, 0.8)[0] == "promote"


def test_few_samples_of_a_small_minimum_neither_trust_nor_roll_back_a_bad_lane() -> None:
    rules = replace(AUTO, min_samples=3)
    for total in range(3, 10):
        assert judged(promoted(first()), {2: Counts(0, total)}, rules, 0.8)[0] == ""
        assert judged(loaded(first()), {2: Counts(0, total)}, rules, 0.8)[0] == ""
    assert judged(promoted(first()), {2: Counts(3, 0)}, rules, 0.8)[0] == "trust"


def test_evidence_of_a_fresh_lane_that_serves_begins_when_it_does() -> None:
    book = loaded(promoted(first()), "newer")
    assert book.evidence_from() == {1: 0.0, 2: START + 2, 3: 0.0}
    assert trusted(book).evidence_from() == {1: 0.0, 2: 0.0, 3: 0.0}


def test_history_is_bounded_and_numbers_go_on() -> None:
    book = first()
    for i in range(100):
        book, _ = book.load([adapter(f"content {i}")], "ada", "a refresh", START + i)
    assert len(book.lanes) == 20
    assert (book.serving.number, book.candidate and book.candidate.number) == (1, 101)
    assert [lane.number for lane in book.lanes] == [1, *range(83, 102)]
    with pytest.raises(KeyError):
        book.lane(50)


def test_an_id_names_number_and_content() -> None:
    lane = first(adapter("red")).serving
    same, number, digest = lane_id("debug", lane).split("|")
    assert (same, number, len(digest)) == ("debug", "1", 12)
    others: list[LaneRecord] = [
        replace(lane, number=2),
        replace(lane, revision=OTHER_MODEL),
        replace(lane, adapters=(adapter("green"),)),
        replace(lane, adapters=()),
    ]
    assert len({lane_id("debug", each) for each in (lane, *others)}) == 5
    assert lane_id("debug", replace(lane, status="previous", fresh=True, since=3.0)) == lane_id("debug", lane)


@pytest.mark.parametrize(
    ("book", "number", "counts", "rules", "text"),
    [
        (first(), 1, {}, RULES, "serving"),
        (promoted(first()), 1, {}, RULES, "kept for rollback"),
        (promoted(first()), 2, {2: Counts(3, 1)}, RULES, "fresh: 4 of 50 samples, then trusted"),
        (loaded(first()), 2, {2: Counts(9, 1)}, RULES, "shadows: 10 of 50 samples; promote it by hand"),
        (loaded(first()), 2, {2: Counts(9, 1)}, AUTO, "shadows: 10 of 50 samples"),
        (loaded(first()), 2, {2: Counts(50, 0)}, AUTO, "shadows: about to be promoted"),
        (loaded(first()), 2, {2: Counts(30, 30)}, AUTO, "shadows: 30 of 60 passed (50.0%), below the floor of 80.0%"),
        (loaded(loaded(first()), "newer"), 2, {}, RULES, "retired: replaced: a refresh"),
    ],
)
def test_the_outlook_says_what_comes_next(
    book: SpecialistLanes, number: int, counts: Mapping[int, Counts], rules: LanesConfig, text: str
) -> None:
    assert book.outlook(number, counts, rules, pinned(0.8)) == text


def test_the_outlook_names_what_stands_in_the_way() -> None:
    book = loaded(first())
    assert "is better: 100 of 100" in book.outlook(2, {1: Counts(100, 0), 2: Counts(45, 5)}, AUTO, pinned(0.8))
    assert "no reference to compare with" in book.outlook(2, {2: Counts(45, 5)}, AUTO, pinned(None))
    fresh = loaded(promoted(first()), "newer")
    assert "until lane 2 (new) is trusted" in fresh.outlook(3, {3: Counts(50, 0)}, AUTO, pinned(0.8))


def body_of(**change: object) -> dict[str, object]:
    return json.loads(json.dumps(loaded(first(adapter("red"))).to_body())) | change  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "body",
    [
        {},
        body_of(lanes=[]),
        body_of(next_number=2),
        body_of(lanes=[{**first().to_body()["lanes"][0], "status": "king"}]),
        body_of(lanes=[{**first().to_body()["lanes"][0], "number": 9}]),
        body_of(lanes=[{"number": 1}]),
        body_of(origin=None),
    ],
)
def test_an_invalid_lane_document_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"lane"):
        SpecialistLanes.from_body(body)


def test_the_default_configuration() -> None:
    assert LanesConfig() == RULES
