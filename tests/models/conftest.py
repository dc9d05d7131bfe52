"""Fixtures for model tests."""

from tests.models.demo import demo_gguf
from tests.models.stories import stories_dir

__all__ = ["demo_gguf", "stories_dir"]
