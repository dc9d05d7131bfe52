"""Certificates for the router's tests, and replicas that are too old for attached calls beside those that are not."""

from collections.abc import Iterator
from functools import partial

import pytest

import router.server
from router.dispatch.transport import open_transport
from tests.router.serving.spy import SpyReplica
from tests.specialist.server.test_tls import pki

__all__ = ["pki"]
_BOTH_WAYS = ("test_ended_requests", "test_faults", "test_propagation", "test_suspects")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run these modules with a call for each request, and with all requests on one attached call."""
    if metafunc.module.__name__.rpartition(".")[2] in _BOTH_WAYS:
        metafunc.parametrize("are_attached", [False, True], ids=["calls", "attached"], indirect=True)


@pytest.fixture(autouse=True)
def are_attached(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    attaches = getattr(request, "param", False)
    monkeypatch.setattr(SpyReplica, "attaches", attaches)
    connect = partial(open_transport, attach=attaches)
    monkeypatch.setattr(router.server, "open_transport", lambda kind, tls, **_: connect(kind, tls))
    SpyReplica.num_asked = SpyReplica.num_attached = 0
    yield
    assert attaches == (SpyReplica.num_attached > 0) or SpyReplica.num_asked == 0
