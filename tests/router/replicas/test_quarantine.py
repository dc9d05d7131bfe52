"""A request's content becomes suspect when a replica dies during or shortly after the request. Suspect content that is
sent again is on trial until its first token. Content is quarantined after two deaths, at least one of them during a
trial."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from octet.clock import ManualClock
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from octet.v1 import specialist_pb2 as wire
from router.dispatch import attempts as module
from router.dispatch.attempts import Quarantine
from router.dispatch.replicas.replica import BLAME_SECONDS, ReplicaConnection
from tests.router.replicas.builders import replica, report
from tests.router.routing.sample_requests import validated_request as ask

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
        assert not refusal.error.HasField("retry_after_ms"), "no retry may be suggested"
        return True
    return False


class QuarantineMachine(RuleBasedStateMachine):
    """Compares the quarantine with a simple model: for each content, a list of the connections that died with it."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.made = quarantine(self.clock)
        self.links: list[ReplicaConnection] = []
        self.deaths: dict[bytes, list[tuple[ReplicaConnection, float, bool]]] = {each: [] for each in CONTENTS}

    @rule(
        there=st.dictionaries(st.sampled_from(CONTENTS), st.booleans()),
        gone=st.dictionaries(st.sampled_from(CONTENTS), st.booleans()),
        before=st.floats(0, 2 * BLAME_SECONDS),
        drained=st.booleans(),
    )
    def a_connection_breaks(
        self, there: dict[bytes, bool], gone: dict[bytes, bool], before: float, drained: bool
    ) -> None:
        """Break a connection while requests with the contents `there` are in flight. Requests with the contents `gone`
        ended `before` seconds earlier. The values in both dictionaries say whether the content was on trial."""
        link = ReplicaConnection()
        link.drained = drained
        self.links.append(link)
        for digest, tried in gone.items():
            self.made.left(content(digest), link, on_trial=tried)
        left = self.clock.now()
        self.clock.sleep(before)
        link.lose(self.clock.now())
        blamed = gone if self.clock.now() - left <= BLAME_SECONDS else {}
        for digest, tried in there.items():
            self.made.died_with(content(digest), link, on_trial=tried)
            self.made.died_with(content(digest), link)
        for digest in {*there, *blamed} if not drained else ():
            tried = there.get(digest, False) or blamed.get(digest, False)
            self.deaths[digest].append((link, self.clock.now(), tried))

    @rule(digest=st.sampled_from(CONTENTS))
    def it_is_answered(self, digest: bytes) -> None:
        self.made.answered(content(digest))
        self.deaths[digest].clear()

    @rule(index=st.integers(0, 50))
    def same_process_reports_again(self, index: int) -> None:
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


TestDeaths = QuarantineMachine.TestCase


async def test_a_death_during_a_trial_blames_only_the_suspect() -> None:
    made, first, second = quarantine(), ReplicaConnection(), ReplicaConnection()
    for digest in CONTENTS:
        made.died_with(content(digest), first)
    trial = await made.start_trial(content(b"a"), second)
    assert trial is not None and second.on_trial == [b"a"]
    made.died_with(content(b"b"), second)
    made.died_with(content(b"a"), second)
    trial.lost()
    made.died_with(content(b"c"), second)
    made.died_with(content(b"new"), second)
    assert [digest for digest in (*CONTENTS, b"new") if is_refused(made, digest)] == [b"a"]
    assert not made.suspects(content(b"new"))


async def test_suspects_take_turns_until_their_first_token() -> None:
    made, link = quarantine(), ReplicaConnection()
    for digest in CONTENTS:
        made.died_with(content(digest), ReplicaConnection())
    first = await made.start_trial(content(b"a"), link)
    second = asyncio.create_task(made.start_trial(content(b"b"), link))
    await asyncio.sleep(0.01)
    assert first is not None and not second.done()
    assert await made.start_trial(content(b"other"), link) is None, "content that is not suspect must not wait"
    first.passed()
    first.passed()
    trial = await second
    assert trial is not None and link.on_trial == [b"b"]
    trial.passed()
    assert not link.on_trial and not link.turn.locked()


async def test_a_suspect_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRIAL_WAIT_SECONDS", 0.02)
    made, link = quarantine(), ReplicaConnection()
    for digest in CONTENTS:
        made.died_with(content(digest), ReplicaConnection())
    first, second = [await made.start_trial(content(digest), link) for digest in (b"a", b"b")]
    assert first is not None and second is not None and link.on_trial == [b"a", b"b"]
    second.passed()
    assert link.on_trial == [b"a"] and link.turn.locked()
    first.passed()
    assert not link.on_trial and not link.turn.locked()


