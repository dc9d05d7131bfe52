"""Tests of the store, on each of its three databases."""
