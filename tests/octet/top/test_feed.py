"""What feeds the view: the latest there is, and how old; begun anew where it is silent."""

import time
from collections.abc import Callable
from threading import Event

import pytest

from octet.clock import ManualClock
from octet.sdk.errors import Unavailable
from octet.sdk.operator import Operator
from octet.top.feed import Feed
from tests.octet.operate.windows import Windows, overview, windows_served


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def feed_of(windows: Windows, hands: ManualClock, news: Event | None = None) -> Feed:
    return Feed(lambda: Operator(windows.address, max_retries=0), hands, (news or Event()).set)


def test_the_latest_and_its_age() -> None:
    windows, hands, news = Windows(), ManualClock(), Event()
    windows.overviews = [overview(version="1"), overview(version="2")]
    with windows_served(windows), feed_of(windows, hands, news) as feed:
        assert feed.first(20.0) is not None and news.wait(20)
        until(lambda: (known := feed.known()) is not None and known.overview.version == "2")
        hands.sleep(3.5)
        known = feed.known()
        assert known is not None and (known.age, known.trouble) == (3.5, "")
        hands.sleep(10)
        known = feed.known()
        assert known is not None and known.is_stale


def test_a_silent_stream_is_begun_anew() -> None:
    windows, hands = Windows(), ManualClock()
    with windows_served(windows), feed_of(windows, hands) as feed:
        assert feed.first(20.0) is not None
        feed.renew()
        assert len(windows.asked) == 1, "it is not silent for long"
        hands.sleep(60)
        feed.renew()
        known = feed.known()
        assert known is not None and known.trouble == "trying again: nothing was heard for 15 s"
        until(lambda: len(windows.asked) == 2)
        until(lambda: (found := feed.known()) is not None and not found.is_stale)


def test_a_stream_that_ends_by_itself_is_told_and_begun_anew() -> None:
    windows, hands = Windows(), ManualClock()
    windows.ends = True
    with windows_served(windows), feed_of(windows, hands) as feed:
        assert feed.first(20.0) is not None
        until(lambda: (known := feed.known()) is not None and "the router ended the stream" in known.trouble)
        until(lambda: len(windows.asked) > 1)


def test_a_first_try_that_fails_is_raised_and_none_hangs_at_the_end() -> None:
    with windows_served() as windows:
        pass
    with feed_of(windows, ManualClock()) as feed, pytest.raises(Unavailable):
        feed.first(20.0)

    def unreadable() -> Operator:
        raise FileNotFoundError(2, "No such file or directory", "key")

    with Feed(unreadable, ManualClock(), lambda: None) as feed, pytest.raises(FileNotFoundError):
        feed.first(20.0)
