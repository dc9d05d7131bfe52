"""The databases that routers share."""

from tests.octet.store.conftest import postgres, shared_url

__all__ = ["postgres", "shared_url"]
