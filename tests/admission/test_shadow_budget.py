"""No intent gets more shadows than it earned, none loses its share to another, and slots are shared fairly."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from admission.budgets import ShadowBudgets, ShadowGrant

INTENTS = ("chat", "code", "review")
intents, groups = st.sampled_from(INTENTS), st.sampled_from((*INTENTS, "demoted/stl", "fresh_lane/stl"))


class ShadowsOfIntents(RuleBasedStateMachine):
    @initialize(share=st.sampled_from((0.0, 0.1, 1 / 3, 1.0)), most=st.integers(0, 5))
    def begins(self, share: float, most: int) -> None:
        self.budgets = ShadowBudgets(share, most, INTENTS)
        self.share, self.most = share, most
        self.answered, self.paid = Counter[str](), Counter[str]()
        self.from_reserve = Counter[str]()
        self.inflight = Counter[str]()

    @rule(intent=intents, number=st.integers(1, 30))
    def answers(self, intent: str, number: int) -> None:
        for _ in range(number):
            self.budgets.earn(intent)
        self.answered[intent] += number

    @rule(group=groups, number=st.integers(1, 6))
    def orders(self, group: str, number: int) -> None:
        for _ in range(number):
            intent = group if group in INTENTS else None
            own = 0.0 if intent is None else self.budgets.credit(intent)
            others = {each: self.budgets.credit(each) for each in INTENTS if each != intent}
            grant = self.budgets.plan(group, intent)
            if isinstance(grant, ShadowGrant):
                self.take(grant)
                if intent is not None:
                    self.paid[intent] += 1
                    self.from_reserve[intent] += grant.payer == ""
                    assert grant.payer == (intent if own >= 1 else ""), "an intent must use its own credit first"
            elif grant == "no_budget":
                assert intent is not None and own < 1 and self.budgets.credit("") < 1
            else:
                largest = max(self.inflight.values(), default=0)
                assert sum(self.inflight.values()) == self.most, "a free slot must be used"
                assert largest <= self.inflight[group] + 1, "a group must get a slot from one that has two more"
            assert others == {each: self.budgets.credit(each) for each in others}, "no intent may pay for another"

    def take(self, grant: ShadowGrant) -> None:
        if grant.displaced:
            assert self.inflight[grant.displaced] > self.inflight[grant.group] + 1
            self.budgets.done(grant.displaced)
            self.inflight[grant.displaced] -= 1
        self.budgets.take(grant)
        self.inflight[grant.group] += 1

    @precondition(lambda self: bool(+self.inflight))
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(+self.inflight)))
        self.budgets.done(group)
        self.inflight[group] -= 1

    @invariant()
    def shadows_are_bounded(self) -> None:
        slack, started = 1e-6, int(self.share > 0)
        for intent in INTENTS:
            own = self.paid[intent] - self.from_reserve[intent]
            assert own <= started + (self.share + slack) * self.answered[intent]
            assert 0 <= self.budgets.credit(intent) <= max(1, self.most)
        total = sum(self.paid.values())
        assert total <= started * len(INTENTS) + (self.share + slack) * sum(self.answered.values())
        assert 0 <= self.budgets.credit("") <= max(1, self.most)
        assert self.budgets.num_inflight == sum(self.inflight.values()) <= self.most
        assert self.budgets.inflight == +self.inflight


TestShadowsOfIntents: Any = ShadowsOfIntents.TestCase
TestShadowsOfIntents.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def try_send(budgets: ShadowBudgets, intent: str) -> bool:
    """Send one shadow and end it at once, if it may be sent."""
    grant = budgets.plan(intent, intent)
    if not isinstance(grant, ShadowGrant):
        return False
    budgets.take(grant)
    budgets.done(intent)
    return True


@pytest.mark.parametrize("share", [0.1, 0.05, 1 / 3, 0.7, 1.0])
def test_earned_credit_can_be_spent(share: float) -> None:
    budgets = ShadowBudgets(share, 8, INTENTS)
    num_sent = 0
    for _ in range(3000):
        budgets.earn("chat")
        num_sent += try_send(budgets, "chat")
    assert num_sent == pytest.approx(1 + 3000 * share, abs=1)


def test_a_busy_intent_does_not_starve_a_rare_one() -> None:
    """Every request of the busy intent wants a shadow. The rare intent still gets one for each ten of its answers."""
    budgets = ShadowBudgets(0.1, 8, INTENTS)
    sent = Counter[str]()
    for number in range(10_000):
        intent = "review" if number % 100 == 0 else "chat"
        budgets.earn(intent)
        sent[intent] += try_send(budgets, intent)
    assert sent["review"] == pytest.approx(1 + 100 * 0.1, abs=1)
    assert sent["chat"] == pytest.approx(1 + 9900 * 0.1, abs=1)


def test_credit_that_an_intent_cannot_save_pays_for_others() -> None:
    budgets = ShadowBudgets(1.0, 3, INTENTS)
    for _ in range(100):
        budgets.earn("chat")
    assert (budgets.credit("chat"), budgets.credit("")) == (3, 3)
    assert [try_send(budgets, "code") for _ in range(5)] == [True] * 4 + [False]
    assert budgets.credit("chat") == 3


def test_a_hung_group_gives_slots_back_until_all_have_nearly_as_many() -> None:
    budgets = ShadowBudgets(0.0, 4, INTENTS)
    for _ in range(4):
        grant = budgets.plan("demoted/stl", None)
        assert isinstance(grant, ShadowGrant)
        budgets.take(grant)
    for left in (3, 2):
        grant = budgets.plan("fresh_lane/algo", None)
        assert isinstance(grant, ShadowGrant) and grant.displaced == "demoted/stl"
        budgets.done(grant.displaced)
        budgets.take(grant)
        assert budgets.inflight["demoted/stl"] == left
    assert budgets.plan("fresh_lane/algo", None) == "no_slot"


def test_new_rules_apply_at_once_and_shadows_in_flight_end_normally() -> None:
    budgets = ShadowBudgets(1.0, 4, INTENTS)
    for _ in range(3):
        budgets.earn("chat")
    for _ in range(2):
        grant = budgets.plan("chat", "chat")
        assert isinstance(grant, ShadowGrant)
        budgets.take(grant)
    budgets.retune(1.0, 1, ("chat", "new"))
    assert [budgets.credit(each) for each in ("chat", "new", "code", "")] == [1, 1, 0, 0]
    assert budgets.plan("new", "new") == "no_slot"
    budgets.done("chat")
    budgets.done("chat")
    assert try_send(budgets, "new") and not try_send(budgets, "code")
    budgets.earn("code")  # a request that began before the intent was removed
    assert budgets.credit("") == 1
    budgets.retune(0.0, 4, INTENTS)
    assert not any(try_send(budgets, intent) for intent in INTENTS)


def test_an_end_without_a_start_is_an_error() -> None:
    with pytest.raises(ValueError, match="no shadow of chat"):
        ShadowBudgets(0.1, 1, INTENTS).done("chat")


@pytest.mark.parametrize(("share", "most"), [(-0.1, 1), (1.1, 1), (float("nan"), 1), (0.5, -1)])
def test_invalid_figures_are_refused(share: float, most: int) -> None:
    with pytest.raises(ValueError):
        ShadowBudgets(share, most, INTENTS)
