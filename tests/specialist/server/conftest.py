"""Real models for tests of the server, and both ways to call it."""

import pytest

from tests.models.stories import stories_dir
from tests.specialist.server.harness import Calls

__all__ = ["stories_dir"]
_BOTH_WAYS = ("test_aborts", "test_admission", "test_drafts", "test_generate", "test_structure", "test_tools")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run these modules with a call for each request, and with all requests on one attached call."""
    if metafunc.module.__name__.rpartition(".")[2] in _BOTH_WAYS:
        metafunc.parametrize("are_attached", [False, True], ids=["calls", "attached"], indirect=True)


@pytest.fixture(autouse=True)
def are_attached(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calls, "are_attached", getattr(request, "param", False))
