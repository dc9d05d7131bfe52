"""A plugin of pytest: the file of the figures says which tests passed or failed. What was skipped is not in it."""

import pytest

from tests.faults.figures import put_test


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed or (report.when == "call" and report.passed):
        put_test(report.nodeid, passed=report.passed)
