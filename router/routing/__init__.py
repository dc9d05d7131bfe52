"""Routing: from a validated request to the specialist that should answer it. Pure functions."""
