"""Fuzz tests: every parser of the product, given invalid input."""
