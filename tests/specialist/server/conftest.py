"""Real models for tests of the server."""

from tests.models.stories import stories_dir

__all__ = ["stories_dir"]
