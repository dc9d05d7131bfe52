"""Fixtures of the clients' tests."""

from tests.models.demo import demo_gguf

__all__ = ["demo_gguf"]
