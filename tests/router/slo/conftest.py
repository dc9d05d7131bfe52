"""Fixtures that are reused from the store tests: databases that routers share."""

from tests.router.store.conftest import postgres, shared_url

__all__ = ["postgres", "shared_url"]
