"""Hooks and fixtures for all tests."""

import asyncio
import functools
import inspect
import os
import signal
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.collecting import Frozen, import_from, without_the_collector
from tests.forbidden import may_skip
from tests.patience import TEST_SECONDS

_USUAL = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("octet", _USUAL, derandomize=True, max_examples=20)
settings.register_profile("proofs", _USUAL, max_examples=300)
settings.load_profile(os.environ.get("OCTET_PROFILE", "octet"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs with SIGINT ignored, and child processes inherit this. Some tests send SIGINT to
    # child processes.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_HERE = Path(__file__).resolve().parent
SHARED_DATA = _HERE.parent.parent / "shared" / "data"


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect tests without garbage collection. If all tests are collected, each worker starts its imports at a
    different module."""
    with without_the_collector():
        worker = getattr(session.config, "workerinput", None)
        if worker is not None and [Path(each).resolve() for each in session.config.args] == [_HERE]:
            import_from(int(worker["workerid"].removeprefix("gw")) / worker["workercount"])
        return (yield)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Limit the run time of every async test, so that a test that hangs fails with a traceback. The marker `bound` sets
    another limit, in seconds."""
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        marker = item.get_closest_marker("bound")
        item.obj = _bound(item.obj, TEST_SECONDS if marker is None else marker.args[0])


def _bound(test: Any, seconds: float) -> Any:
    @functools.wraps(test)
    async def bounded(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(seconds):
            await test(*args, **kwargs)

    return bounded


_frozen = Frozen()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    result = yield
    if nextitem is not None and nextitem.path != item.path:
        _frozen.again()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With OCTET_NO_SKIP=1, as in CI, report a skipped test as failed unless `may_skip` accepts the reason."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and not may_skip(str(report.longrepr)):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be skipped: {report.longrepr}"
    return report


_numbers = count()


@pytest.fixture(autouse=True, scope="session")
def state_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set the state folder of servers that several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state" / "shared"))
        yield


@pytest.fixture(autouse=True)
def state_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test its own state folder, so that no test uses the user's."""
    folder = tmp_path_factory.getbasetemp() / "state" / str(next(_numbers))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))


@pytest.fixture
def shared_data() -> Path:
    """Return the folder of public traces, whose sources docs/performance.md names. Skip the test if it is missing."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no data folder at {SHARED_DATA}")
    return SHARED_DATA
