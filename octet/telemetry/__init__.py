"""Telemetry that every process shares."""
