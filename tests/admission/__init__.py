"""Tests of breakers, budgets and the admission forecast."""
