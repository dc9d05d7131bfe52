"""A specialist replica."""
