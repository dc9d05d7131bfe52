"""Tests of external monitoring: alert rules, the Grafana dashboard and a real Prometheus."""
