"""Processes in the care of another."""
