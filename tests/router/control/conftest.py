"""Fixtures that are reused from the store tests: databases, and sync rounds that are faster than in production."""

from tests.router.store.conftest import postgres, quick, shared_url

__all__ = ["postgres", "quick", "shared_url"]
