"""A pytest plugin that records which tests passed or failed, on which machine, and when. The file is the one that
OCTET_FAULTS names. Skipped tests are left out."""

import os
from dataclasses import asdict

import pytest

from simulation.results import RunMeter
from tests.faults.figures import COMMAND, is_long, put_run, put_test

_METER = pytest.StashKey[RunMeter]()


def pytest_sessionstart(session: pytest.Session) -> None:
    session.stash[_METER] = RunMeter()


def pytest_sessionfinish(session: pytest.Session) -> None:
    command = f"{os.environ.get(COMMAND, 'pytest')}, {'long' if is_long() else 'short'} form"
    put_run(asdict(session.stash[_METER].result("faults", command, [])))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed or (report.when == "call" and report.passed):
        put_test(report.nodeid, passed=report.passed)
