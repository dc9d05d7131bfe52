"""Two deaths with the same content, one of them as a suspect, and no third, whoever else was there."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from octet.clock import ManualClock
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from octet.v1 import specialist_pb2 as wire
from router.dispatch import quarantine as module
from router.dispatch.quarantine import Quarantine
from router.reception.content import content_digest
from router.replicas.link import SOON_SECONDS, Link
from tests.router.decisions.asking import received as ask
from tests.router.replicas.builders import replica, report

SECONDS = 100.0
CONTENTS = (b"a", b"b", b"c")


def content(digest: bytes) -> Callable[[], bytes]:
    return lambda: digest


def quarantine(clock: ManualClock | None = None, **limits: int) -> Quarantine:
    return Quarantine(clock or ManualClock(), lambda: SECONDS, **limits)


def is_refused(made: Quarantine, digest: bytes) -> bool:
    try:
        made.check(content(digest))
    except Refusal as refusal:
        assert refusal.error.reason == error_pb2.ERROR_REASON_QUARANTINED
        assert not refusal.error.HasField("retry_after_ms"), "nobody is told to bring it again"
        return True
    return False


class Deaths(RuleBasedStateMachine):
    """Against a plain list of who died of what, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.made = quarantine(self.clock)
        self.links: list[Link] = []
        self.deaths: dict[bytes, list[tuple[Link, float, bool]]] = {each: [] for each in CONTENTS}

    @rule(
        there=st.dictionaries(st.sampled_from(CONTENTS), st.booleans()),
        gone=st.dictionaries(st.sampled_from(CONTENTS), st.booleans()),
        before=st.floats(0, 2 * SOON_SECONDS),
        drained=st.booleans(),
    )
    def a_connection_breaks(
        self, there: dict[bytes, bool], gone: dict[bytes, bool], before: float, drained: bool
    ) -> None:
        """Some were there, as suspects or not, and some had left so many seconds before."""
        link = Link()
        link.drained = drained
        self.links.append(link)
        for digest, tried in gone.items():
            self.made.left(content(digest), link, tried=tried)
        left = self.clock.now()
        self.clock.sleep(before)
        link.lose(self.clock.now())
        blamed = gone if self.clock.now() - left <= SOON_SECONDS else {}
        for digest, tried in there.items():
            self.made.died_with(content(digest), link, tried=tried)
            self.made.died_with(content(digest), link)
        for digest in {*there, *blamed} if not drained else ():
            tried = there.get(digest, False) or blamed.get(digest, False)
            self.deaths[digest].append((link, self.clock.now(), tried))

    @rule(digest=st.sampled_from(CONTENTS))
    def it_is_answered(self, digest: bytes) -> None:
        self.made.answered(content(digest))
        self.deaths[digest].clear()

    @rule(index=st.integers(0, 50))
    def the_same_process_is_heard_of_again(self, index: int) -> None:
        if self.links:
            self.links[index % len(self.links)].survived = True

    @rule(seconds=st.floats(0, SECONDS / 2))
    def time_passes(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    @invariant()
    def two_deaths_one_as_a_suspect_and_no_third(self) -> None:
        for digest, seen in self.deaths.items():
            if seen and seen[-1][1] <= self.clock.now() - SECONDS:
                seen.clear()
            tried = [tried for link, _, tried in seen if not link.survived]
            assert is_refused(self.made, digest) == (len(tried) >= 2 and any(tried))
            assert self.made.suspects(content(digest)) == (len(tried) > 0)


TestDeaths = Deaths.TestCase


def test_a_death_with_a_suspect_on_trial_is_that_ones_and_no_neighbours() -> None:
    async def story() -> None:
        made, first, second = quarantine(), Link(), Link()
        for digest in CONTENTS:
            made.died_with(content(digest), first)
        trial = await made.trial(content(b"a"), second)
        assert trial is not None and second.on_trial == [b"a"]
        made.died_with(content(b"b"), second)
        made.died_with(content(b"a"), second)
        trial.lost()
        made.died_with(content(b"c"), second)
        made.died_with(content(b"new"), second)
        assert [digest for digest in (*CONTENTS, b"new") if is_refused(made, digest)] == [b"a"]
        assert not made.suspects(content(b"new"))

    asyncio.run(story())


def test_suspects_take_turns_until_their_first_token() -> None:
    async def story() -> None:
        made, link = quarantine(), Link()
        for digest in CONTENTS:
            made.died_with(content(digest), Link())
        first = await made.trial(content(b"a"), link)
        second = asyncio.create_task(made.trial(content(b"b"), link))
        await asyncio.sleep(0.01)
        assert first is not None and not second.done()
        assert await made.trial(content(b"nobody"), link) is None, "who is no suspect waits for nobody"
        first.over()
        first.over()
        trial = await second
        assert trial is not None and link.on_trial == [b"b"]
        trial.over()
        assert not link.on_trial and not link.turn.locked()

    asyncio.run(story())


def test_a_suspect_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.02)

    async def story() -> None:
        made, link = quarantine(), Link()
        for digest in CONTENTS:
            made.died_with(content(digest), Link())
        first, second = [await made.trial(content(digest), link) for digest in (b"a", b"b")]
        assert first is not None and second is not None and link.on_trial == [b"a", b"b"]
        second.over()
        assert link.on_trial == [b"a"] and link.turn.locked()
        first.over()
        assert not link.on_trial and not link.turn.locked()

    asyncio.run(story())


