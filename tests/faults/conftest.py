"""What the tests of faults share."""

import os

import pytest

from tests.faults.figures import Figure, is_long, put_figure

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
"""Whoever asks has channels open while other programs are started: nothing in them is to run between the two."""


@pytest.fixture
def figure() -> Figure:
    """Writes a figure down and holds it to its bound."""
    return put_figure


@pytest.fixture
def long() -> bool:
    """Whether this is `make faults`: everything as the table demands it. Otherwise a short form of it."""
    return is_long()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is of the suite that `make faults` runs."""
    for item in items:
        if "tests/faults/" in item.nodeid:
            item.add_marker(pytest.mark.faults)
