"""Models read from disk."""
