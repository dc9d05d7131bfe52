"""Fixtures of the fault tests."""

import os

import pytest

from tests.faults.figures import Figure, is_long, put_figure

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
"""gRPC channels are open while tests fork processes, so gRPC must not run its fork handlers."""


@pytest.fixture
def figure() -> Figure:
    """Return the function that records a figure and checks its bound."""
    return put_figure


@pytest.fixture
def long() -> bool:
    """Return whether the tests run in their long form, which `make faults` uses."""
    return is_long()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test in this folder for `make faults`."""
    for item in items:
        if "tests/faults/" in item.nodeid:
            item.add_marker(pytest.mark.faults)
