"""Observation of requests: observers, traces, metrics, overview."""
