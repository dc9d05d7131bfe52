"""The feed of `octet top`: the latest overview, its age, and reconnection if the stream is silent."""

import time
from collections.abc import Callable
from threading import Event

import pytest

from octet.cli.top import OverviewFeed
from octet.client.errors import Unavailable
from octet.client.operator import Operator
from octet.clock import ManualClock
from tests.octet.cli.operate.scripted_router import ScriptedRouter, overview, router_served
from tests.patience import PATIENCE


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def feed_of(router: ScriptedRouter, hands: ManualClock, news: Event | None = None) -> OverviewFeed:
    return OverviewFeed(lambda: Operator(router.address, max_retries=0), hands, (news or Event()).set)


def test_latest_overview_and_its_age() -> None:
    router, hands, news = ScriptedRouter(), ManualClock(), Event()
    router.overviews = [overview(version="1"), overview(version="2")]
    with router_served(router), feed_of(router, hands, news) as feed:
        assert feed.first(PATIENCE) is not None and news.wait(PATIENCE)
        until(lambda: (known := feed.latest()) is not None and known.overview.version == "2")
        hands.sleep(3.5)
        known = feed.latest()
        assert known is not None and (known.age, known.problem) == (3.5, "")
        hands.sleep(10)
        known = feed.latest()
        assert known is not None and known.is_stale


def test_silent_stream_is_reopened() -> None:
    router, hands = ScriptedRouter(), ManualClock()
    with router_served(router), feed_of(router, hands) as feed:
        assert feed.first(PATIENCE) is not None
        feed.reopen_if_silent()
        assert len(router.asked) == 1, "the stream has been silent only briefly"
        hands.sleep(60)
        feed.reopen_if_silent()
        known = feed.latest()
        assert known is not None and known.problem == "reconnecting: no message for 15 s"
        until(lambda: len(router.asked) == 2)
        until(lambda: (found := feed.latest()) is not None and not found.is_stale)


def test_closed_stream_is_reported_and_reopened() -> None:
    router, hands = ScriptedRouter(), ManualClock()
    router.ends = True
    with router_served(router), feed_of(router, hands) as feed:
        assert feed.first(PATIENCE) is not None
        until(lambda: (known := feed.latest()) is not None and "the router closed the stream" in known.problem)
        until(lambda: len(router.asked) > 1)


def test_first_failure_is_raised() -> None:
    with router_served() as router:
        pass
    with feed_of(router, ManualClock()) as feed, pytest.raises(Unavailable):
        feed.first(PATIENCE)

    def unreadable() -> Operator:
        raise FileNotFoundError(2, "No such file or directory", "key")

    with OverviewFeed(unreadable, ManualClock(), lambda: None) as feed, pytest.raises(FileNotFoundError):
        feed.first(PATIENCE)