async def test_waiting_suspect_is_refused_after_its_copy_killed_a_second_replica() -> None:
    made, link = quarantine(), ReplicaConnection()
    made.died_with(content(b"a"), ReplicaConnection())
    trial = await made.start_trial(content(b"a"), link)
    copy = asyncio.create_task(made.start_trial(content(b"a"), link))
    await asyncio.sleep(0.01)
    assert trial is not None
    made.died_with(content(b"a"), link)
    trial.lost()
    with pytest.raises(Refusal, match="2 replicas died"):
        await copy
    assert not link.turn.locked()


def test_records_are_bounded_and_quarantined_content_is_kept_longest() -> None:
    clock = ManualClock()
    made = quarantine(clock, max_records=10)
    for link in (ReplicaConnection(), ReplicaConnection()):
        made.died_with(content(b"poison"), link, on_trial=True)
    for number in range(100):
        made.died_with(content(b"%d" % number), ReplicaConnection())
        assert len(made.records) <= 10
    assert is_refused(made, b"poison") and made.suspects(content(b"99")) and not made.suspects(content(b"1"))
    clock.sleep(SECONDS)
    assert not is_refused(made, b"poison") and len(made.records) == 0


async def test_popular_content_is_tried_before_it_is_quarantined() -> None:
    made, others = quarantine(), [ReplicaConnection() for _ in range(5)]
    for link in others:
        made.died_with(content(b"popular"), link)
    assert not is_refused(made, b"popular"), "five replicas died together for an unknown reason"
    link = ReplicaConnection()
    trial = await made.start_trial(content(b"popular"), link)
    assert trial is not None
    trial.passed()
    made.died_with(content(b"popular"), link, on_trial=True)
    assert is_refused(made, b"popular"), "a death after the first token must count too"


def test_an_open_connection_does_not_count_as_a_death() -> None:
    made, link = quarantine(), ReplicaConnection()
    made.left(content(b"a"), link)
    assert not link.is_death and not made.suspects(content(b"a")) and len(made.records) == 0
    link.lose(0.0)
    assert made.suspects(content(b"a"))


def test_the_number_of_remembered_leavers_is_bounded() -> None:
    made, link = quarantine(), ReplicaConnection()
    for number in range(1000):
        made.left(content(b"%d" % number), link)
    link.lose(0.0)
    assert made.suspects(content(b"999")) and len(made.records) < 300


def test_the_quarantine_can_be_turned_off() -> None:
    made = Quarantine(ManualClock(), lambda: 0.0)
    for _ in range(3):
        made.died_with(content(b"a"), ReplicaConnection(), on_trial=True)
        made.left(content(b"a"), ReplicaConnection(), on_trial=True)
    assert not is_refused(made, b"a") and len(made.records) == 0


@pytest.mark.parametrize(("instance", "survived"), [("one", True), ("two", False), ("", False)])
def test_a_reconnected_replica_reports_whether_it_had_died(instance: str, survived: bool) -> None:
    made = replica()
    made.load_reported(report(instance="one"))
    link = made.connection
    made.disconnected("gone")
    made.disconnected("still gone")
    made.load_reported(report(instance="one"))
    assert link.is_lost and not link.survived, "the last report of the old connection must not be a sign of life"
    made.health_reported(is_serving=True)
    made.load_reported(report(instance=instance))
    assert link.survived is survived and made.connection is not link
    made.load_reported(report(instance="one"))
    assert link.survived is survived


def test_a_replica_that_drains_leaves_in_order() -> None:
    made = replica()
    made.load_reported(report(draining=True))
    link = made.connection
    made.disconnected("gone")
    assert link.drained and not link.is_death and not made.connection.drained


@pytest.mark.parametrize("field", ["prompt", "max_tokens", "seed", "stop", "force_specialists", "sampling"])
def test_content_digest_ignores_the_caller(field: str) -> None:
    others = {"prompt": "other", "max_tokens": 9, "seed": 9, "stop": ["x"], "force_specialists": ["build"]}
    changed = {**others, "sampling": wire.Sampling(top_k=3)}[field]
    plain = ask().content_digest()
    assert ask(request_id="mine", timeout_ms=7, priority=1, tenant_salt=b"x").content_digest() == plain
    assert ask(**{field: changed}).content_digest() != plain
