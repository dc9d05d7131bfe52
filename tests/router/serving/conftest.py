"""Certificates for the router's tests, and replicas that are too old for attached calls beside those that are not."""

import pytest

from tests.router.serving.spy import SpyReplica
from tests.specialist.server.test_tls import pki

__all__ = ["pki"]
_BOTH_WAYS = ("test_ended_requests", "test_faults", "test_propagation", "test_suspects")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run these modules with a call for each request, and with all requests on one attached call."""
    if metafunc.module.__name__.rpartition(".")[2] in _BOTH_WAYS:
        metafunc.fixturenames.append("are_attached")
        metafunc.parametrize("are_attached", [False, True], ids=["calls", "attached"], indirect=True)


@pytest.fixture
def are_attached(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpyReplica, "attaches", request.param)
