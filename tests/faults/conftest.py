"""What the tests of faults share."""

import pytest

from tests.faults.figures import Figure, is_long, put_figure


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
