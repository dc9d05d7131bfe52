"""Incidents that an operator meets. Every part is real except the failing model."""
