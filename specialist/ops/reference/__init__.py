"""Readable implementations: the reference for every kernel."""
