"""Structured answers."""
