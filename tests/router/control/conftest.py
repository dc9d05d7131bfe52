"""The databases and the sync pace of the store tests, for these tests too."""

from tests.router.store.conftest import postgres, quick, shared_url

__all__ = ["postgres", "quick", "shared_url"]
