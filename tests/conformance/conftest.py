"""Fixtures that run each test with every engine."""

import pytest

from tests.conformance.engines import FACTORIES
from tests.conformance.shape import Factory


@pytest.fixture(scope="session", params=sorted(FACTORIES))
def engine(request: pytest.FixtureRequest) -> Factory:
    return FACTORIES[request.param]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run only the first seed of a test with the reference decoders, which are ten times as slow as the others. The
    slow tests run all seeds."""
    for item in items:
        given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if str(given.get("engine", "")).endswith("-torch") and given.get("seed", 0):
            item.add_marker(pytest.mark.slow)
