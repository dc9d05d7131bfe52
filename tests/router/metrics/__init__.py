"""Tests of the router's Prometheus metrics."""
