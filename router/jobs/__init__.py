"""Requests that nobody waits for: on record before they are acknowledged, and ended once, whoever is lost."""