def test_who_waits_for_its_turn_is_refused_when_its_copy_has_killed_the_second() -> None:
    async def story() -> None:
        made, link = quarantine(), Link()
        made.died_with(content(b"a"), Link())
        trial = await made.trial(content(b"a"), link)
        copy = asyncio.create_task(made.trial(content(b"a"), link))
        await asyncio.sleep(0.01)
        assert trial is not None
        made.died_with(content(b"a"), link)
        trial.lost()
        with pytest.raises(Refusal, match="2 replicas died"):
            await copy
        assert not link.turn.locked()

    asyncio.run(story())


def test_it_remembers_so_many_and_the_refused_longest() -> None:
    clock = ManualClock()
    made = quarantine(clock, most=10)
    for link in (Link(), Link()):
        made.died_with(content(b"poison"), link, tried=True)
    for number in range(100):
        made.died_with(content(b"%d" % number), Link())
        assert len(made) <= 10
    assert is_refused(made, b"poison") and made.suspects(content(b"99")) and not made.suspects(content(b"1"))
    clock.sleep(SECONDS)
    assert not is_refused(made, b"poison") and len(made) == 0


def test_what_many_ask_is_tried_before_it_is_refused() -> None:
    async def story() -> None:
        made, others = quarantine(), [Link() for _ in range(5)]
        for link in others:
            made.died_with(content(b"popular"), link)
        assert not is_refused(made, b"popular"), "five died at once, of whatever it was"
        link = Link()
        trial = await made.trial(content(b"popular"), link)
        assert trial is not None
        trial.over()
        made.died_with(content(b"popular"), link, tried=True)
        assert is_refused(made, b"popular"), "also when it kills after its first token"

    asyncio.run(story())


def test_a_link_that_stands_is_nobodys_death() -> None:
    made, link = quarantine(), Link()
    made.left(content(b"a"), link)
    assert not link.is_death and not made.suspects(content(b"a")) and len(made) == 0
    link.lose(0.0)
    assert made.suspects(content(b"a"))


def test_so_many_that_left_are_remembered() -> None:
    made, link = quarantine(), Link()
    for number in range(1000):
        made.left(content(b"%d" % number), link)
    link.lose(0.0)
    assert made.suspects(content(b"999")) and len(made) < 300


def test_it_can_be_turned_off() -> None:
    made = Quarantine(ManualClock(), lambda: 0.0)
    for _ in range(3):
        made.died_with(content(b"a"), Link(), tried=True)
        made.left(content(b"a"), Link(), tried=True)
    assert not is_refused(made, b"a") and len(made) == 0


@pytest.mark.parametrize(("instance", "survived"), [("one", True), ("two", False), ("", False)])
def test_a_replica_that_is_back_says_whether_it_had_died(instance: str, survived: bool) -> None:
    made = replica()
    made.heard(report(instance="one"))
    link = made.link
    made.lost("gone")
    made.lost("still gone")
    made.heard(report(instance="one"))
    assert link.lost and not link.survived, "the last word of the old connection is no sign of life"
    made.connected(warm=True)
    made.heard(report(instance=instance))
    assert link.survived is survived and made.link is not link
    made.heard(report(instance="one"))
    assert link.survived is survived


def test_a_replica_that_drains_leaves_in_order() -> None:
    made = replica()
    made.heard(report(draining=True))
    link = made.link
    made.lost("gone")
    assert link.drained and not link.is_death and not made.link.drained


@pytest.mark.parametrize("field", ["prompt", "max_tokens", "seed", "stop", "force_specialists", "sampling"])
def test_the_content_is_what_is_asked_and_not_who_asks(field: str) -> None:
    others = {"prompt": "other", "max_tokens": 9, "seed": 9, "stop": ["x"], "force_specialists": ["build"]}
    changed = {**others, "sampling": wire.Sampling(top_k=3)}[field]
    plain = content_digest(ask())
    assert content_digest(ask(request_id="mine", timeout_ms=7, priority=1, tenant_salt=b"x")) == plain
    assert content_digest(ask(**{field: changed})) != plain
