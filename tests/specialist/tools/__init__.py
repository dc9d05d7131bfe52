"""Tools: how models write calls, and how they are read."""
