"""Routing: from a request to the specialist that should answer it."""
