"""Real models for the service's tests."""

from tests.models.stories import stories_dir

__all__ = ["stories_dir"]
