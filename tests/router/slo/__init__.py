"""How well every specialist does, and what is told of it."""
