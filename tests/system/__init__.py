"""Incidents as an operator sees them. Every part is real except the failing model."""
