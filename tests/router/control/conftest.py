"""Fixtures that are reused from the store tests: the databases and the faster sync rounds."""

from tests.router.store.conftest import postgres, quick, shared_url

__all__ = ["postgres", "quick", "shared_url"]
