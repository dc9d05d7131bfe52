"""The whole ensemble as its owner starts it."""
