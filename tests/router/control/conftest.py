"""The databases and the pace of the store's own tests."""

from tests.router.store.conftest import postgres, quick, shared_url

__all__ = ["postgres", "quick", "shared_url"]
