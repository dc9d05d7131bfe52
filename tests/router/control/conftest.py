"""The store's own databases, at the pace of its own tests."""

from tests.router.store.conftest import postgres, quick, shared_url

__all__ = ["postgres", "quick", "shared_url"]
