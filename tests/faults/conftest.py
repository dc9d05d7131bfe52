"""Fixtures of the fault tests."""

import os

import pytest

from tests.faults.figures import Figure, is_long, put_figure

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
"""gRPC channels are open while processes are forked; gRPC must not run fork handlers."""


@pytest.fixture
def figure() -> Figure:
    """Record a figure and check its bound."""
    return put_figure


@pytest.fixture
def long() -> bool:
    """Whether this is `make faults`, the long form."""
    return is_long()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder for `make faults`."""
    for item in items:
        if "tests/faults/" in item.nodeid:
            item.add_marker(pytest.mark.faults)
