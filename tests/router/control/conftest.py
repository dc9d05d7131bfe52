"""Fixtures of the store tests that these tests share: databases, and sync rounds that are faster than in production."""

from tests.router.store.conftest import postgres, quick, shared_url

__all__ = ["postgres", "quick", "shared_url"]
