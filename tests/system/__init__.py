"""Incidents that an operator meets. Every part is real except the model that fails."""
