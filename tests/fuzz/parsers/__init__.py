"""All of them, by what they read."""
