"""Fixtures that run each test with every engine."""

import pytest

from tests.conformance.engines import FACTORIES
from tests.conformance.shape import Factory


@pytest.fixture(scope="session", params=sorted(FACTORIES))
def engine(request: pytest.FixtureRequest) -> Factory:
    return FACTORIES[request.param]
