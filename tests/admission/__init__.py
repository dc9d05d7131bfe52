"""Breakers and budgets as state machines."""
