"""Engines: one interface, several implementations."""
